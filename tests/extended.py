"""Runs the examples of docs/EXTENDING.md in a process of its own, whose tables they are entered in.

    python -m tests.extended CONFIG OUT

CONFIG is a run's configuration as JSON. Results go to OUT/results.json, for tests/test_extending.py.
"""

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "EXTENDING.md"


def _blocks() -> dict[str, str]:
    """The code of the page by its first comment."""
    blocks = re.findall(r"```python\n# ([^\n]+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return dict(blocks)


def examples() -> dict[str, str]:
    """The examples of the page by their first comment."""
    return {title: code for title, code in _blocks().items() if not title.startswith("imports")}


def imports(*, of_client: bool = False) -> str:
    """What a file with any of the examples but the client imports, or what one with the client does besides."""
    return _blocks()["imports"] + (_blocks()["imports of a client"] if of_client else "")


def load_strategies() -> None:
    """Run the examples that define strategies before the configuration's models are made from their table."""
    from harness.core import strategies

    known = set(strategies.STRATEGIES)
    for title in ("strategy", "kind of save", "kind of recovery", "tracker"):
        module = sys.modules[title] = ModuleType(title)  # ranks import functions of requests by its name
        exec(imports() + examples()[title], vars(module))
    assert "harness.config.model" not in sys.modules
    assert strategies.STRATEGIES.keys() - known
    strategies.name_options()


def facts(events: list[Any]) -> list[dict[str, Any]]:
    """Events without machine parts, traffic and the hash of the configuration."""
    return [{k: v for k, v in e.to_json().items() if k not in ("machine", "cache", "config_hash")} for e in events]


def load_examples() -> None:
    """Run all examples, then start the fork server, so that processes of ranks have the tables as they are now."""
    load_strategies()
    titles = ("fault", "optimizer", "embedding client", "importer")
    exec(imports(of_client=True) + "".join(examples()[title] for title in titles), {})
    from harness.processes.spawn import own_fork_server
    from harness.run import assemble

    assert own_fork_server(), assemble


def differences_of_delta(values: dict[str, Any], out: Path) -> list[str]:
    """What `verify` finds for a strategy whose saves hold every row that was updated since the last one."""
    from harness.config.model import Config
    from harness.run.verify import verify

    (out / "one.csv").write_text("hour,rank\n20,ps1\n")
    changes: dict[str, Any] = {"data": {**values["data"], "max_train_samples": 160}, "cluster": {"num_ps": 2}}
    changes["trace"] = {"path": str(out / "one.csv")}
    return verify(Config.model_validate({**values, **changes}), out / "verify")


def torn_files(values: dict[str, Any], out: Path) -> dict[str, Any]:
    """On both engines: the events of a run whose torn file is not read, and how a run ends whose torn file is."""
    import analysis
    from harness.config.model import Config
    from harness.core.errors import RunFailed, TraceError
    from harness.record.event_log import read_events
    from harness.run import assemble
    from harness.traces.trace import parse_trace

    def run(name: str, trace: str, engine: str) -> Path:
        (out / f"{name}.csv").write_text(f"hour,rank,fault\n{trace}")
        changes: dict[str, Any] = {"engine": engine, "strategy": {"name": "full", "interval_samples": 100}}
        changes |= {"trace": {"path": str(out / f"{name}.csv")}, "data": {**values["data"], "max_train_samples": 400}}
        assemble.run(Config.model_validate({**values, **changes}), out / f"{name}-{engine}")
        return out / f"{name}-{engine}"

    unread = [run("unread", "20,ps1,torn\n50,ps0,kill\n", engine) for engine in ("local", "rpc")]
    ends: list[str] = []
    for engine in ("local", "rpc"):
        try:
            run("read", "20,ps1,torn\n21,ps0,kill\n", engine)
        except RunFailed as error:
            ends.append(str(error))
    try:
        parse_trace(["hour,rank,fault", "1,ps0,tron"], "trace.csv")
        unknown = ""
    except TraceError as error:
        unknown = str(error)
    local, rpc = (facts(read_events(folder / "events.jsonl")) for folder in unread)
    return {
        "equal": local == rpc,
        "faults": [event["fault"] for event in local if event["event"] == "fault"],
        "sound": [analysis.is_sound(folder) for folder in unread],
        "ends": ends,
        "unknown": unknown,
    }


def facts_of_means(values: dict[str, Any], out: Path, *, unlike: dict[str, str]) -> dict[str, Any]:
    """What a run whose lost rows start from means gives on both engines, and what the simulator makes of it."""
    import torch

    import analysis
    from harness.config.model import Config
    from harness.core.placement import Placement
    from harness.core.shard import Shard
    from harness.planning.simulate import simulate
    from harness.record.event_log import read_events
    from harness.record.rundir import read_config
    from harness.recovery.recoveries import RECOVERIES
    from harness.run import assemble
    from harness.run.spec import RunSpec
    from tests.known_jobs import job_of

    strategy = {"name": "from_means", "interval_samples": 100}
    configs = [Config.model_validate({**values, "engine": name, "strategy": strategy}) for name in ("local", "rpc")]
    last = [assemble.run(config, out / f"means-{config.engine}") for config in configs]
    local, rpc = (read_events(out / f"means-{config.engine}" / "events.jsonl") for config in configs)
    run_spec = RunSpec(configs[0])
    outcome = simulate(run_spec.strategy, job_of(configs[0]), run_spec.planned_faults)
    del RECOVERIES["means"]
    module = sys.modules["kind of recovery"]
    shards = [Shard(Placement("row", (30, 2), 3), k, dim=4, seed=1, count_updates=True) for k in range(3)]
    for shard in shards:
        shard.initialise(applied_step=0)
    sums = sum(module.sums_of_tables(shard, 4) for shard in shards[1:])
    module.fill_tables(shards[0], sums, 7)
    means = [torch.cat([shard.rows_MD[shard.span(table)] for shard in shards[1:]]).mean(0) for table in range(2)]
    return {
        "equal": facts(local) == facts(rpc) and last[0].digests == last[1].digests,
        "problems": analysis.check(local, read_config(out / "means-local")),
        "differs": last[0].digests != unlike,
        "pls": [last[0].pls, outcome.pls],
        "hours": [[each.load_h, each.lost_h, each.reschedule_h, each.save_h] for each in (last[0], outcome)],
        "load_bytes": outcome.load_bytes,
        "means": all(torch.allclose(shards[0].rows_MD[shards[0].span(t)], mean) for t, mean in enumerate(means)),
    }


def main(config_text: str, out: Path) -> None:
    """Run every example's law."""
    load_examples()

    from pydantic import ValidationError

    from harness.config.model import Config
    from harness.core.errors import TraceError
    from harness.core.events import Event, Finished, Saved
    from harness.record.event_log import read_events
    from harness.run import assemble
    from harness.traces.importers import read_log

    base = json.loads(config_text)

    def run(name: str, strategy: dict[str, Any], *, parts: dict[str, dict[str, Any]] | None = None) -> list[Event]:
        values = {**base, "strategy": strategy}
        values |= {group: {**base[group], **changes} for group, changes in (parts or {}).items()}
        assemble.run(Config.model_validate(values), out / name)
        return read_events(out / name / "events.jsonl")

    def last(events: list[Event]) -> Finished:
        finished = events[-1]
        assert isinstance(finished, Finished)
        return finished

    results: dict[str, Any] = {}
    reference = last(run("none", {"name": "none"}))

    events = run("hours", {"name": "every_hours", "hours": 2})
    saves = sorted({event.samples for event in events if isinstance(event, Saved) and event.charged})
    try:
        Config.model_validate({**base, "strategy": {"name": "every_hours", "hours": 0}})
        refused = ""
    except ValidationError as error:
        refused = str(error)
    results["strategy"] = {"digests": last(events).digests == reference.digests, "saves": saves, "refused": refused}

    partial = last(run("partial", {"name": "partial", "interval_samples": 100}))
    touched = last(run("incremental", {"name": "incremental", "interval_samples": 100}))
    results["kind of save"] = {
        "digests": partial.digests == touched.digests,
        "failures": touched.num_failures,
        "bytes": [partial.payload_bytes, touched.payload_bytes],
    }

    recent = {"name": "cpr_recent", "r": 0.25}
    plain, ahead = run("recent", recent), run("ahead", recent, parts={"cache": {"mode": "lookahead", "lookahead": 30}})
    results["tracker"] = {
        "equal": facts(plain) == facts(ahead),
        "rows": [event.num_rows for event in plain if isinstance(event, Saved) and event.save == "priority"],
    }

    results["delta"] = differences_of_delta({**base, "strategy": {**recent, "r": 1.0, "interval_samples": 48}}, out)

    clipped = {"trainer": {"optimizer": "clipped_sgd"}}
    runs = [
        run(
            f"clipped-{mode}",
            {"name": "full", "interval_samples": 100},
            parts={**clipped, "cache": {"mode": mode, "staleness": 0}},
        )
        for mode in ("none", "lookahead", "stale")
    ]
    results["optimizer"] = {
        "equal": all(facts(other) == facts(runs[0]) for other in runs[1:]),
        "differs": last(runs[0]).digests != reference.digests,
    }

    results["embedding client"] = {
        name: facts(run(f"direct-{name}", strategy))
        == facts(run(f"blocking-{name}", strategy, parts={"cache": {"mode": "blocking"}}))
        for name in ("full", "partial")
        for strategy in [{"name": name, "interval_samples": 100}]
    }

    results |= {
        "fault": torn_files(base, out),
        "kind of recovery": facts_of_means(base, out, unlike=partial.digests),
    }

    log, broken = out / "log.txt", out / "broken.txt"
    log.write_text("a;0;3600\nb;7200;9000\na;90000;90600\n")
    broken.write_text("a;0;3600\nb;7200\n")
    found = read_log("semicolons", log)
    try:
        read_log("semicolons", broken)
        message = ""
    except TraceError as error:
        message = str(error)
    results["importer"] = {"outages": len(found.outages), "nodes": list(found.nodes), "message": message}
    (out / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
