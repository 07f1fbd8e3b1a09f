"""Cells whose data or trace changed under its path are never paired with each other."""

from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.stats import blocks_of, estimate, regimes_of
from analysis.tables import comparisons, comparisons_to
from tests.analysis.shown import shown
from tests.made_runs import made_config, unseal, write_run

OLD, NEW = "1a2b3c4d5e6f", "9f8e7d6c5b4a"


def _grid(root: Path, *, auc: float = 0.0, **contents: Any) -> Path:
    """Strategies ``none`` and ``full``, which loses nothing, by two seeds; ``auc``: what the content changes in all."""
    for seed in range(2):
        for strategy in ("none", "full"):
            config = made_config(strategy, seed=seed)
            own = {**contents, "trace": None} if strategy == "none" else contents
            name = "-".join([strategy, str(seed), *map(str, own.values())])
            write_run(root / name, config, auc=auc, **own)
    return root


def _differences(root: Path) -> list[float | None]:
    """Means of the paired differences of ``full``, of its blocks in order."""
    found = [line.auc_difference for block in blocks_of(analysis.load(root)) for line in block.lines]
    return [each and each.mean for each in found]


def test_cells_of_two_data_under_one_path_are_two_settings(tmp_path: Path) -> None:
    """Differences are those of each content alone; titles, and one line, name the digests."""
    alone = _differences(_grid(tmp_path / "alone", data=OLD))
    _grid(tmp_path / "both", data=OLD)
    _grid(tmp_path / "both", data=NEW, auc=-0.1)
    assert _differences(tmp_path / "both") == pytest.approx([*alone, *alone])
    frame = analysis.load(tmp_path / "both")
    blocks = blocks_of(frame)
    assert [block.title for block in blocks] == ["data (digest 1a2b3c4d)", "data (digest 9f8e7d6c)"]
    assert [len(line.cells) for block in blocks for line in block.lines] == [2, 2, 2, 2]
    assert len(regimes_of(frame)) == 2
    said = "8 cells were computed with other data under the same path, data"
    assert said in shown(analysis.show_table(frame))
    assert said in analysis.report(tmp_path / "both").read_text()


def _file(folder: Path, name: str, **header: object) -> Path:
    path = folder / f"{name}.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"# {key}: {value}\n" for key, value in header.items()) + "hour,rank\n10,1\n")
    return path


@pytest.mark.parametrize(
    ("traces", "expected"),
    [
        ({"mtbf-4": {"mtbf_h": 4, "seed": 0}, "mtbf-16": {"mtbf_h": 16, "seed": 0}}, ["mtbf-16", "mtbf-4"]),
        ({"mtbf-4": {"mtbf_h": 4}, "mtbf-16": {"mtbf_h": 4}}, ["mtbf-16", "mtbf-4"]),
        ({"mtbf-4": {"mtbf_h": 4, "seed": 0}, "mtbf-16": {"mtbf_h": 4, "seed": 1}}, ["mtbf"]),
        ({"preset-cpr56": {"mtbf_h": 28, "seed": 0}}, ["preset-cpr56"]),
        ({"a": {"mtbf_h": 4, "seed": 0, "number": 3}, "b": {"mtbf_h": 4, "seed": 1, "number": 0}}, ["a"]),
        ({"a-0": {"mtbf_h": 4, "seed": 0}, "a-1": {"mtbf_h": 4, "seed": 1}, "a": {"mtbf_h": 9}}, ["a", "a-"]),
    ],
    ids=["other settings", "no seed", "draws", "one file", "draws of any name", "a name that is taken"],
)
def test_draws_of_a_law_are_known_by_the_header_of_their_files(
    traces: dict[str, dict[str, object]], expected: list[str], tmp_path: Path
) -> None:
    """Law: what differs in the seed alone is one setting, whatever its files are called; nothing else is."""
    for seed, (name, header) in enumerate(traces.items()):
        config = made_config("full", seed=seed, trace={"path": str(_file(tmp_path / "traces", name, **header))})
        write_run(tmp_path / "runs" / name, config)
    found = blocks_of(analysis.load(tmp_path / "runs"))
    assert sorted(block.setting["trace"] for block in found) == expected
    assert sum(len(line.cells) for block in found for line in block.lines) == len(traces)


def test_cells_of_two_traces_under_one_path_are_two_settings(tmp_path: Path) -> None:
    """Each content of the trace has its line; ``none``, which has no trace, is the partner of both."""
    alone = _differences(_grid(tmp_path / "alone", trace=OLD))
    _grid(tmp_path / "both", trace=OLD)
    for seed in range(2):
        write_run(tmp_path / "both" / f"new{seed}", made_config("full", seed=seed), trace=NEW, auc=-0.1)
    frame = analysis.load(tmp_path / "both")
    titles = {block.title for block in blocks_of(frame)}
    assert {title.rpartition("trace ")[2] for title in titles} == {"(digest 1a2b3c4d)", "(digest 9f8e7d6c)"}
    means = [mean for mean in _differences(tmp_path / "both") if mean]
    assert means == pytest.approx([alone[-1], alone[-1] - 0.1] if alone[-1] else [])
    assert "4 cells were computed with another trace under the same path, trace busy" in shown(
        analysis.show_table(frame)
    )


def test_folders_are_compared_by_content(tmp_path: Path) -> None:
    """A folder with two contents is compared with one of one of them in cells of that content alone."""
    _grid(tmp_path / "both", data=OLD)
    _grid(tmp_path / "both", data=NEW, auc=-0.1)
    _grid(tmp_path / "new", data=NEW, auc=-0.1)
    said = shown(analysis.show_comparison([_grid(tmp_path / "old", data=OLD), tmp_path / "new"]))
    assert "Config keys that differ: the content of data (under the same path)." in said
    for dirs in (("both", "new"), ("new", "both")):
        found = comparisons([tmp_path / name for name in dirs])
        assert [(len(item.pairs), item.differences["auc"]) for item in found] == [(2, estimate([0.0, 0.0]))] * 2


def test_cells_that_nothing_tells_apart_are_not_paired(tmp_path: Path) -> None:
    """Older records have no digest of a trace: cells of equal columns and other results make no pair, as is said."""
    _grid(tmp_path)
    changed = made_config("full", seed=0)
    write_run(tmp_path / "later", changed, auc=-0.1)
    _rehash(tmp_path / "later")
    frame = analysis.load(tmp_path)
    lines = [line for block in blocks_of(frame) for line in block.lines]
    (full,) = [line for line in lines if line.strategy == "full" and line.auc_difference]
    assert [*full.pairs["seed"]] == [1]
    said = "2 cells have equal settings but different config hashes and results, and are not paired: full of seed 0"
    assert said in shown(analysis.show_table(frame))


def test_strategies_are_compared_by_content(tmp_path: Path) -> None:
    """In comparisons to a strategy, cells of each data are paired with each other; twins of it make no pair."""
    for seed, digest in ((0, OLD), (0, NEW), (1, NEW)):
        for strategy in ("full", "partial"):
            write_run(tmp_path / f"{strategy}{seed}{digest}", made_config(strategy, seed=seed), data=digest)
    found = comparisons_to(tmp_path, "full")
    assert {item.group: len(item.pairs) for item in found} == {
        "partial, data (digest 1a2b3c4d)": 1,
        "partial, data (digest 9f8e7d6c)": 2,
    }
    write_run(tmp_path / "twin", made_config("full", seed=1), data=NEW, auc=-0.1)
    _rehash(tmp_path / "twin")
    assert [len(item.pairs) for item in comparisons_to(tmp_path, "full")] == [1, 1]


def test_cells_of_equal_settings_and_results_are_copies(tmp_path: Path) -> None:
    """A cell whose hash alone differs, as after a new config key, counts once."""
    _grid(tmp_path)
    write_run(tmp_path / "later", made_config("none", seed=0))
    _rehash(tmp_path / "later")
    frame = analysis.load(tmp_path).set_index("cell")
    assert [*frame["status"]].count("copy") == 1
    assert "its config hash differs" in frame["failure"].dropna().iloc[0]


def _rehash(run: Path) -> None:
    """Give the record of a run another config hash."""
    unseal(run)
    file = run / "events.jsonl"
    file.write_text(file.read_text().replace('"config_hash":"', '"config_hash":"f', 1))
