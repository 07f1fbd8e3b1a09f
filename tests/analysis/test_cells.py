"""Run directories as a frame; cells whose data or trace changed under its path are never paired with each other."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from markupsafe import escape

import analysis
from analysis.load import COLUMNS, drop_results, evaluation_results, lost_dense_samples
from analysis.stats import blocks_of, estimate, regimes_of
from analysis.tables import comparisons
from harness.core.errors import StoreError
from harness.core.events import Dropped, Evaluated, Finished, Recovered
from harness.record.event_log import read_events
from tests.analysis.shown import shown
from tests.made_runs import altered, made_config, made_events, reseal, with_drops, write_run
from tests.unprivileged import unprivileged


def test_every_run_below_is_a_row(grid: Path) -> None:
    """Runs at any depth are rows, with their status; figures are those of the run's last event, or are missing.

    A key that is asked for is a column also where all cells have one value, or none has the key.
    """
    frame = analysis.load(grid)
    assert len(frame) == 15
    assert list(frame.columns) == [*COLUMNS]
    assert frame["status"].value_counts().to_dict() == {"done": 13, "failed": 1, "unfinished": 1}
    cells = frame.set_index("cell")
    assert cells.loc["failed-s0", "failure"] == "RunFailed: ps2 <kept> dying"
    names = ["auc", "log_loss", "pls", "update_pls", "overhead_frac", "save_h", "lost_h", "payload_bytes", "num_saves"]
    finished = read_events(grid / "full-s1" / "events.jsonl")[-1]
    assert isinstance(finished, Finished)
    assert [*cells.loc["full-s1", names]] == [getattr(finished, name) for name in names]
    stalls = finished.machine["overhead_seconds"]
    assert cells.loc["full-s1", "measured_lost_s"] == stalls["lost"]
    assert cells.loc["full-s1", "stall_s"] == pytest.approx(sum(stalls.values()))
    missing = cells.loc[["failed-s0", "unfinished-s0"], [*names, "stall_s", "seconds"]]
    assert missing.isna().to_numpy().all()
    asked = analysis.load(grid, ["model.size", "strategy.r", "strategy.bits", "seed", "profile"])
    assert set(asked["model.size"]) == {"kaggle"}
    assert {0.125} < set(asked["strategy.r"]), "strategies without the option have none"
    assert asked["strategy.bits"].dropna().empty
    assert asked.columns.is_unique


@pytest.mark.parametrize(
    ("failures", "lost"),
    [
        ([], None),
        ([(50, 50), (80, 80)], 80),  # from initial values: the first 50 are lost once
        ([(50, 20), (90, 10)], 30),
        ([(50, 20), (60, 30), (90, 70)], 70),  # since 30, 30 and 20
    ],
)
def test_a_sample_that_the_dense_network_lacks_counts_once(failures: list[tuple[int, int]], lost: int | None) -> None:
    """Law: of failures of all trainers, each after so many samples, with what the network then lacks since its save."""
    (recovered, *_) = (event for event in made_events(made_config()) if isinstance(event, Recovered))
    kept = altered(recovered, samples=95)
    events = [altered(recovered, samples=at, dense="checkpoint", lost_dense_samples=num) for at, num in failures]
    assert lost_dense_samples([*events, kept]) == lost


def test_the_drops_of_a_run_are_summed_or_unknown() -> None:
    """Law: without a failure the sum is 0; with one whose drop is not on record it is unknown; a rollback drops 0.

    The error of the sum is that of the summed deviations, as all drops are of the same test samples.
    """
    bare = made_events(made_config())
    events = [*with_drops(bare, 1e-3)]
    first, *_, last = (place for place, event in enumerate(events) if isinstance(event, Dropped))
    events[last] = altered(events[last], drop=3e-3, num_samples=500)
    expected = {"drop": 7e-3, "drop_mean": 1.4e-3, "drop_last": 3e-3, "drop_error": 1e-5}
    assert drop_results(events) == pytest.approx(expected)
    assert drop_results([*events[:first], *events[first + 1 :]]) == drop_results(bare) == {}
    assert drop_results([*events[:first], altered(events[first], drop=None), *events[first + 1 :]]) == {}
    without = {"drop": 0.0, "drop_mean": None, "drop_last": None, "drop_error": 0.0}
    assert drop_results(made_events(made_config("none"))) == without
    rollbacks = drop_results([*with_drops(made_events(made_config("full")), 1e-3)])
    assert rollbacks == without | {"drop_mean": 0.0, "drop_last": 0.0}


def test_a_cell_counts_once_however_many_folders_hold_it(tmp_path: Path) -> None:
    """Copies of three seeds in a second grid change neither the number of seeds nor an interval.

    Nor does a cell of equal setting and results whose hash alone differs, as after a new config key, and nor do keys
    that are no part of the hash.
    """
    for folder, every_s in (("a", 300), ("b", 60), ("c", 300)):
        for seed in range(3) if folder != "c" else [0]:
            config = made_config("none", seed=seed, resume={"every_s": every_s})
            write_run(tmp_path / folder / f"none-s{seed}", config)
    _rewritten(tmp_path / "c" / "none-s0", 0, config_hash="f" * 16)
    frame = analysis.load(tmp_path, copies=True)
    assert frame["status"].value_counts().to_dict() == {"done": 3, "copy": 4}
    assert analysis.load(tmp_path)["status"].to_list() == ["done"] * 3, "a row for each cell"
    [line], [alone] = (analysis.blocks_of(analysis.load(path))[0].lines for path in (tmp_path, tmp_path / "a"))
    assert line.estimate("auc") == alone.estimate("auc")
    reasons = frame["failure"].dropna()
    assert reasons.str.startswith("the same cell as ").sum() == 3
    assert reasons.str.contains("its config hash differs").sum() == 1


@pytest.mark.parametrize(
    ("cells", "keys"),
    [
        ([("cpr_mfu", {"out": f"runs/{r}", "seed": int(8 * r), "strategy": {"r": r}}) for r in (0.125, 0.25)], ["r"]),
        ([("full", {}), ("cpr_mfu", {}), ("cpr_ssu", {})], []),  # not because others lack it
        ([("full", {}), ("cpr_mfu", {"strategy": {"r": 0.5}}), ("cpr_ssu", {})], ["r"]),
        ([("full", {"profile": {"base": "busy", "mtbf_h": each}}) for each in (4.0, 5.0)], ["mtbf_h"]),  # of one name
        ([("full", {"profile": "busy"}), ("full", {"profile": "cpr56"})], []),
        ([("full", {"seed": n, "resume": {"every_s": n}, "store": {"keep": n + 1}}) for n in (0, 1)], []),  # of no hash
    ],
)
def test_keys_that_differ_between_cells_are_columns(
    cells: list[tuple[str, dict[str, Any]]], keys: list[str], tmp_path: Path
) -> None:
    """Law: what has its own column, or only names a place, is not."""
    for number, (name, values) in enumerate(cells):
        write_run(tmp_path / f"{number}", made_config(name, **values))
    assert [key.partition(".")[2] for key in analysis.load(tmp_path).columns if "." in key] == keys


SPOILT: dict[str, tuple[str, Callable[[str], str | None], str]] = {
    "no record": ("events.jsonl", lambda _: None, " expected what the run wrote, got no file"),
    "no event": ("events.jsonl", lambda text: f"{{\n{text}", "1: not an event"),
    "half": ("config.yaml", lambda _: "seed: 1\n", " name: expected this key, got the keys 'seed'"),
    "torn": ("config.yaml", lambda _: "{", "1: not YAML: "),
    "deep": ("config.yaml", lambda _: "[" * 3000, "1: not YAML: while increasing flow level, exceeded"),
    "word": ("config.yaml", lambda _: "a", " expected the resolved config of a run (a mapping), got str"),
    "wrong": ("config.yaml", lambda text: text.replace("job_h: 56.0", "job_h: x"), " profile.job_h: expected a valid"),
    "no config": ("config.yaml", lambda _: None, " "),
}


def test_what_is_damaged_is_one_line_in_frame_table_story_and_report(tmp_path: Path) -> None:
    """Law: a run that cannot be read is named with its file, and costs no other row."""
    write_run(tmp_path / "well", made_config("full", seed=99))
    lines: dict[str, str] = {}
    for seed, (name, (file, spoil, found)) in enumerate(SPOILT.items()):
        write_run(tmp_path / name, made_config("full", seed=seed))
        path = tmp_path / name / file
        left = spoil(path.read_text())
        path.unlink() if left is None else path.write_text(left)
        reseal(tmp_path / name)
        lines[name] = f"{path}:{found}"
    frame = analysis.load(tmp_path)
    assert frame.set_index("cell")["status"].to_dict() == {"well": "done"} | dict.fromkeys(SPOILT, "damaged")
    table, page = shown(analysis.show_table(frame)), analysis.report(tmp_path, frame=frame).read_text()
    assert f"1 done, {len(SPOILT)} damaged" in page
    assert analysis.is_sound(tmp_path / "well")
    for name, line in lines.items():
        row = frame.set_index("cell").loc[name]
        assert str(row["failure"]).startswith(line)
        assert "\n" not in str(row["failure"])
        assert pd.isna(row["auc"])
        assert f"damaged: {name}: {row['failure']}" in table
        assert escape(f"damaged: {name}: {row['failure']}") in page
        with pytest.raises(StoreError, match=re.escape(line)):
            analysis.show(tmp_path / name)


def test_a_run_that_lost_its_config_is_a_damaged_cell(tmp_path: Path) -> None:
    """A folder with a record or a result is a run's: it does not vanish from frame and story."""
    write_run(tmp_path / "b", made_config(seed=1))
    for name, left in (("record", "events.jsonl"), ("done", "DONE")):
        run = tmp_path / name
        write_run(run, made_config(seed=0))
        for other in {"config.yaml", "events.jsonl", "DONE"} - {left}:
            (run / other).unlink()
        with pytest.raises(StoreError, match=re.escape(f"{run / 'config.yaml'}: ")):
            analysis.show(run)
    frame: Any = analysis.load(tmp_path)
    assert frame["status"].value_counts().to_dict() == {"damaged": 2, "done": 1}
    damaged = frame[frame["status"] == "damaged"]
    assert all(why.startswith(f"{path}/config.yaml: ") for path, why in damaged[["path", "failure"]].to_numpy())


def _rewritten(run: Path, line: int, **changes: Any) -> None:
    """Change values of one event of a record."""
    events = (run / "events.jsonl").read_text().splitlines(keepends=True)
    events[line] = json.dumps(json.loads(events[line]) | changes) + "\n"
    (run / "events.jsonl").write_text("".join(events))
    reseal(run)


def test_a_lie_marks_its_cell_and_costs_no_table(tmp_path: Path) -> None:
    """A record that contradicts itself, or whose counts cannot be, is named in the frame; null is no contradiction."""
    unknown: dict[str, Any] = dict.fromkeys(
        ("update_pls", "update_pls_tracked", "applied_updates", "lost_updates", "applied_tracked", "lost_tracked")
    )
    changes: dict[str, tuple[int, dict[str, Any], str | None]] = {
        "partial": (0, {"num_ps": 0, "rank_rows": []}, "event 1: "),
        "cpr_vanilla": (0, {"bytes_full": 0}, "event 1: "),
        "cpr_mfu": (0, {"num_steps": 0}, "event 1: "),
        "cpr_ssu": (0, {"rank_rows": []}, "event 1: "),
        "full": (-1, {"pls": 0.001}, "pls is 0.001"),
        "cpr_scar": (-1, unknown, None),
    }
    for name, (line, own, _) in changes.items():
        write_run(tmp_path / name, made_config(name))
        _rewritten(tmp_path / name, line, **own)
    frame = analysis.load(tmp_path).set_index("cell")
    for name, (_, _, said) in changes.items():
        found = frame.loc[name, "disagreement"]
        assert said in str(found) if said else pd.isna(found)
    assert pd.isna(frame.loc["cpr_scar", "update_pls"])
    analysis.report(tmp_path)


def test_a_cell_that_cannot_be_read_is_damaged(tmp_path: Path) -> None:
    """Law: no cell is left out of the table, whichever of its folder's rights are missing."""
    rights = {"whole": 0o755, "closed": 0, "names": 0o444, "entry": 0o111}
    for seed, (name, mode) in enumerate(rights.items()):
        write_run(tmp_path / name, made_config("full", seed=seed))
        (tmp_path / name).chmod(mode)
    analysis.load(tmp_path)  # all imports
    with unprivileged(tmp_path):
        cells = analysis.load(".").set_index("cell")
        assert cells["status"].to_dict() == {
            name: "damaged" if name in ("closed", "names") else "done" for name in rights
        }
        for name in ("closed", "names"):
            assert "cannot be read: Permission denied" in str(cells.loc[name, "failure"])
            with pytest.raises(StoreError, match=f"{name}: cannot be read: Permission denied"):
                analysis.show(name)


def test_a_folder_without_runs_is_one_line(tmp_path: Path) -> None:
    """No folder, and no run in it, are the user's mistakes."""
    (tmp_path / "file").touch()
    for path, error in (("absent", "no such folder"), ("file", "file: expected a folder, got a file"), ("", "no run")):
        with pytest.raises(StoreError, match=error):
            analysis.load(tmp_path / path)


def test_whole_numbers_and_null_read_as_in_the_config(tmp_path: Path) -> None:
    """In titles, columns and comparisons, beside cells where the key is null or missing, and of any size."""
    key = "data.max_train_samples"
    for num in (10_000, 20_000_000, None):
        for strategy in ("full", "partial"):
            config = made_config(strategy, data={"max_train_samples": num})
            write_run(tmp_path / "runs" / f"{strategy}-{num}", config)
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "config.yaml").write_text("{")
    frame = analysis.load(tmp_path / "runs")
    assert [block.title for block in analysis.blocks_of(frame)] == [f"{key} 10000", f"{key} 20000000", f"{key} null"]
    groups = shown(analysis.show_comparison([tmp_path / "runs"], "full"))
    assert f"partial, {key} 20000000" in groups
    assert "10000.0" not in groups + shown(analysis.show_table(frame))
    for name, num in (("huge", 2**63), ("null", None)):  # pandas has no type for it
        write_run(tmp_path / "any" / name, made_config("full", strategy={"interval_samples": num}))
    samples: Any = analysis.load(tmp_path / "any").set_index("cell")["strategy.interval_samples"]
    assert (int(samples["huge"]), pd.isna(samples["null"])) == (2**63, True)


FINAL = Evaluated(
    step=100, samples=1000, auc=0.8, log_loss=0.5, accuracy=0.7, num_samples=10, normalised_entropy=0.9, final=True
)


def _curve(num: int) -> list[Evaluated]:
    """Evaluations at equal distances, whose AUC grows by 0.1 for each factor e of samples."""
    samples = [1000 * number // num for number in range(1, num + 1)]
    return [replace(FINAL, samples=each, auc=0.1 * math.log(each), final=False) for each in samples]


def test_the_slope_is_of_the_curve() -> None:
    """The final evaluation is of other samples and no point of the curve."""
    found = evaluation_results([*_curve(20), FINAL])
    assert found["auc_per_log_sample"] == pytest.approx(0.1)
    assert found["ne"] == 0.9
    assert evaluation_results([FINAL])["auc_per_log_sample"] is None
    assert evaluation_results(_curve(3)) == {}


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
        old: dict[str, Any] = {what: OLD}
        new: dict[str, Any] = {what: NEW}
        both = _grid(tmp_path / what, **old)
        for seed in range(2):
            for strategy in ("none", "full") if what == "data" else ("full",):
                write_run(both / f"{strategy}{seed}", made_config(strategy, seed=seed), **new, auc=-0.1)
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
    assert {item.group: len(item.pairs) for item in comparisons([tmp_path / "both"], "full")} == {
        "partial, data (digest 1a2b3c4d)": 1,
        "partial, data (digest 9f8e7d6c)": 2,
    }
    write_run(tmp_path / "both" / "twin", made_config("full", seed=1), data=NEW, auc=-0.1)
    file = tmp_path / "both" / "twin" / "events.jsonl"
    file.write_text(file.read_text().replace('"config_hash":"', '"config_hash":"f', 1))
    reseal(file.parent)
    assert [len(item.pairs) for item in comparisons([tmp_path / "both"], "full")] == [1, 1]
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
