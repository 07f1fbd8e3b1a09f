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


def test_cells_of_two_contents_under_one_path_are_two_settings(tmp_path: Path) -> None:
    """Differences are those of each content alone; titles, and one line, name the digests.

    ``none``, which has no trace, is the partner of the cells of each trace.
    """
    alone = _differences(_grid(tmp_path / "alone", data=OLD))
    for what in ("data", "trace"):
        both = _grid(tmp_path / what, **{what: OLD})
        for seed in range(2):
            for strategy in ("none", "full") if what == "data" else ("full",):
                write_run(both / f"{strategy}{seed}", made_config(strategy, seed=seed), **{what: NEW}, auc=-0.1)
        frame = analysis.load(both)
        blocks = blocks_of(frame)
        assert {block.title[-17:] for block in blocks} == {"(digest 1a2b3c4d)", "(digest 9f8e7d6c)"}
        assert len(regimes_of(frame)) == len(blocks) == 2
        assert [len(line.cells) for block in blocks for line in block.lines] == [2, 2, 2, 2]
        own = [*alone, *alone] if what == "data" else [*alone, alone[0], (alone[1] or 0) - 0.1]
        assert _differences(both) == pytest.approx(own)
        words = ("8", "other data", "data demo") if what == "data" else ("4", "another trace", "trace busy")
        said = "{} cells were computed with {} under the same path, {}".format(*words)
        assert said in shown(analysis.show_table(frame))
        assert what == "data" or said in analysis.report(both, frame=frame).read_text()


def test_comparisons_are_of_one_content(tmp_path: Path) -> None:
    """A folder with two contents is compared with one of one of them in cells of that content alone.

    So are strategies of one folder, and cells that nothing but a hash tells apart make no pair.
    """
    for strategy, seed, digest in (("full", 0, OLD), ("full", 0, NEW), ("full", 1, NEW)):
        for name in (strategy, "partial"):
            write_run(tmp_path / "both" / f"{name}{seed}{digest}", made_config(name, seed=seed), data=digest)
    for folder, digest in (("old", OLD), ("new", NEW)):
        for seed in range(2):
            write_run(tmp_path / folder / f"{seed}", made_config("full", seed=seed), data=digest)
    said = shown(analysis.show_comparison([tmp_path / "old", tmp_path / "new"]))
    assert "Config keys that differ: the content of data (under the same path)." in said
    for dirs in (("both", "new"), ("new", "both")):
        (item,) = comparisons([tmp_path / name for name in dirs])
        assert (len(item.pairs), item.differences["auc"]) == (2, estimate([0.0, 0.0]))
    assert {item.group: len(item.pairs) for item in comparisons_to(tmp_path / "both", "full")} == {
        "partial, data (digest 1a2b3c4d)": 1,
        "partial, data (digest 9f8e7d6c)": 2,
    }
    write_run(tmp_path / "both" / "twin", made_config("full", seed=1), data=NEW, auc=-0.1)
    file = tmp_path / "both" / "twin" / "events.jsonl"
    unseal(file.parent)
    file.write_text(file.read_text().replace('"config_hash":"', '"config_hash":"f', 1))
    assert [len(item.pairs) for item in comparisons_to(tmp_path / "both", "full")] == [1, 1]
    said = "2 cells have equal settings but different config hashes and results, and are not paired: full of seed 1"
    assert said in shown(analysis.show_table(analysis.load(tmp_path / "both")))


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
