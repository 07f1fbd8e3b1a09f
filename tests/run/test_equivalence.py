"""Runs that must agree to the bit: a table in which each pair of settings stands together.

The run of a row is compared with its plain twin: engine ``local``, no cache, saves that are waited for, one trainer, no
spare, one thread, never interrupted. Where recovery restores everything, it ends as a run without failures, too.
"""

import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import analysis
from analysis.load import movement_of
from harness.config.model import Config
from harness.core.errors import UserError
from harness.core.events import Event, Finished
from harness.core.strategies import STRATEGIES
from harness.record.event_log import read_events
from harness.record.rundir import read_config
from harness.run import assemble
from harness.run.spec import RunSpec
from harness.run.verify import compare_records
from tests.covering import Row, covering, pairs_of
from tests.model.test_backends import needs_compiled
from tests.run.stops import resumed, stopped
from tests.runs import changed, losses_of, run, saving_every, small_config

pytestmark = needs_compiled
NUM_STEPS, SAVE_STEPS = 60, 9

OF_MODEL: dict[str, dict[str, Any]] = {
    "wide_deep": {},
    "dcn": {"trainer__dense_optimizer": "adam"},
    "deepfm": {"model__batch_norm": True, "model__dropout": 0.5},
}
"""What runs of the models beside DLRM have besides."""
SETTINGS = {
    "strategy": tuple(STRATEGIES),
    "trace": ("deaths", "phases", "trainers", "wall", "interrupts", "shrink"),
    "cache": ("none", "lookahead", "stale0", "stale"),
    "ranks": ("local", "rpc", "rpc-3"),
    "optimizer": ("sgd", "rowwise_adagrad", "adagrad", "adam"),
    "options": ("default", "other"),
    "save": ("sync", "async"),
    "stops": ("never", "twice"),
    "spares": ("0", "1"),
    "hosts": ("one", "three"),
    "placement": ("row", "table"),
    "restore": ("with_rows", "reset"),
    "threads": ("1", "2"),
    "model": ("dlrm", *OF_MODEL),
    "notice": ("none", "save", "handover"),
}
EXCLUDED: tuple[tuple[Row, str], ...] = (
    ({"strategy": "cpr_mirror", "cache": "stale"}, "cache.mode: expected none or lookahead for strategy cpr_mirror"),
    ({"strategy": "cpr_mirror", "cache": "stale0"}, "cache.mode: expected none or lookahead for strategy cpr_mirror"),
    ({"trace": "trainers", "cache": "stale"}, "cache.mode: expected none or lookahead with a trace that kills all"),
    ({"trace": "trainers", "cache": "stale0"}, "cache.mode: expected none or lookahead with a trace that kills all"),
    ({"trace": "wall", "save": "async"}, "trace.clock: expected samples with save.mode=async"),
    ({"trace": "interrupts", "save": "async"}, "trace.clock: expected samples with save.mode=async"),
    ({"trace": "interrupts", "spares": "1"}, "cluster.spares: expected 0 with trace.interrupts=true, got 1"),
    *(
        ({"trace": "interrupts", "notice": notice}, "cluster.on_notice: expected none with trace.interrupts=true")
        for notice in ("save", "handover")
    ),
    ({"trace": "shrink", "strategy": "parity"}, "cluster.on_loss: expected replace for strategy parity, got shrink"),
    ({"trace": "shrink", "spares": "1"}, "cluster.spares: expected 0 with cluster.on_loss=shrink, got 1"),
    ({"trace": "shrink", "hosts": "three"}, "expected a PS rank between two steps with cluster.on_loss=shrink"),
    ({"strategy": "cpr_mirror", "notice": "save"}, "cluster.on_notice: expected none or handover for strategy"),
    ({"strategy": "tiers", "options": "other", "notice": "save"}, "with several tiers, got save; the checkpoint"),
    ({"hosts": "three", "spares": "1"}, "host1: expected cluster.spares=0, got 1"),
    ({"hosts": "three", "strategy": "none"}, ""),  # which meets no failure
    *(
        (
            {"strategy": "differential", "options": "other", "optimizer": optimizer},
            "trainer.optimizer: expected sgd for saves with rounded values",
        )
        for optimizer in ("rowwise_adagrad", "adagrad", "adam")
    ),
    *(
        ({"strategy": "cpr_state", "optimizer": optimizer}, "trainer.optimizer: expected rowwise_adagrad or adagrad")
        for optimizer in ("sgd", "adam")
    ),
    *(
        ({"model": model, "ranks": "rpc-3"}, "cluster.num_trainers: expected 1 with backend torch")
        for model in OF_MODEL
    ),
    *(({"model": model, "threads": "2"}, "") for model in OF_MODEL),  # torch sums otherwise with another number
)
"""Settings that the configuration refuses together, and how its line begins."""

OTHER: dict[str, dict[str, Any]] = {
    "never_save": {"start": "mean"},
    "partial": {"interval_samples": 4},  # each step
    "cpr_oldest": {"guard": 0.5},  # rolls back to rows of different ages
    "cpr_state": {"guard": 2},
    "cpr_mirror": {"share": 1.0},
    "differential": {"recovery": "partial", "bits": 8},
    "cpr_vanilla": {"interval_samples": None, "pls_target": 1e-4},  # acts as full
    "buddy": {"interval_samples": None},
    "parity": {"interval_samples": None, "group_size": 1},
    "tiers": {"memory_samples": 8, "disk_samples": 20, "kill_loses": "node"},
    **{name: {"untracked": "interval"} for name in ("cpr_mfu", "cpr_random", "cpr_ssu")},
}
"""Options of a strategy under ``options: other``."""

DEATHS = ["7.4,ps1,,,,1e6", "8.4,ps0,,,4,", "21,ps2,,,,400", "37,ps3,,,,1e6", "37,ps1,,,,", "50,ps2,,,,1e6"]
"""Right before a save and right after it, with and without a repair, two at once, and no rank with its buddy; with time
for the whole shard, for a part of it, and with no notice."""
PHASES = [
    *("5,ps1,lookup,,,", "9,ps2,apply,,2,", "13,ps3,save,,,", "17,ps3,manifest,,,"),
    *("21,ps1,restore,,5,", "22,ps1,regroup,,1,", "23,ps3,,,3,", "27,ps1,,disk_full,,", "31,ps2,apply,,,"),
    *("31,ps0,lookup,,,", "36,ps2,regroup,,,", "37,ps2,,,,1e6", "38,ps3,save,disk_error,,", "41,ps2,save,,,"),
    *("43,ps1,eval,,,", "48,ps3,forward,,,", "56,ps0,eval,,,"),
]
SHRINK = [
    *("8.4,ps2,,,26,1e6", "14,ps2,,,,1e6", "21,ps0,,,9,", "37,ps3,,,6,1e6"),
    *("37,ps1,,,,400", "40,ps1,,,,", "50,ps2,,,,1e6"),
]
"""With ``cluster.on_loss: shrink``: deaths of nodes with two shards, returns, and of nodes that are away."""
INTERRUPTS = [
    *("8.45,ps1,,,,", "9.5,ps3,,,,", "21,ps2,,,,", "22.5,ps0,,,,", "22.6,ps0,,,,"),
    *("37,ps3,,,4,", "37,ps1,,,,", "50,ps2,,,,", "51.5,ps2,,,,"),
]
"""With ``trace.interrupts``, saves, loads and rescheduling of an hour each: during the first save, during the recovery
from that, and during later ones, of another rank and of the same."""
OF_SAVES = ("save", "manifest", "disk_full")


def is_allowed(row: Row) -> bool:
    """Whether the configuration accepts such a row."""
    return not any(settings.items() <= row.items() for settings, _ in EXCLUDED)


WITH_SOME = {*OF_MODEL, "stale0", "rowwise_adagrad", "interrupts"}
"""Values that stand with some strategies only: golden records have ``rowwise_adagrad`` with others, and
``test_wall_clock`` has ``interrupts`` with all."""


def is_wanted(pair: Row) -> bool:
    """Whether the table must have a pair."""
    return is_allowed(pair) and ("strategy" not in pair or not WITH_SOME & {*pair.values()})


ROWS = covering(SETTINGS, is_allowed, is_wanted, cheap=("local", "dlrm", "trainers"), dear=("rpc-3", "rpc"))


def trace_of(row: Row, *, has_saves: bool, num_trainers: int) -> str:
    """The trace of a row, as CSV."""
    lines = list({"phases": PHASES, "shrink": SHRINK, "interrupts": INTERRUPTS}.get(row["trace"], DEATHS))
    if not has_saves:
        lines = [line for line in lines if not any(word in line for word in OF_SAVES)]
    if row["trace"] == "trainers":
        lines = [
            "10,ps1,,,,1e6",
            *(f"{hour},trainer{k},,,," for hour in (10, 31) for k in range(num_trainers)),
            DEATHS[-1],
        ]
    if row["hosts"] == "three":
        lines.append("26,host1,,,,1e6")
    lines.sort(key=lambda line: float(line.partition(",")[0]))
    return "\n".join(["hour,rank,phase,fault,repair_h,notice_s", *lines]) + "\n"


def config_of(row: Row, data: Path, folder: Path) -> Config:
    """The configuration of a row, whose trace is written into ``folder``."""
    engine, _, number = row["ranks"].partition("-")
    config = changed(
        small_config(data),
        engine=engine,
        strategy__name=row["strategy"],
        trace__path=str(folder / "trace.csv"),
        trace__clock="wall" if row["trace"] in ("wall", "interrupts") else "samples",
        trace__interrupts=row["trace"] == "interrupts",
        cache__mode=row["cache"].removesuffix("0"),
        cache__staleness=0 if row["cache"] == "stale0" else 3,
        cache__lookahead=8,
        cache__workers=3,
        cache__max_rows=500,
        trainer__optimizer=row["optimizer"],
        trainer__dense_optimizer="sgd" if row["optimizer"] == "sgd" else "adagrad",
        trainer__num_threads=int(row["threads"]),
        save__mode=row["save"],
        cluster__num_trainers=int(number or 1),
        cluster__on_notice=row["notice"],
        cluster__spares=int(row["spares"]),
        cluster__on_loss="shrink" if row["trace"] == "shrink" else "replace",
        cluster__hosts=("a", "b", "c") if row["hosts"] == "three" else (),
        cluster__place={"ps1": "b", "ps3": "b", "trainer0": "a"} if row["hosts"] == "three" else {},
        cluster__placement=row["placement"],
        data__max_train_samples=4 * NUM_STEPS,
        eval__every_steps=25,
        eval__movement=True,
        metrics__log_every_steps=7,
        resume__every_s=None,
        model__name=row["model"],
    )
    if row["trace"] == "interrupts":
        config = changed(config, **{f"profile__{price}": 1.0 for price in ("o_save_h", "o_load_h", "o_res_h")})
    config = changed(config, **OF_MODEL.get(row["model"], {}))
    if row["strategy"] == "tiers":
        config = changed(config, profile__tier_frac={"disk": 0.3, "memory": 0.05})
    if "interval_samples" in type(config.strategy).model_fields:
        config = saving_every(config, 4 * SAVE_STEPS)
    config = changed(config, strategy__restore_optimizer=row["restore"])
    if row["options"] == "other":
        config = changed(config, **{f"strategy__{key}": value for key, value in OTHER.get(row["strategy"], {}).items()})
    has_saves = getattr(config.strategy, "interval_samples", None) is not None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trace.csv").write_text(trace_of(row, has_saves=has_saves, num_trainers=config.cluster.num_trainers))
    return config


def twin_of(row: Row) -> Row:
    """The plain twin of a row. A phase has the messages of its cache and its saves, so it keeps these."""
    kept = {"cache", "save"} if row["trace"] == "phases" else {"cache"} if row["cache"] == "stale" else set[str]()
    plain = {name: SETTINGS[name][0] for name in ("cache", "save", "ranks", "spares", "stops", "threads")}
    return {**row, **{name: value for name, value in plain.items() if name not in kept}}


def is_exact(row: Row) -> bool:
    """Whether the failures of a row leave no trace in what was learnt."""
    options, strategy = row["options"], row["strategy"]
    if row["cache"] == "stale" and row["notice"] != "none" and strategy != "none":
        return False  # copies go out at each notice
    if strategy in ("none", "full", "tiers"):
        return True
    if (strategy, options) in (("differential", "default"), ("cpr_vanilla", "other")):
        return True
    if strategy in ("buddy", "parity"):  # in a phase a rank may die together with one of its group
        return row["trace"] in (("deaths", "phases", "wall") if strategy == "buddy" else ("deaths", "wall"))
    is_kept = (strategy, options) == ("partial", "other") or (strategy, options) == ("cpr_mirror", "other")
    return is_kept and row["trace"] in ("deaths", "wall", "shrink") and row["restore"] == "with_rows"


def named(row: Row) -> str:
    """The settings of a row that are not the first ones."""
    return " ".join(value for name, value in row.items() if name == "strategy" or value != SETTINGS[name][0])


def test_the_table_has_each_pair_that_is_wanted() -> None:
    """Law: each pair that is wanted stands together, and none that is refused."""
    found = {pair for row in ROWS for pair in pairs_of(row)}
    for one, values in SETTINGS.items():
        for other, others in SETTINGS.items():
            for pair in ({one: a, other: b} for a in values for b in others if one < other):
                is_found = frozenset(pair.items()) in found
                assert is_found if is_wanted(pair) else is_allowed(pair) or not is_found, pair


@pytest.mark.parametrize(("settings", "words"), [each for each in EXCLUDED if each[1]], ids=str)
def test_what_the_table_leaves_out_is_refused(click_data: Path, tmp_path: Path, settings: Row, words: str) -> None:
    """Law: by one line, which names the key."""
    row = {name: values[0] for name, values in SETTINGS.items()} | {"strategy": "partial"} | settings
    with pytest.raises(UserError) as refused:
        RunSpec(config_of(row, click_data, tmp_path)).validate()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@cache
def calm_run(data: Path, optimizer: str, placement: str, model: str) -> tuple[Finished, list[Event]]:
    """A run without failures, saves and a cache."""
    row = {name: values[0] for name, values in SETTINGS.items()}
    row |= {"strategy": "none", "optimizer": optimizer, "placement": placement, "model": model}
    with TemporaryDirectory() as folder:
        return run(config_of(row, data, Path(folder)), Path(folder) / "run")


@pytest.mark.parametrize(
    "row",
    [  # of runs of processes `make test` has every second one
        pytest.param(row, marks=pytest.mark.slow) if row["ranks"] != "local" and number % 2 else row
        for number, row in enumerate(ROWS)
    ],
    ids=named,
)
def test_a_run_agrees_with_its_plain_twin(click_data: Path, tmp_path: Path, row: Row) -> None:
    """Law: losses, parameters, metrics, charges and events are equal, and the record adds up."""
    config, plain = config_of(row, click_data, tmp_path), twin_of(row)
    twin = config_of(plain, click_data, tmp_path / "twin")
    if row["trace"] == "trainers":  # which are part of what happens
        twin = changed(twin, trace__path=config.trace.path, cluster__num_trainers=config.cluster.num_trainers)
    run(twin, tmp_path / "plain")
    if row["stops"] == "twice":
        chance = random.Random(named(row))
        most = 20 if row["trace"] == "trainers" else 40  # new trainers count their steps from the first
        assert stopped(config, tmp_path / "run", chance.randrange(5, most)) is not None
        is_free = row["trace"] != "trainers" and row["hosts"] == "one"  # to go on with fewer trainers
        num_trainers = min(config.cluster.num_trainers, 2 if is_free else 3)
        elsewhere = changed(config, engine="local", cluster__num_trainers=num_trainers)
        if stopped(elsewhere, tmp_path / "run", chance.randrange(1, 20), resumes=True) is not None:
            resumed(config, tmp_path / "run")
            resumptions = [
                each
                for event in read_events(tmp_path / "run" / "events.jsonl")
                for each in event.machine.get("resumed", ())
            ]
            assert ["network" in each for each in resumptions] == [False, config.engine == "rpc"]
    else:
        assemble.run(config, tmp_path / "run")
    events = read_events(tmp_path / "run" / "events.jsonl")
    of_cache = {"cache", "replica_bytes", "wire_bytes"} if row["cache"] != plain["cache"] else set[str]()
    differences = compare_records(
        tmp_path / "plain",
        tmp_path / "run",
        ignored={"config_hash", *of_cache},
        moves_saves=row["save"] != plain["save"],
    )
    assert differences == []
    assert analysis.check(events, read_config(tmp_path / "run")) == []
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert (finished.num_failures >= 3) == (row["strategy"] != "none")
    if not is_exact(row) and row["strategy"] != "never_save":
        return
    if row["cache"] == "stale":  # whose copies go out at each save
        reference, of_calm = run(changed(twin, trace__path=None), tmp_path / "calm")
    else:
        reference, of_calm = calm_run(click_data, row["optimizer"], row["placement"], row["model"])
    if is_exact(row):
        assert {rank: finished.digests[rank] for rank in reference.digests} == reference.digests
        assert (finished.auc, losses_of(events)) == (reference.auc, losses_of(of_calm))
        assert (finished.lost_updates or 0) == 0
        assert row["trace"] == "phases" or movement_of(events) in (0.0, None)
    else:
        assert finished.digests["ps1"] != reference.digests["ps1"], "the comparison can fail"
