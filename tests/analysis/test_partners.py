"""Cells without a partner are named, with the reason, wherever differences are shown."""

from pathlib import Path

import pytest

import analysis
from analysis.stats import seeds_text
from analysis.tables import advice
from tests.analysis.shown import shown
from tests.made_runs import made_config, write_run


@pytest.fixture
def lacking(tmp_path: Path) -> Path:
    """Three seeds of ``none``, ``full`` and ``partial``; seed 2 is damaged for ``none``, missing for ``partial``."""
    for strategy in ("none", "full", "partial"):
        for seed in range(3 - (strategy == "partial")):
            write_run(tmp_path / f"{strategy}-{seed}", made_config(strategy, seed=seed))
    (tmp_path / "none-2" / "events.jsonl").unlink()
    return tmp_path


def test_fewer_pairs_than_cells_are_shown_and_explained(lacking: Path) -> None:
    """The number of pairs stands beside the difference, and a line names seed and reason, in table and report."""
    frame = analysis.load(lacking)
    said = "ΔAUC of full is over 2 of 3 cells: none has no result (damaged) for seed 2."
    table = shown(analysis.show_table(frame))
    assert said in table
    assert said in analysis.report(lacking).read_text()
    (full,) = [line for line in table.splitlines() if line.strip().startswith("full")]
    (partial,) = [line for line in table.splitlines() if line.strip().startswith("partial")]
    assert " (2) " in full
    assert " (2) " not in partial
    assert "ΔAUC of partial" not in table
    numbers = analysis.table(frame).set_index("strategy")
    assert [*numbers.loc["full", ["num", "num_pairs"]]] == [3, 2]
    verdicts = advice(frame)
    assert verdicts is not None
    (verdict,) = [line for line in shown(verdicts).splitlines() if line.strip().startswith("full")]
    assert verdict.split()[1] == "2"


def test_a_strategy_without_any_pair_says_so(tmp_path: Path) -> None:
    """Without a finished ``none``, one line says why there is no difference."""
    write_run(tmp_path / "full", made_config("full"))
    assert "ΔAUC is unknown: there is no finished cell of none." in shown(analysis.show_table(analysis.load(tmp_path)))


def test_comparisons_to_a_strategy_name_what_has_no_partner(lacking: Path) -> None:
    """A seed that only one of the two strategies has is named below the table."""
    said = shown(analysis.show_comparison_to(lacking, "partial"))
    assert (
        "full: 2 of 3 cells have a partner: partial has no result, or several, of the same setting for seed 2." in said
    )
    said = shown(analysis.show_comparison_to(lacking, "full"))
    assert "partial: 2 of 2 cells have a partner: partial has no result for seed 2." in said


def test_comparisons_of_folders_count_what_has_no_partner(lacking: Path, tmp_path: Path) -> None:
    """Cells of each folder without a partner are counted and named, as are copies; equal strategies do not differ."""
    other = tmp_path / "other"
    write_run(other / "full-1", made_config("full", seed=1))
    write_run(other / "full-7", made_config("full", seed=7))
    write_run(other / "copy", made_config("full", seed=7))
    for name in ("none", "partial"):
        (lacking / "one").mkdir(exist_ok=True)
        (lacking / f"{name}-0").rename(lacking / "one" / f"{name}-0")
    (lacking / "full-1").rename(lacking / "one" / "full-1")
    said = shown(analysis.show_comparison([lacking / "one", other]))
    assert f"{lacking / 'one'}: 2 of 3 cells have no partner: none seed 0, partial seed 0." in said
    assert f"{other}: 1 of 2 cells have no partner: full seed 7." in said
    assert "left out, copy: " in said
    assert "strategy.name" not in said


def test_another_content_under_one_path_is_a_difference(tmp_path: Path) -> None:
    """Folders of equal configs whose data differs are not called equal."""
    for digest in ("0123456789", "abcdefabcd"):
        write_run(tmp_path / digest, made_config("full"), data=digest)
    said = shown(analysis.show_comparison([tmp_path / "0123456789", tmp_path / "abcdefabcd"]))
    assert "Config keys that differ: the content of data (under the same path)." in said


def test_seeds_are_named_in_runs() -> None:
    """Consecutive seeds are a range, each once."""
    assert seeds_text([3]) == "seed 3"
    assert seeds_text([5, 0, 2, 1, 1]) == "seeds 0–2, 5"
