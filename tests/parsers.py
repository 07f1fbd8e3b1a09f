"""Every parser of the harness, with sound inputs and what it promises.

A parser reads the file at ``path``. What it accepts it can write, and reads what it wrote as the same value.
"""

import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import analysis
from analysis.claims.claim import Benchmark
from harness.cli.inputs import BenchmarkRun
from harness.config.experiment import load_config, load_experiment
from harness.config.model import Config
from harness.config.yaml_file import to_yaml
from harness.core.errors import UserError
from harness.core.resumable import EventsPosition
from harness.core.seeds import generator
from harness.data.dataset import Dataset
from harness.data.delimited import read_schema
from harness.data.prepare import prepare
from harness.data.records import META_NAME, RECORDS_NAME, Source, Synthetic, read_meta, write_meta
from harness.data.sources import SUFFIX, read_sidecar
from harness.record.event_log import EventLog
from harness.record.recorder import to_line
from harness.record.rundir import RunDir, read_config, verify
from harness.store import FileRecord, FileStore, Manifest, ResumePoint, read_state, write_state
from harness.traces.draw import draw
from harness.traces.importers import FORMATS, read_log
from harness.traces.importers.findings import LogFormat
from harness.traces.trace import Trace, read_trace, to_text
from harness.wandb.facts import facts_of, mark_sent, read_facts, sent_marker
from harness.wandb.history import History
from tests.data import logs
from tests.made_runs import made_config, write_run
from tests.store.helpers import rows_of, write_files
from tests.traces.made_logs import WRITERS, check_clean, made


@dataclass(frozen=True)
class Parser:
    """``sound``: inputs that are accepted. ``read``: reads the file and checks what it promises; raises UserError."""

    sound: SearchStrategy[bytes]
    read: Callable[[Path], Any]


ROOT = Path(__file__).resolve().parents[1]


def same(one: Any, other: Any) -> None:
    """Raise AssertionError unless both are equal; a NaN equals itself."""
    assert repr(one) == repr(other), f"read again: {one!r:.300} is not {other!r:.300}"


def again(path: Path, text: str) -> Path:
    """A file beside ``path`` with what was read from it, as it is written."""
    file = path.with_name(f"again{path.suffix}")
    file.write_text(text, encoding="utf-8")
    return file


def placed(path: Path, name: str, files: Mapping[str, bytes] = MappingProxyType({})) -> Path:
    """A folder of ``files``, by path, in which the file at ``path`` is in the place of ``name``."""
    folder = path.with_name("runs") / "run"
    for each, content in {**files, name: path.read_bytes()}.items():
        (folder / each).parent.mkdir(parents=True, exist_ok=True)
        (folder / each).write_bytes(content)
    return folder


def _contents(pattern: str, *, below: int) -> list[bytes]:
    """Of the files of the repository that are smaller than ``below`` bytes."""
    return [path.read_bytes() for path in sorted(ROOT.glob(pattern)) if path.stat().st_size < below]


def _made(write: Callable[[Path], object]) -> dict[str, bytes]:
    """The files that ``write`` makes in a folder, by path."""
    with TemporaryDirectory() as name:
        root = Path(name)
        write(root / "it")
        files = (path for path in (root / "it").rglob("*") if path.is_file())
        return {str(path.relative_to(root / "it")): path.read_bytes() for path in files}


# --- a run that failed, whose files are not sealed --------------------------------------------------------------------


_CONFIGS = st.builds(
    lambda name, seed: to_yaml(made_config(name, seed=seed).model_dump(mode="json")).encode(),
    st.sampled_from(["none", "full", "cpr_vanilla", "cpr_mfu", "cpr_ssu", "cpr_mirror", "buddy"]),
    st.integers(0, 99),
)
"""Resolved configs of runs."""


@cache
def _finished() -> dict[str, bytes]:
    """The files of a finished run, by name."""
    return _made(lambda path: write_run(path, made_config(), data="0" * 16))


def _read_export(run: RunDir) -> None:
    """Make what wandb shows of a run."""
    if (facts := read_facts(run, {})) is not None:
        history = History(facts.config["profile"]["job_h"])
        for event in EventLog.of(run).events:
            history.rows(event)
            history.summary(event)


def _read_failed(name: str, path: Path) -> None:
    """Whatever shows a run that is not sealed: each reads it, or refuses it. The first refusal is raised."""
    run = RunDir(placed(path, name, _finished()))
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
    same(EventLog.read(again(path, "".join(map(to_line, record.events)))).events, record.events)
    _read_failed("events.jsonl", path)


def _read_run_config(path: Path) -> None:
    run_dir = placed(path, "config.yaml")
    values = read_config(run_dir)
    RunDir(run_dir).config.write_text(to_yaml(values), encoding="utf-8")
    same(read_config(run_dir), values)
    _read_failed("config.yaml", path)


def _read_seal(path: Path) -> None:
    run = RunDir(placed(path, "DONE", _finished()))
    verify(run)
    same(path.read_bytes(), _finished()["DONE"])


# --- resume points ----------------------------------------------------------------------------------------------------


def _point() -> bytes:
    point = ResumePoint(
        number=3,
        step=30,
        config_hash="0" * 16,
        code="1" * 16,
        store="files",
        events=EventsPosition(num_bytes=100, num_events=3, digest="2" * 32),
        checkpoint=1,
        files={"ps0": _state()[0]},
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
    read_state(placed(path, record.path), record)
    same(path.read_bytes(), content)


# --- wandb, benchmarks ------------------------------------------------------------------------------------------------


@cache
def _marker() -> bytes:
    def mark(path: Path) -> None:
        path.mkdir()
        run = RunDir(path)
        facts = facts_of(run, made_config().model_dump(mode="json"), "0" * 16)
        mark_sent(run, facts, digest="1" * 16, server="https://api.wandb.ai", url="https://wandb.ai/us/it/runs/1")

    return _made(mark)["wandb/sent.json"]


def _read_marker(path: Path) -> None:
    found = sent_marker(RunDir(placed(path, "wandb/sent.json")))
    assert found.get("url") is None or found["url"].partition("/runs/")


@cache
def _results() -> bytes:
    with TemporaryDirectory() as name:
        run = BenchmarkRun(
            Benchmark(script=Path("experiments/claims/wire_benchmark.py")), Path(name) / "it.json", "data"
        )
        machine = {"code": None, "time": "2026-11-23", "cpu": "x", "num_cores": 2, "load_average": [0.5]}
        run.keep({"machine": machine, "results": [{"value": 3}]})
        return run.file.read_bytes()


def _read_results(path: Path) -> None:
    run = BenchmarkRun(Benchmark(script=Path("experiments/claims/wire_benchmark.py")), path, "data")
    same([run.results(), run.difference()], [[{"value": 3}], "code not recorded"])
    assert run.machine()


# --- configurations ---------------------------------------------------------------------------------------------------

_EXPERIMENTS = _contents("experiments/**/*.yaml", below=2000)
_OVERRIDES = (
    "strategy.name=cpr_mfu", "strategy.r=0.125", "trainer.batch_size=64", "seed=3", "cluster.num_ps=4", "out=runs/x",
    "trace.law={model: at, hours: [7, 14]}", "cluster.spares=1", "wandb.mode=offline",
    "profile=busy", "profile.job_h=30.5", "save.mode=async", "engine=rpc", "cache={mode: lookahead, lookahead: 10}",
    "model.top_mlp=[64, 1]", "data.max_train_samples=null", "eval.points=4", "name=x",
)  # fmt: skip


def _read_config(path: Path) -> None:
    config = load_config(path)
    same(load_config(again(path, to_yaml(config.model_dump(mode="json")))), config)


def _read_experiment(path: Path) -> None:
    experiment = load_experiment(path, cell_hash=Config.model_dump_json)
    file = again(path, to_yaml(experiment.resolved))
    same(load_experiment(file, cell_hash=Config.model_dump_json).cells, experiment.cells)


def _read_override(path: Path) -> None:
    file = path.with_name("base.yaml")
    file.write_bytes(_base_config())
    load_config(file, [path.read_bytes().decode(errors="surrogateescape")])  # as Python reads a command line


@cache
def _base_config() -> bytes:
    return to_yaml(made_config("cpr_mfu", trace={"path": None}).model_dump(mode="json")).encode()


# --- failures ---------------------------------------------------------------------------------------------------------

_TRACES = [
    b"hour,rank,phase,fault\n1.5,host1,,\n2.5,ps0,save,kill\n3.5,host2,boundary,kill\n4,2,,hang\n",
    *_contents("failure_traces/*.csv", below=4000),
]
_LAWS = (
    *("exponential", "llama3", "{base: spot_p3, mtbf_h: 3}", "{model: fixed, number: 5, within_h: 7.5}"),
    *("{model: at, hours: [7, 14]}", "{model: fit, trace: failure_traces/busy.csv}"),
    "{model: weibull, shape: 0.7, group_probability: 0.5, group_sizes: [[2, 3], [4, 1]]}",
)


def _read_trace(path: Path) -> None:
    trace = read_trace(path)
    assert all(entry.hour >= 0 and math.isfinite(entry.hour) for entry in trace.entries)
    same(_as_written(read_trace(again(path, to_text(trace)))), _as_written(trace))


def _as_written(trace: Trace) -> list[Any]:
    """Hours to the 12 digits that are written, words without the blanks around them; lines and empty columns aside."""
    return [
        [
            (f"{entry.hour:.12g}", entry.who, {name: text for name, text in entry.extra.items() if text})
            for entry in trace.entries
        ],
        {key: " ".join(text.split()) for key, text in trace.header.items()},
    ]


def _read_law(path: Path) -> None:
    config = load_config(None, [f"trace.law={path.read_bytes().decode(errors='surrogateescape')}"])
    law, job = config.trace.law, config.profile
    if law is not None:
        trace = draw(law, job, 8, seed=1)
        assert [e.hour for e in trace.entries] == sorted(e.hour for e in trace.entries if job.job_h >= e.hour >= 0)
        same(draw(law, job, 8, seed=1), trace)


def _read_log(format: str, path: Path) -> None:
    check_clean(read_log(path, LogFormat(format=format)), format, path.read_bytes())


# --- data -------------------------------------------------------------------------------------------------------------

_NUM_ROWS = 14
_LOG = Source(name="log.tsv", num_bytes=14, xxh3="0123456789abcdef")


def _read_rows(path: Path) -> None:
    out = path.with_name("prepared")
    shutil.rmtree(out, ignore_errors=True)
    meta = prepare([path], out)
    same(read_meta(out), meta)


@cache
def _data() -> dict[str, bytes]:
    """The files of a prepared folder, by name."""
    return _made(lambda path: logs.write_folder(path, _NUM_ROWS))


def _read_meta(path: Path) -> None:
    folder = placed(path, META_NAME, _data())
    meta = read_meta(folder)
    write_meta(folder, meta)
    same(read_meta(folder), meta)


def _read_records(path: Path) -> None:
    Dataset.open(placed(path, RECORDS_NAME, _data()), split="dlrm", seed=0).verify()
    same(path.read_bytes(), _data()[RECORDS_NAME])


def _sidecar() -> bytes:
    made_by = Synthetic(rows=14, seed=3, like="kaggle", law="0", taper=0.5, flat=False)
    values = {"num_bytes": _LOG.num_bytes, "xxh3": _LOG.xxh3, "synthetic": made_by.model_dump()}
    return json.dumps(values, indent=1).encode() + b"\n"


def _read_sidecar(path: Path) -> None:
    shutil.copyfile(path, path.with_name(_LOG.name + SUFFIX))
    found = read_sidecar(path.with_name(_LOG.name), _LOG)
    assert found is None or (abs(found.rows) < 2**40 and abs(found.seed) < 2**40 and found.taper < 2**40), found


_SCHEMA = b"separator: ;\nheader: false\nlabel: 1\ndense: {2: log1p, 3: none}\ncategories: [4, 5]\nmissing: [none]\n"


def _read_schema(path: Path) -> None:
    schema = read_schema(path)
    same(read_schema(again(path, to_yaml(schema.model_dump(mode="json")))), schema)


# --- checkpoints ------------------------------------------------------------------------------------------------------


@cache
def _checkpoint() -> tuple[Manifest, dict[str, bytes]]:
    """A manifest, and its files by path."""
    found: list[Manifest] = []
    files = _made(lambda path: (path.mkdir(), found.append(write_files(path, 1))))
    return found[0], files


def _read_manifest(path: Path) -> None:
    found = Manifest.from_text(path.read_bytes().decode(errors="replace"), str(path))
    same(found, _checkpoint()[0])
    same(Manifest.from_text(found.to_text(), str(path)), found)


def _content(rank: str) -> bytes:
    """The shard's file, or the trainer's."""
    return next(content for path, content in _checkpoint()[1].items() if path.startswith(rank))


def _read_content(rank: str, path: Path) -> None:
    record = next(record for record in _checkpoint()[0].files if record.path.startswith(rank))
    root = placed(path, record.path)
    if rank == "ps0":
        FileStore(root).read_rows((record,), torch.empty_like(rows_of(0)))
    else:
        read_state(root, record)
    same(path.read_bytes(), _content(rank))


def _log(format: str, seed: int) -> bytes:
    return WRITERS[format](made(generator(seed, format))).encode()


_SEEDS = st.integers(0, 999)

PARSERS: Mapping[str, Parser] = {
    "configuration": Parser(_CONFIGS, _read_config),
    "experiment": Parser(st.sampled_from(_EXPERIMENTS), _read_experiment),
    "override": Parser(st.sampled_from(_OVERRIDES).map(str.encode), _read_override),
    "trace": Parser(st.sampled_from(_TRACES), _read_trace),
    "law": Parser(st.sampled_from(_LAWS).map(str.encode), _read_law),
    **{
        f"log {format}": Parser(st.builds(_log, st.just(format), _SEEDS), partial(_read_log, format))
        for format in FORMATS
    },
    "rows": Parser(st.builds(lambda seed: logs.to_text(logs.random_rows(_NUM_ROWS, seed)), _SEEDS), _read_rows),
    "meta": Parser(st.builds(lambda: _data()[META_NAME]), _read_meta),
    "records": Parser(st.builds(lambda: _data()[RECORDS_NAME]), _read_records),
    "schema": Parser(st.just(_SCHEMA), _read_schema),
    "sidecar": Parser(st.builds(_sidecar), _read_sidecar),
    "manifest": Parser(st.builds(lambda: _checkpoint()[0].to_text().encode()), _read_manifest),
    "shard": Parser(st.builds(_content, st.just("ps0")), partial(_read_content, "ps0")),
    "dense": Parser(st.builds(_content, st.just("trainer0")), partial(_read_content, "trainer0")),
    "events": Parser(st.builds(lambda: _finished()["events.jsonl"]), _read_events),
    "configuration of a run": Parser(_CONFIGS, _read_run_config),
    "environment of a run": Parser(st.builds(lambda: _finished()["env.json"]), partial(_read_failed, "env.json")),
    "seal": Parser(st.builds(lambda: _finished()["DONE"]), _read_seal),
    "resume point": Parser(st.builds(_point), _read_point),
    "state": Parser(st.builds(lambda: _state()[1]), _read_state),
    "sent marker": Parser(st.builds(_marker), _read_marker),
    "results of a benchmark": Parser(st.builds(_results), _read_results),
}
"""By name."""
