"""Runs the examples of docs/EXTENDING.md in a process of its own, whose tables they are entered in.

``check_all`` is the body of tests/test_extending.py. Each ``check_…`` asserts what must hold of an example; runs
go below its folder.
"""

import json
import math
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = ROOT / "experiments" / "plugins"
"""The examples of docs/EXTENDING.md."""


def load_strategies() -> None:
    """Run the examples that define strategies and models, before the configuration is made from their tables."""
    from harness.core import strategies

    known = set(strategies.STRATEGIES)
    for name in ("last_hour", "incremental", "from_zero", "logistic", "bucket"):
        import_module(name)  # ranks import functions of requests, and the store's class, by its name
    assert "harness.config.model" not in sys.modules
    assert strategies.STRATEGIES.keys() - known
    strategies.name_options()


def facts(events: list[Any]) -> list[dict[str, Any]]:
    """Events without machine parts, traffic and the hash of the configuration."""
    return [{k: v for k, v in e.to_json().items() if k not in ("machine", "cache", "config_hash")} for e in events]


def load_examples() -> None:
    """Run all examples, then start the fork server, so that processes of ranks have the tables as they are now."""
    sys.path.insert(0, str(PLUGINS))
    load_strategies()
    for name in ("torn", "clipped_sgd", "blocking", "semicolons"):
        import_module(name)
    from harness.processes.spawn import fork_own_server
    from harness.run import assemble

    assert fork_own_server(), assemble


class Runs:
    """Runs below a folder: of a base configuration with other values, by group."""

    def __init__(self, base: dict[str, Any], out: Path) -> None:
        self._base, self.out = base, out

    def config(self, **groups: Any) -> Any:
        """The base with other values of some groups; a group that is no mapping is replaced."""
        from harness.config.model import Config

        values = {
            name: {**self._base[name], **value}
            if isinstance(value, dict) and name not in ("strategy", "model")
            else value
            for name, value in groups.items()
        }
        return Config.model_validate({**self._base, **values})

    def run(self, name: str, strategy: dict[str, Any], **groups: Any) -> list[Any]:
        """The events of a run in the folder ``name``, whose record adds up."""
        import analysis
        from harness.record.event_log import read_events
        from harness.run import assemble

        assemble.run(self.config(strategy=strategy, **groups), self.out / name)
        assert analysis.is_sound(self.out / name)
        return read_events(self.out / name / "events.jsonl")

    def trace(self, name: str, lines: str) -> dict[str, Any]:
        """The group ``trace`` of a run under these lines."""
        (self.out / f"{name}.csv").write_text(lines)
        return {"path": str(self.out / f"{name}.csv")}


def refusal(kind: type[Exception], act: Callable[[], object]) -> str:
    """The words of the error that ``act`` raises."""
    try:
        act()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def check_rows_of_the_last_hour(runs: Runs) -> None:
    """No update since the save before is older than an hour, so a restored shard is that of whole saves."""
    hourly, short = {"name": "last_hour"}, {"max_train_samples": 400}
    local, rpc = (runs.run(f"last-{engine}", hourly, engine=engine, data=short) for engine in ("local", "rpc"))
    ahead = runs.run("last-ahead", hourly, data=short, cache={"mode": "lookahead", "lookahead": 30})
    assert facts(local) == facts(rpc) == facts(ahead)
    whole = runs.run("hourly", {"name": "partial", "interval_samples": round(400 / 56)}, data=short)
    assert (local[-1].digests, local[-1].num_failures) == (whole[-1].digests, whole[-1].num_failures)
    assert local[-1].payload_bytes < whole[-1].payload_bytes


def check_kind_of_save(runs: Runs, partial: list[Any]) -> None:
    """What a save of touched rows leaves out is as the older files have it."""
    finished = runs.run("incremental", {"name": "incremental", "interval_samples": 100})[-1]
    assert (finished.digests, finished.num_failures) == (partial[-1].digests, 10)
    assert finished.payload_bytes < partial[-1].payload_bytes


def check_store(runs: Runs) -> None:
    """The events are those of a store of files, on both engines and in each encoding; an interrupted run goes on."""
    from contextlib import suppress

    from harness.core.errors import RunStopped
    from harness.core.events import Saved
    from harness.record.event_log import read_events
    from harness.run import assemble

    bucket, short = {"kind": "bucket"}, {"max_train_samples": 400}
    for name, options in {"cpr_mfu": {"r": 1.0}, "differential": {"bits": 8, "recovery": "partial"}}.items():
        strategy = {"name": name, "interval_samples": 16, **options}
        files = runs.run(f"files-{name}", strategy, data=short)
        for engine in ("local", "rpc"):
            kept = runs.run(f"bucket-{name}-{engine}", strategy, engine=engine, store=bucket, data=short)
            assert facts(kept) == facts(files)
        assert any(event.machine["compacted"] for event in files if isinstance(event, Saved)) == (name == "cpr_mfu")
        config, out = runs.config(strategy=strategy, store=bucket, data=short), runs.out / f"bucket-{name}-stopped"
        with suppress(RunStopped):
            assemble.run(config, out, stop=cast(Any, _StopAt(50)))
        assemble.run(config, out, resumes=True)
        assert facts(read_events(out / "events.jsonl")) == facts(files)


class _StopAt:
    """A stop request that is set at the ``number``-th boundary."""

    def __init__(self, number: int) -> None:
        self._left = number

    @property
    def is_set(self) -> bool:
        self._left -= 1
        return self._left <= 0


def check_optimizer(runs: Runs, digests: dict[str, str]) -> None:
    """Shards, caches and rows that were looked up ahead get the same bits; and others than SGD gives."""
    full, clipped = {"name": "full", "interval_samples": 100}, {"optimizer": "clipped_sgd"}
    plain, *others = (
        runs.run(f"clipped-{mode}", full, trainer=clipped, cache={"mode": mode, "staleness": 0})
        for mode in ("none", "lookahead", "stale")
    )
    assert all(facts(other) == facts(plain) for other in others)
    assert plain[-1].digests != digests


def check_model(runs: Runs) -> None:
    """Full recovery ends where no failure would, on both engines, and an option of another model is refused."""
    full, short = {"name": "full", "interval_samples": 100}, {"max_train_samples": 400}

    def run(name: str, strategy: dict[str, Any], engine: str) -> list[Any]:
        return runs.run(f"{name}-{engine}", strategy, engine=engine, model={"name": "logistic"}, data=short)

    calm = run("logistic-none", {"name": "none"}, "local")
    local, rpc = (run("logistic", full, engine) for engine in ("local", "rpc"))
    assert facts(local) == facts(rpc)
    assert (local[-1].digests, local[-1].auc) == (calm[-1].digests, calm[-1].auc)
    assert local[-1].num_failures > 2
    assert "top_mlp" in refusal(ValueError, lambda: runs.config(model={"name": "logistic", "top_mlp": [1]}))


def check_client(runs: Runs, partial: list[Any]) -> None:
    """A client without look-ahead gives the events of the built-in one, under ten failures."""
    blocking = runs.run("blocking", {"name": "partial", "interval_samples": 100}, cache={"mode": "blocking"})
    assert facts(blocking) == facts(partial)


def check_fault(runs: Runs) -> None:
    """Both engines agree; a restore that reads the torn file is one line; an unknown fault names the known ones."""
    from harness.core.errors import RunFailed, TraceError
    from harness.traces.trace import parse_trace

    def run(name: str, lines: str, engine: str) -> list[Any]:
        trace, full = runs.trace(name, f"hour,rank,fault\n{lines}"), {"name": "full", "interval_samples": 100}
        return runs.run(f"{name}-{engine}", full, engine=engine, trace=trace, data={"max_train_samples": 400})

    local, rpc = (run("unread", "20,ps1,torn\n50,ps0,kill\n", engine) for engine in ("local", "rpc"))
    assert facts(local) == facts(rpc)
    assert [event.fault for event in local if event.kind == "fault"] == ["torn", "kill"]
    for engine in ("local", "rpc"):
        words = refusal(RunFailed, partial(run, "read", "20,ps1,torn\n21,ps0,kill\n", engine))
        assert "\n" not in words
        assert ".bin: damaged: " in words
        assert words.endswith("its second half was cut off by line 2 of the trace")
    unknown = refusal(TraceError, lambda: parse_trace(["hour,rank,fault", "1,ps0,tron"], "trace.csv"))
    assert unknown.endswith("hang, disk_full, disk_error, bitflip, torn, got 'tron'")


def check_kind_of_recovery(runs: Runs) -> None:
    """Both engines agree to the bit; record and simulator agree by the facts of the class alone."""
    import analysis
    from harness.planning.simulate import simulate
    from harness.record.rundir import read_config
    from harness.recovery.recoveries import RECOVERIES
    from harness.run.spec import RunSpec
    from tests.known_jobs import job_of

    strategy, short = {"name": "from_zero", "interval_samples": 100}, {"max_train_samples": 400}
    local, rpc = (runs.run(f"zero-{engine}", strategy, engine=engine, data=short) for engine in ("local", "rpc"))
    assert facts(local) == facts(rpc)
    finished = local[-1]
    config = runs.config(strategy=strategy, data=short)
    outcome = simulate(RunSpec(config).strategy, job_of(config), RunSpec(config).planned_faults)
    assert math.isclose(finished.pls, outcome.pls, rel_tol=1e-6)
    assert finished.pls > 0
    assert outcome.load_bytes == 0
    for name in ("load_h", "lost_h", "reschedule_h", "save_h"):
        assert math.isclose(getattr(finished, name), getattr(outcome, name), rel_tol=1e-6), name
    del RECOVERIES["zero"]  # a record needs no plug-in
    assert analysis.check(local, read_config(runs.out / "zero-local")) == []


def check_importer(runs: Runs) -> None:
    """A log becomes outages; a bad line is one line of error with file and line."""
    from harness.core.errors import TraceError
    from harness.traces.importers import LogFormat, read_log

    log, broken = runs.out / "log.txt", runs.out / "broken.txt"
    log.write_text("a;0;3600\nb;7200;9000\na;90000;90600\n")
    broken.write_text("a;0;3600\nb;7200\n")
    found = read_log(log, LogFormat(format="semicolons"))
    assert (len(found.outages), [*found.nodes]) == (3, ["a", "b"])
    words = refusal(TraceError, lambda: read_log(broken, LogFormat(format="semicolons")))
    assert words.endswith("broken.txt:2: 2 fields; expected 'node;start;end'")


def check_all(config_text: str, out: Path) -> None:
    """Every example does what it should, in a run of the configuration ``config_text`` (JSON) or without one."""
    load_examples()
    runs = Runs(json.loads(config_text), out)
    digests = runs.run("none", {"name": "none"})[-1].digests
    partial_run = runs.run("partial", {"name": "partial", "interval_samples": 100})
    check_rows_of_the_last_hour(runs)
    check_kind_of_save(runs, partial_run)
    check_store(runs)
    check_optimizer(runs, digests)
    check_model(runs)
    check_client(runs, partial_run)
    check_fault(runs)
    check_kind_of_recovery(runs)
    check_importer(runs)
