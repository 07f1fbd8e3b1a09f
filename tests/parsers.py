"""Every parser of the harness, with sound inputs and what it promises, for fuzzers.

A parser reads the file at ``path``. What it accepts it can write, and reads what it wrote as the same value.
"""

import json
import math
import shutil
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from harness.config.experiment import load_config, load_experiment
from harness.config.model import Config
from harness.config.yaml_file import to_yaml
from harness.core.errors import UserError
from harness.data.dataset import Dataset
from harness.data.prepare import prepare
from harness.data.records import META_NAME, RECORDS_NAME, Source, Synthetic, read_meta, write_meta
from harness.data.sidecar import SUFFIX, read_sidecar
from harness.store import FileRecord, Manifest, ShardStore, read_state
from harness.traces.importers import FORMATS, read_log
from harness.traces.importers.findings import LogFormat
from harness.traces.regime import draw
from harness.traces.trace import Trace, read_trace, to_text
from tests.damage import Rng
from tests.data import logs
from tests.made_runs import made_config
from tests.parser import Parser, same
from tests.record_parsers import RECORD_PARSERS, drawn_config
from tests.store.helpers import rows_of, write_files
from tests.traces.made_logs import WRITERS, check_clean, made

ROOT = Path(__file__).resolve().parents[1]

# --- configurations ---------------------------------------------------------------------------------------------------

_EXPERIMENTS = sorted(path for path in (ROOT / "experiments").rglob("*.yaml") if path.stat().st_size < 2000)
_OVERRIDES = (
    "strategy.name=cpr_mfu", "strategy.r=0.125", "trainer.batch_size=64", "seed=3", "cluster.num_ps=4", "out=runs/x",
    "trace.law=at:7+14", "cluster.spares=1", "wandb.mode=offline",
    "profile=busy", "profile.job_h=30.5", "save.mode=async", "engine=rpc", "cache={mode: lookahead, lookahead: 10}",
    "model.top_mlp=[64, 1]", "data.max_train_samples=null", "eval.points=4", "name=x",
)  # fmt: skip


def _read_config(path: Path) -> None:
    config = load_config(path)
    again = path.with_name("again.yaml")
    again.write_text(to_yaml(config.model_dump(mode="json")), encoding="utf-8")
    same(load_config(again), config)


def _experiment(rng: Rng) -> bytes:
    return _EXPERIMENTS[rng.integers(len(_EXPERIMENTS))].read_bytes()


def _read_experiment(path: Path) -> None:
    experiment = load_experiment(path, cell_hash=Config.model_dump_json)
    again = path.with_name("again.yaml")
    again.write_text(to_yaml(experiment.resolved), encoding="utf-8")
    same(load_experiment(again, cell_hash=Config.model_dump_json).cells, experiment.cells)


def _override(rng: Rng) -> bytes:
    return _OVERRIDES[rng.integers(len(_OVERRIDES))].encode()


def _read_override(path: Path) -> None:
    file = path.with_name("base.yaml")
    file.write_bytes(_base_config())
    load_config(file, [path.read_bytes().decode(errors="surrogateescape")])  # as Python reads a command line


@cache
def _base_config() -> bytes:
    return to_yaml(made_config("cpr_mfu", trace={"path": None}).model_dump(mode="json")).encode()


# --- failures ---------------------------------------------------------------------------------------------------------

_TRACES = sorted(path for path in (ROOT / "failure_traces").glob("*.csv") if path.stat().st_size < 4000)
_LAWS = ("exponential", "fixed:2", "fixed:5@7.5", "at:7+14", "fit:failure_traces/busy.csv", "llama3")


def _trace(rng: Rng) -> bytes:
    if rng.random() < 0.1:
        return b"hour,rank,phase,fault\n1.5,host1,,\n2.5,ps0,save,kill\n3.5,host2,boundary,kill\n4,2,,hang\n"
    return _TRACES[rng.integers(len(_TRACES))].read_bytes()


def _read_trace(path: Path) -> None:
    trace = read_trace(path)
    assert all(entry.hour >= 0 and math.isfinite(entry.hour) for entry in trace.entries)
    again = path.with_name("again.csv")
    again.write_text(to_text(trace), encoding="utf-8")
    once = read_trace(again)
    same(_as_written(once), _as_written(trace))


def _as_written(trace: Trace) -> list[Any]:
    """Hours to the 12 digits that are written, words without the blanks around them; lines and empty columns aside."""
    return [
        [
            (f"{entry.hour:.12g}", entry.who, {name: text for name, text in entry.extra.items() if text})
            for entry in trace.entries
        ],
        {key: " ".join(text.split()) for key, text in trace.header.items()},
    ]


def _law(rng: Rng) -> bytes:
    return _LAWS[rng.integers(len(_LAWS))].encode()


def _read_law(path: Path) -> None:
    law, job = path.read_bytes().decode(errors="surrogateescape"), made_config().emulated
    trace = draw(law, job, 8, seed=1)
    assert [e.hour for e in trace.entries] == sorted(e.hour for e in trace.entries if job.job_h >= e.hour >= 0)
    same(draw(law, job, 8, seed=1), trace)


def _log(format: str, rng: Rng) -> bytes:
    return WRITERS[format](made(rng)).encode()


def _read_log(format: str, path: Path) -> None:
    check_clean(read_log(path, LogFormat(format=format)), format, path.read_bytes())


# --- data -------------------------------------------------------------------------------------------------------------

_NUM_ROWS = 14
_LOG = Source(name="log.tsv", num_bytes=14, xxh3="0123456789abcdef")


def _rows(rng: Rng) -> bytes:
    return logs.to_text(logs.random_rows(_NUM_ROWS, int(rng.integers(1000))))


def _read_rows(path: Path) -> None:
    out = path.with_name("prepared")
    shutil.rmtree(out, ignore_errors=True)
    meta = prepare([path], out)
    same(read_meta(out), meta)


@cache
def _data() -> dict[str, bytes]:
    """The files of a prepared folder, by name."""
    with TemporaryDirectory() as name:
        folder = Path(name) / "data"
        logs.write_folder(folder, _NUM_ROWS)
        return {path.name: path.read_bytes() for path in folder.iterdir()}


def _folder(path: Path, name: str) -> Path:
    """A prepared folder with the file ``name`` replaced by that at ``path``."""
    folder = path.with_name("data")
    folder.mkdir(exist_ok=True)
    for each, content in {**_data(), name: path.read_bytes()}.items():
        (folder / each).write_bytes(content)
    return folder


def _read_meta(path: Path) -> None:
    folder = _folder(path, META_NAME)
    meta = read_meta(folder)
    write_meta(folder, meta)
    same(read_meta(folder), meta)


def _read_records(path: Path) -> None:
    Dataset.open(_folder(path, RECORDS_NAME), split="dlrm", seed=0).verify()
    same(path.read_bytes(), _data()[RECORDS_NAME])


def _sidecar(rng: Rng) -> bytes:
    made_by = Synthetic(rows=14, seed=int(rng.integers(100)), like="kaggle", law="0", taper=0.5, flat=False)
    values = {"num_bytes": _LOG.num_bytes, "xxh3": _LOG.xxh3, "synthetic": made_by.model_dump()}
    return json.dumps(values, indent=1).encode() + b"\n"


def _read_sidecar(path: Path) -> None:
    shutil.copyfile(path, path.with_name(_LOG.name + SUFFIX))
    found = read_sidecar(path.with_name(_LOG.name), _LOG)
    assert found is None or (abs(found.rows) < 2**40 and abs(found.seed) < 2**40 and found.taper < 2**40), found


# --- checkpoints ------------------------------------------------------------------------------------------------------


@cache
def _checkpoint() -> tuple[Manifest, dict[str, bytes]]:
    """A manifest, and its files by path."""
    with TemporaryDirectory() as name:
        made_by = write_files(Path(name), 1)
        return made_by, {record.path: (Path(name) / record.path).read_bytes() for record in made_by.files}


def _read_manifest(path: Path) -> None:
    found = Manifest.from_text(path.read_bytes().decode(errors="replace"), str(path))
    same(found, _checkpoint()[0])
    same(Manifest.from_text(found.to_text(), str(path)), found)


def _shard() -> FileRecord:
    return _checkpoint()[0].shards["ps0"][0]


def _dense() -> FileRecord:
    return _checkpoint()[0].trainer


def _read_content(record: FileRecord, read: Callable[[Path, FileRecord], Any], path: Path) -> None:
    (path.parent / record.path).parent.mkdir(exist_ok=True)
    shutil.copyfile(path, path.parent / record.path)
    read(path.parent, record)
    same(path.read_bytes(), _checkpoint()[1][record.path])


def _read_shard(root: Path, record: FileRecord) -> None:
    ShardStore(root, "ps0").read_into((record,), torch.empty_like(rows_of(0)))


PARSERS: Mapping[str, Parser] = {
    "configuration": Parser(drawn_config, _read_config),
    "experiment": Parser(_experiment, _read_experiment),
    "override": Parser(_override, _read_override),
    "trace": Parser(_trace, _read_trace),
    "law": Parser(_law, _read_law),
    **{f"log {format}": Parser(partial(_log, format), partial(_read_log, format)) for format in FORMATS},
    "rows": Parser(_rows, _read_rows),
    "meta": Parser(lambda _: _data()[META_NAME], _read_meta),
    "records": Parser(lambda _: _data()[RECORDS_NAME], _read_records),
    "sidecar": Parser(_sidecar, _read_sidecar),
    "manifest": Parser(lambda _: _checkpoint()[0].to_text().encode(), _read_manifest),
    "shard": Parser(lambda _: _checkpoint()[1][_shard().path], lambda p: _read_content(_shard(), _read_shard, p)),
    "dense": Parser(lambda _: _checkpoint()[1][_dense().path], lambda p: _read_content(_dense(), read_state, p)),
    **RECORD_PARSERS,
}
"""By name."""


@dataclass(frozen=True)
class Verdict:
    """What became of one input: whether it was accepted, what was wrong, and the CPU seconds that it took."""

    accepted: bool
    wrong: str | None
    seconds: float


def judge(name: str, folder: Path, content: bytes) -> Verdict:
    """Have the parser read ``content``. Wrong is an exception that is no UserError, and a message that misleads."""
    path = folder / "input"
    path.write_bytes(content)
    began_s = time.process_time()
    accepted, wrong = False, None
    try:
        PARSERS[name].read(path)
        accepted = True
    except UserError as error:
        wrong = _complaint(str(error))
    except Exception as error:  # noqa: BLE001 - the finding
        wrong = "".join(traceback.format_exception_only(error)).strip() + _place(error)
    return Verdict(accepted, wrong, time.process_time() - began_s)


def _complaint(message: str) -> str | None:
    """What is wrong with an error message: each mistake is one printable line of moderate length."""
    for line in message.split("\n"):
        if not line.isprintable() or not line.strip():
            return f"a message that is not printable: {line!r:.200}"
        if len(line) > _MOST_CHARACTERS:
            return f"a message of {len(line)} characters: {line:.200}"
    return None


def _place(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f" ({frame.filename}:{frame.lineno})"


_MOST_CHARACTERS = 700
