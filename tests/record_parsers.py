"""The parsers of what a run leaves behind, and of what is kept about runs (tests/parsers.py has all others)."""

import json
import shutil
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import analysis
from analysis.claims.claim import Benchmark
from harness.cli.benchmark_runs import BenchmarkRun
from harness.config.yaml_file import to_yaml
from harness.core.errors import UserError
from harness.core.resumable import EventsPosition
from harness.record.code import current_code
from harness.record.event_log import EventLog
from harness.record.recorder import to_line
from harness.record.rundir import RunDir, is_sealed, read_config, verify
from harness.store import ResumePoint, read_state, write_state
from harness.store.manifest import FileRecord
from harness.wandb.facts import facts_of, read_facts
from harness.wandb.history import History
from harness.wandb.sent import mark_sent, sent_marker
from tests.damage import Rng
from tests.made_runs import made_config, made_events, write_run
from tests.parser import Parser, same

# --- a run that failed, whose files are not sealed --------------------------------------------------------------------


def drawn_config(rng: Rng) -> bytes:
    """The resolved config of a run."""
    names = ("none", "full", "cpr_vanilla", "cpr_mfu", "cpr_ssu", "cpr_mirror", "buddy")
    config = made_config(names[rng.integers(len(names))], seed=int(rng.integers(100)))
    return to_yaml(config.model_dump(mode="json")).encode()


@cache
def _events(seed: int) -> bytes:
    return "".join(map(to_line, made_events(made_config(seed=seed)))).encode()


def _environment(rng: Rng) -> bytes:
    values: dict[str, Any] = {
        "num_threads": int(rng.integers(100)),
        "code": current_code().to_json(),
        "git": {"commit": "0" * 40, "dirty": False},
        "data": {"digest": "0" * 16, "num_samples": 14, "synthetic": None},
        "trace": {"digest": "1" * 16},
        "load_average": [0.5, 0.25, 0.125],
    }
    return json.dumps(values, indent=1).encode()


@cache
def _finished() -> dict[str, bytes]:
    """The files of a finished run, by name."""
    with TemporaryDirectory() as name:
        write_run(Path(name) / "run", made_config(), data="0" * 16)
        return {path.name: path.read_bytes() for path in (Path(name) / "run").iterdir()}


def _run(path: Path, name: str) -> RunDir:
    """The directory of a finished run in which the file at ``path`` is in the place of ``name``."""
    run = RunDir(path.with_name("runs") / "run")
    run.path.mkdir(parents=True, exist_ok=True)
    for each, content in {**_finished(), name: path.read_bytes()}.items():
        (run.path / each).write_bytes(content)
    return run


def _read_export(run: RunDir) -> None:
    """Make what wandb shows of a run."""
    if (facts := read_facts(run, {})) is not None:
        history = History(facts.config["profile"]["job_h"])
        for event in EventLog.of(run).events:
            history.rows(event)
            history.summary(event)


def _read_failed(name: str, path: Path) -> None:
    """Whatever shows a run that is not sealed: each reads it, or refuses it. The first refusal is raised."""
    run = _run(path, name)
    run.done.rename(run.error)
    refusals: list[UserError] = []
    for read in (lambda: _read_export(run), lambda: analysis.show(run.path), lambda: analysis.load(run.path.parent)):
        try:
            read()
        except UserError as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]


def _read_events(path: Path) -> None:
    record = EventLog.read(path)
    again = path.with_name("again.jsonl")
    again.write_text("".join(map(to_line, record.events)), encoding="utf-8")
    same(EventLog.read(again).events, record.events)
    _read_failed("events.jsonl", path)


def _read_run_config(path: Path) -> None:
    run_dir = path.with_name("again")
    run_dir.mkdir(exist_ok=True)
    shutil.copyfile(path, RunDir(run_dir).config)
    values = read_config(run_dir)
    RunDir(run_dir).config.write_text(to_yaml(values), encoding="utf-8")
    same(read_config(run_dir), values)
    _read_failed("config.yaml", path)


def _read_seal(path: Path) -> None:
    run = _run(path, "DONE")
    verify(run)
    if is_sealed(run):
        same(path.read_bytes(), _finished()["DONE"])


# --- resume points ----------------------------------------------------------------------------------------------------


def _point(rng: Rng) -> bytes:
    record = _state()[0]
    point = ResumePoint(
        number=3,
        step=int(rng.integers(100)),
        config_hash="0" * 16,
        code="1" * 16,
        events=EventsPosition(num_bytes=100, num_events=3, digest="2" * 32),
        checkpoint=1,
        files={"ps0": record},
        supervisor={"carried_out": [0], "generation": 1},
    )
    return point.to_text().encode()


def _read_point(path: Path) -> None:
    point = ResumePoint.from_text(path.read_bytes().decode(errors="replace"), str(path))
    same(ResumePoint.from_text(point.to_text(), str(path)), point)


@cache
def _state() -> tuple[FileRecord, bytes]:
    """The record of a state file, and its content."""
    state = {"rows": torch.arange(6.0).reshape(2, 3), "bits": np.array([1, 7], np.uint64), "plain": [None, 0.5, "x"]}
    with TemporaryDirectory() as name:
        record = write_state(Path(name), "ps0", 3, 30, state, fsync=False)
        return record, (Path(name) / record.path).read_bytes()


def _read_state(path: Path) -> None:
    record, content = _state()
    (path.parent / record.path).parent.mkdir(exist_ok=True)
    shutil.copyfile(path, path.parent / record.path)
    read_state(path.parent, record)
    same(path.read_bytes(), content)


# --- wandb, benchmarks ------------------------------------------------------------------------------------------------


@cache
def _marker() -> bytes:
    with TemporaryDirectory() as name:
        run = RunDir(Path(name))
        facts = facts_of(run, made_config(), "0" * 16)
        mark_sent(run, facts, digest="1" * 16, server="https://api.wandb.ai", url="https://wandb.ai/us/it/runs/1")
        return (run.wandb / "sent.json").read_bytes()


def _read_marker(path: Path) -> None:
    run = RunDir(path.with_name("sent"))
    run.wandb.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, run.wandb / "sent.json")
    found = sent_marker(run)
    assert found.get("url") is None or found["url"].partition("/runs/")


@cache
def _results() -> bytes:
    with TemporaryDirectory() as name:
        run = BenchmarkRun(Benchmark(script=Path("benchmarks/wire.py")), Path(name) / "it.json", "data")
        machine = {"code": None, "time": "2026-11-23", "cpu": "x", "num_cores": 2, "load_average": [0.5]}
        run.keep({"machine": machine, "results": [{"value": 3}]})
        return run.file.read_bytes()


def _read_results(path: Path) -> None:
    run = BenchmarkRun(Benchmark(script=Path("benchmarks/wire.py")), path, "data")
    same([run.results(), run.difference()], [[{"value": 3}], "code not recorded"])
    assert run.machine()


RECORD_PARSERS: Mapping[str, Parser] = {
    "events": Parser(lambda rng: _events(int(rng.integers(3))), _read_events),
    "configuration of a run": Parser(drawn_config, _read_run_config),
    "environment of a run": Parser(_environment, partial(_read_failed, "env.json")),
    "seal": Parser(lambda _: _finished()["DONE"], _read_seal),
    "resume point": Parser(_point, _read_point),
    "state": Parser(lambda _: _state()[1], _read_state),
    "sent marker": Parser(lambda _: _marker(), _read_marker),
    "results of a benchmark": Parser(lambda _: _results(), _read_results),
}
"""By name."""
