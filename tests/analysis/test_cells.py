"""Run directories as a frame."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from markupsafe import escape

import analysis
from analysis.load import COLUMNS, lost_dense_samples
from harness.core.errors import StoreError
from harness.core.events import Finished, Recovered
from harness.record.event_log import read_events
from tests.analysis.shown import shown
from tests.made_runs import altered, made_config, made_events, unseal, write_run
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


def test_a_cell_counts_once_however_many_folders_hold_it(tmp_path: Path) -> None:
    """Copies of three seeds in a second grid change neither the number of seeds nor an interval."""
    for folder in ("a", "b"):
        for seed in range(3):
            write_run(tmp_path / folder / f"none-s{seed}", made_config("none", seed=seed))
    frame = analysis.load(tmp_path)
    assert frame["status"].value_counts().to_dict() == {"done": 3, "copy": 3}
    [line], [alone] = (analysis.blocks_of(analysis.load(path))[0].lines for path in (tmp_path, tmp_path / "a"))
    assert line.estimate("auc") == alone.estimate("auc")
    assert frame["failure"].dropna().str.startswith("the same cell as ").all()


def test_unknown_update_pls_stays_unknown(tmp_path: Path) -> None:
    """Null in the record is NaN in the frame."""
    write_run(tmp_path / "run", made_config())
    unseal(tmp_path / "run")
    file = tmp_path / "run" / "events.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    unknown = dict.fromkeys(("update_pls", "update_pls_tracked", "applied_updates", "lost_updates"))
    lines[-1] |= unknown | dict.fromkeys(("applied_tracked", "lost_tracked"))
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    row = analysis.load(tmp_path).iloc[0]
    assert pd.isna(row["update_pls"])
    assert pd.isna(row["disagreement"])


@pytest.mark.parametrize(
    ("cells", "keys"),
    [
        ([("cpr_mfu", {"out": f"runs/{r}", "seed": int(8 * r), "strategy": {"r": r}}) for r in (0.125, 0.25)], ["r"]),
        ([("full", {}), ("cpr_mfu", {}), ("cpr_ssu", {})], []),  # not because others lack it
        ([("full", {}), ("cpr_mfu", {"strategy": {"r": 0.5}}), ("cpr_ssu", {})], ["r"]),
        ([("full", {"profile": {"base": "busy", "mtbf_h": each}}) for each in (4.0, 5.0)], ["mtbf_h"]),  # of one name
        ([("full", {"profile": "busy"}), ("full", {"profile": "cpr56"})], []),
    ],
)
def test_keys_that_differ_between_cells_are_columns(
    cells: list[tuple[str, dict[str, Any]]], keys: list[str], tmp_path: Path
) -> None:
    """Law: what has its own column, or only names a place, is not."""
    for number, (name, values) in enumerate(cells):
        write_run(tmp_path / f"{number}", made_config(name, **values))
    assert [key.partition(".")[2] for key in analysis.load(tmp_path).columns if "." in key] == keys


def test_a_lie_marks_its_cell(tmp_path: Path) -> None:
    """A record that contradicts itself is named in the frame and in the table."""
    write_run(tmp_path / "honest", made_config(seed=1))
    write_run(tmp_path / "liar", made_config(seed=0))
    unseal(tmp_path / "liar")
    file = tmp_path / "liar" / "events.jsonl"
    finished = made_events(made_config(seed=0))[-1]
    assert isinstance(finished, Finished)
    claim, lie = f'"pls":{finished.pls!r}', '"pls":0.001'
    assert claim in file.read_text()
    file.write_text(file.read_text().replace(claim, lie))
    frame = analysis.load(tmp_path).set_index("cell")
    assert "pls is 0.001" in str(frame.loc["liar", "disagreement"])
    assert pd.isna(frame.loc["honest", "disagreement"])


def test_a_broken_record_is_a_damaged_cell(tmp_path: Path) -> None:
    """One unreadable record is a damaged row that names file and line, and costs no other row."""
    write_run(tmp_path / "a", made_config(seed=0))
    write_run(tmp_path / "b", made_config(seed=1))
    file = tmp_path / "a" / "events.jsonl"
    unseal(tmp_path / "a")
    file.write_text("{\n" + file.read_text())
    frame = analysis.load(tmp_path).set_index("cell")
    assert frame["status"].to_dict() == {"a": "damaged", "b": "done"}
    assert "events.jsonl:1" in str(frame.loc["a", "failure"])


@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize("left", ["events.jsonl", "DONE"])
def test_a_run_that_lost_its_config_is_a_damaged_cell(tmp_path: Path, left: str, is_sealed: bool) -> None:
    """A folder with a record or a result is a run's: it does not vanish from frame, report and story."""
    write_run(tmp_path / "a", made_config(seed=0))
    write_run(tmp_path / "b", made_config(seed=1))
    if not is_sealed:
        unseal(tmp_path / "a")
    for name in {"config.yaml", "events.jsonl", "DONE"} - {left}:
        (tmp_path / "a" / name).unlink()
    frame = analysis.load(tmp_path).set_index("cell")
    assert frame["status"].to_dict() == {"a": "damaged", "b": "done"}
    file = tmp_path / "a" / "config.yaml"
    assert str(frame.loc["a", "failure"]).startswith(f"{file}: ")
    assert str(file) in analysis.report(tmp_path).read_text()
    with pytest.raises(StoreError, match=re.escape(f"{file}: ")):
        analysis.show(tmp_path / "a")


SPOILT: dict[str, tuple[Callable[[list[str]], list[str] | None], str]] = {
    "deleted": (lambda lines: None, "no file"),
    "empty": (lambda lines: [], "no event"),
    "torn first": (lambda lines: [lines[0][:9]], "no event"),
    "torn last": (lambda lines: [*lines[:-1], lines[-1][:-1]], "a eval event at step 400"),
}


def test_done_without_a_result_is_damage(tmp_path: Path) -> None:
    """DONE beside a record without a result is damage, reported with the file in frame, table, story and report."""
    write_run(tmp_path / "well", made_config(seed=9))
    lines: dict[str, str] = {}
    for seed, (name, (spoil, found)) in enumerate(SPOILT.items()):
        write_run(tmp_path / name, made_config(seed=seed))
        unseal(tmp_path / name)
        file = tmp_path / name / "events.jsonl"
        left = spoil(file.read_text().splitlines(keepends=True))
        file.unlink()
        if left is not None:
            file.write_text("".join(left))
        expected = "expected a finish event at the end, as there is a DONE file"
        lines[name] = f"{file}: {expected}; got {found}; remove DONE to rerun"
    assert analysis.is_sound(tmp_path / "well")
    frame = analysis.load(tmp_path)
    told = shown(analysis.show_table(frame))
    for name, line in lines.items():
        row = frame.set_index("cell").loc[name]
        assert (row["status"], row["failure"]) == ("damaged", line)
        assert pd.isna(row["auc"])
        assert not analysis.is_sound(tmp_path / name)
        story = shown(analysis.show(tmp_path / name))
        assert ": damaged\n" in story
        assert line in story
        assert f"damaged: {name}: {line}" in told
    assert "1 done, 4 damaged" in analysis.report(tmp_path).read_text()


def test_impossible_counts_cost_no_table(tmp_path: Path) -> None:
    """A record whose counts cannot be is a disagreement, and no report fails over it."""
    impossible = ({"num_ps": 0, "rank_rows": []}, {"bytes_full": 0}, {"num_steps": 0}, {"rank_rows": []})
    for name, change in zip(("partial", "cpr_vanilla", "cpr_mfu", "cpr_ssu"), impossible, strict=True):
        write_run(tmp_path / name, made_config(name))
        unseal(tmp_path / name)
        file = tmp_path / name / "events.jsonl"
        first, *rest = file.read_text().splitlines(keepends=True)
        file.write_text(json.dumps(json.loads(first) | change) + "\n" + "".join(rest))
    disagreements = analysis.load(tmp_path)["disagreement"]
    assert len(disagreements) == len(impossible)
    assert disagreements.str.startswith("event 1: ").all()
    analysis.report(tmp_path)


NO_CONFIGS = {
    "half": ("seed: 1\n", " name: expected this key, got the keys 'seed'"),
    "torn": ("{", "1: not YAML: "),
    "deep": ("[" * 3000, "1: nested more than 20 levels deep"),
    "word": ("a", " expected the resolved config of a run (a mapping), got str"),
    "wrong": (None, " profile.job_h: expected a valid number, got 'x'"),
}


def test_a_config_that_is_none_is_one_line(tmp_path: Path) -> None:
    """A config.yaml that cannot be used is one line with file and key: a damaged row, and the error of the story."""
    write_run(tmp_path / "well", made_config(seed=1))
    lines: dict[str, str] = {}
    for name, (text, message) in NO_CONFIGS.items():
        write_run(tmp_path / name, made_config())
        unseal(tmp_path / name)
        file = tmp_path / name / "config.yaml"
        file.write_text(text or file.read_text().replace("job_h: 56.0", "job_h: x"))
        with pytest.raises(StoreError) as caught:
            analysis.show(tmp_path / name)
        lines[name] = str(caught.value)
        assert lines[name].startswith(f"{file}:{message}")
        assert "\n" not in lines[name]
        assert analysis.load(tmp_path / name)["status"].to_list() == ["damaged"]
    frame = analysis.load(tmp_path).set_index("cell")
    assert frame["status"].to_dict() == {"well": "done"} | dict.fromkeys(NO_CONFIGS, "damaged")
    page = analysis.report(tmp_path).read_text()
    assert "1 done, 5 damaged" in page
    for name, line in lines.items():
        assert frame.loc[name, "failure"] == line
        assert pd.isna(frame.loc[name, "strategy"])
        assert escape(f"damaged: {name}: {line}") in page


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
    with pytest.raises(StoreError, match="no such folder"):
        analysis.load(tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file: expected a folder, got a file"):
        analysis.load(tmp_path / "file")
    with pytest.raises(StoreError, match="no run found"):
        analysis.load(tmp_path)


def test_whole_numbers_of_any_size_make_a_table(tmp_path: Path) -> None:
    """Law: a config may have a number that pandas has no type for, beside cells where it is null."""
    for name, num in (("huge", 2**63), ("null", None)):
        write_run(tmp_path / name, made_config("full", strategy={"interval_samples": num}))
    frame = analysis.load(tmp_path).set_index("cell")
    assert int(frame.loc["huge", "strategy.interval_samples"]) == 2**63
    assert pd.isna(frame.loc["null", "strategy.interval_samples"])


def test_whole_numbers_and_null_read_as_in_the_config(tmp_path: Path) -> None:
    """In titles, columns and comparisons, beside cells where the key is null or missing."""
    for num in (10_000, 20_000_000, None):
        for strategy in ("full", "partial"):
            config = made_config(strategy, data={"max_train_samples": num})
            write_run(tmp_path / f"{strategy}-{num}", config)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.yaml").write_text("{")
    titles = [block.title for block in analysis.blocks_of(analysis.load(tmp_path))]
    key = "data.max_train_samples"
    assert titles == [f"{key} 10000", f"{key} 20000000", f"{key} null"]
    groups = shown(analysis.show_comparison_to(tmp_path, "full"))
    assert f"partial, {key} 20000000" in groups
    assert "10000.0" not in groups + shown(analysis.show_table(analysis.load(tmp_path)))
