"""The runs whose records are golden: every strategy with every client and save mode, faults, phases, resume, hosts."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import analysis
from harness.config.model import Config
from harness.core.strategies import BUILT_IN
from harness.data.prepare import prepare
from harness.record.event_log import read_events
from harness.run import assemble
from tests.data.logs import random_rows, to_text
from tests.run.stops import stopped
from tests.runs import BUSY, OF_STRATEGY, changed, facts, saving_every, small_config

CLIENTS = ("none", "lookahead", "stale")
MODES = ("sync", "async")
PHASES = (BUSY.parent / "phases.csv").read_text()
HEAD = "hour,rank,phase,fault\n"
DEATHS = "hour,rank,repair_h\n9,ps1,\n20,ps0,4\n21,ps2,\n37,ps3,\n37,ps1,\n50,2,\n"
DISKS = HEAD + "5,ps1,,disk_full\n16,ps2,,\n27,ps1,,\n30,ps1,save,disk_error\n50,ps1,,\n"
HANGS = HEAD + "12,ps2,lookup,hang\n29,ps1,restore,hang\n30,ps1,,kill\n41,ps0,apply,hang\n49,ps3,,hang\n"
HOSTS = "hour,rank\n5,host1\n12,ps1\n20,ps3\n20,host2\n30,ps5\n40,2\n"


@dataclass(frozen=True)
class Case:
    """One golden run, of 60 steps with a save every 9, under ``trace`` (None: no failures).

    ``stops``: it is interrupted at these steps, counted from each start, and goes on from its resume point. Each
    strategy with each client has one save mode; that the other one and engine ``rpc`` give the same is in
    ``tests/run/test_equivalence.py``.
    """

    settings: Mapping[str, Any]
    trace: str | None = DEATHS
    stops: tuple[int, ...] = ()

    def config(self, data: Path, folder: Path) -> Config:
        """The run's config; its trace is written into ``folder``."""
        path = folder / "trace.csv"
        if self.trace is not None:
            path.write_text(self.trace)
        config = changed(
            small_config(data),
            name="golden",
            trace__path=None if self.trace is None else str(path),
            trainer__backend="compiled",
            data__max_train_samples=240,
            eval__every_steps=25,
            cache__lookahead=8,
            cache__staleness=3,
            cache__workers=2,
            metrics__log_every_steps=7,
            store__keep_finished=False,  # on `local` checkpoints are then in memory, but for those that a trace damages
            **self.settings,
        )
        return saving_every(config, 36) if "interval_samples" in type(config.strategy).model_fields else config


def _cases() -> Iterator[tuple[str, Case]]:
    for number, strategy in enumerate(BUILT_IN):
        for place, client in enumerate(CLIENTS):
            if client == "lookahead" or (strategy, client) == ("cpr_mirror", "stale"):
                continue  # the cache that looks ahead changes no bit
            mode = MODES[(number + place) % 2]
            settings = {"strategy__name": strategy, "cache__mode": client, "save__mode": mode}
            settings |= OF_STRATEGY.get(strategy, {})
            stops = (11, 17) if mode == "sync" and strategy != "none" else ()
            yield f"{strategy}-{client}-{mode}", Case(settings, stops=stops)
    for strategy, client, mode in (
        ("partial", "lookahead", "async"), ("partial", "stale", "sync"), ("full", "none", "async"),
        ("full", "lookahead", "sync"), ("cpr_mfu", "none", "sync"), ("cpr_mirror", "none", "async"),
        ("buddy", "lookahead", "async"), ("differential", "none", "async"), ("cpr_scar", "stale", "sync"),
    ):  # fmt: skip
        settings = {"strategy__name": strategy, "cache__mode": client, "save__mode": mode}
        yield f"phases-{strategy}-{client}", Case(settings, PHASES)
        yield f"disks-{strategy}-{client}", Case(settings, DISKS)
    deadlines = {"cluster__rpc_timeout_s": 1.6, "cluster__join_timeout_s": 2.6}
    for strategy in ("partial", "full"):
        yield f"hangs-{strategy}", Case({"strategy__name": strategy, **deadlines}, HANGS)
    flip = DEATHS.replace("hour,rank,repair_h", "hour,rank,fault").replace(",4\n", ",\n") + "53,ps2,bitflip\n"
    yield "flip", Case({"strategy__name": "partial"}, flip)
    hosts = {"cluster__num_ps": 6, "cluster__hosts": ("a", "b", "c")}
    for strategy in ("full", "cpr_ssu"):
        yield f"hosts-{strategy}", Case({"strategy__name": strategy, **hosts}, HOSTS)
    yield "spares", Case({"strategy__name": "cpr_mfu", "cluster__spares": 2}, DEATHS)
    wall = {"trace__clock": "wall", "cluster__spares": 1}
    for strategy in ("full", "partial", "cpr_scar"):
        yield f"wall-{strategy}", Case({"strategy__name": strategy, **wall})
    for optimizer in ("adagrad", "rowwise_adagrad"):
        reset = {"strategy__restore_optimizer": "reset", "trainer__optimizer": optimizer}
        for strategy in ("cpr_mfu", "cpr_mirror", "partial"):
            yield f"{optimizer}-{strategy}", Case({"strategy__name": strategy, **reset}, stops=(20,))
    for bits in (8, 2):
        settings = {"strategy__name": "differential", "strategy__bits": bits, "strategy__recovery": "partial"}
        yield f"quantised-{bits}", Case(settings, stops=(30,))
    yield "buddy-with-saves", Case({"strategy__name": "buddy", "strategy__interval_samples": 36}, stops=(25,))
    yield "fallback", Case({"strategy__name": "cpr_mfu", "strategy__pls_target": 0.001})
    yield "priced", Case({"strategy__name": "partial", "profile": "cpr56_priced", "save__mode": "async"})
    yield "by-table", Case({"strategy__name": "cpr_mfu", "cluster__placement": "table"})
    yield "no-failure", Case({"strategy__name": "full"}, None)


CASES: dict[str, Case] = dict(_cases())

COLUMNS = (
    *("status", "disagreement", "strategy", "num_ps", "auc", "log_loss", "accuracy", "train_loss", "pls"),
    *("update_pls", "update_pls_tracked", "overhead_frac", "save_h", "load_h", "lost_h", "reschedule_h", "job_h"),
    *("node_h", "wire_bytes", "memory_bytes", "payload_bytes", "num_saves", "num_failures", "num_lost_ranks"),
    *("num_unplanned", "cache_hit_rate", "cache_peak_rows", "cache_bytes", "failure"),
)
"""Of a row of the table: all that is no time of this machine and no name of a file."""


LATER = ("step_parts", "steps_h", "slowest_bytes", "tier", "movement")
"""Fields of events that are younger than the records, and that no price or key of these runs fills."""


def golden_clicks(folder: Path) -> Path:
    """400 prepared samples in ``folder``: 343 to train on."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.tsv").write_bytes(to_text(random_rows(400, seed=1, num_values=120)))
    prepare([folder / "log.tsv"], folder / "data", categories="number", max_ind_range=None, progress=None)
    return folder / "data"


def carry_out(case: Case, data: Path, folder: Path) -> Path:
    """Carry out a case with its interruptions; the run's folder."""
    folder.mkdir(parents=True)
    config = case.config(data, folder)
    run_dir = folder / "run"
    for number, at in enumerate(case.stops):
        assert stopped(config, run_dir, at, resumes=number > 0) is not None
    assemble.run(config, run_dir, resumes=bool(case.stops))
    return run_dir


def record_of(run_dir: Path) -> str:
    """Its events without the machine part and the hash of its config, and its row of the analysis' table.

    One JSON object a line. The row says too whether the record adds up.
    """
    found = facts(read_events(run_dir / "events.jsonl"))
    events = [{name: value for name, value in event.items() if name not in LATER} for event in found]
    (row,) = analysis.load(run_dir.parent).to_dict("records")
    shown = {column: None if pd.isna(row[column]) else row[column] for column in COLUMNS}
    return "".join(json.dumps(line, sort_keys=True) + "\n" for line in (*events, shown))


def digest(record: str) -> str:
    """What stands in ``records.json`` for a record."""
    return hashlib.blake2b(record.encode(), digest_size=10).hexdigest()
