"""The laws of whole runs (docs/ARCHITECTURE.md), on the local engine.

That they hold on the rpc engine too follows from ``test_equivalence``: both engines agree to the bit.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import analysis
from harness.config.model import Config
from harness.core.errors import RunFailed
from harness.core.events import BUCKETS, Evaluated, Finished, Noticed, Recovered, Saved, Trained
from harness.core.overhead import o_part_h, steps_h
from harness.core.plans import Progress, RecoveryPlan
from harness.core.seeds import generator
from harness.core.strategies import STRATEGIES, CprVanilla
from harness.planning.simulate import simulate
from harness.run import assemble, trainer
from harness.run.assemble import Parts
from harness.run.spec import RunSpec
from tests.known_jobs import job_of
from tests.made_runs import altered
from tests.runs import OF_STRATEGY, changed, facts, run, saving_every, under


def outcome(finished: Finished) -> tuple:
    """What a model is judged by, and every bit of its parameters."""
    return finished.auc, finished.log_loss, finished.accuracy, finished.train_loss, finished.digests


PRICED = {
    "profile__load": "by_bytes",
    "profile__o_save_fixed_h": 4.0,  # more than the interval, so that saves wait for each other
    "strategy__interval_samples": 60,
    "profile__network_gbps": 25,
    "profile__snapshot_gbps": 100,
    "profile__num_trainers": 3,
    "profile__spare_o_res_h": 0.01,
    "cluster__spares": 1,
    "save__mode": "async",
}


NAMES = [name for name in STRATEGIES if name != "none"]
CHARGED = [*((name, {}) for name in NAMES), *((name, PRICED) for name in ("partial", "cpr_mirror", "parity"))]


@pytest.mark.parametrize(("name", "prices"), CHARGED, ids=lambda each: each if isinstance(each, str) else len(each))
def test_a_run_is_charged_as_the_simulator_says(
    config: Config, tmp_path: Path, name: str, prices: dict[str, object]
) -> None:
    """Emulated buckets, PLS and number of saves of a real run equal those computed without training."""
    of_run = {"strategy__name": name, "strategy__r": 0.5, **OF_STRATEGY.get(name, {}), **prices}
    config = changed(config, data__max_train_samples=256, **of_run)
    finished, events = run(config, tmp_path / name)
    run_spec = RunSpec(config)
    simulated = simulate(run_spec.strategy, job_of(config), run_spec.planned_faults)
    assert finished.pls == pytest.approx(simulated.pls, rel=1e-12)
    assert finished.num_saves == simulated.num_saves
    uploaded = sum(event.upload_bytes for event in events if isinstance(event, Recovered))
    upload_h = run_spec.costs.o_load_h * uploaded / run_spec.bytes_full if prices else 0.0
    assert (uploaded > 0) == (name == "cpr_mirror")
    assert (finished.load_h, finished.lost_h, finished.reschedule_h) == pytest.approx(
        (simulated.load_h + upload_h, simulated.lost_h, simulated.reschedule_h), rel=1e-12
    )
    if run_spec.strategy.tracker is not None:  # a budget that need not be used up
        assert 0 < finished.save_h <= simulated.save_h * (1 + 1e-12)
        return
    assert finished.save_h == pytest.approx(simulated.save_h, rel=1e-12)
    assert finished.wire_bytes == simulated.payload_bytes + simulated.load_bytes + (finished.replica_bytes or 0)
    assert finished.node_h == (simulated.node_h if prices else None)


LONG_S, SHORT_S = 1e6, 20.0  # time for all rows, and for some


def told(config: Config, folder: Path, notice_s: float | str, on_notice: str, **dotted: Any) -> Config:
    """``config`` under five deaths in four failures, each with so many seconds of notice."""
    folder.mkdir(exist_ok=True)
    lines = (f"{hour},{rank},{notice_s}" for hour, rank in ((9.4, "ps1"), (21, "ps0"), (37, "2"), (50, "ps1")))
    config = changed(config, data__max_train_samples=256, cluster__on_notice=on_notice, **dotted)
    if "interval_samples" in type(config.strategy).model_fields:
        config = saving_every(config, 60)
    return under(config, folder, "\n".join(["hour,rank,notice_s", *lines]) + "\n")


LONG = [*((name, how, "replace") for name in NAMES for how in ("handover", "save"))]
LONG += [*((name, how, "shrink") for name in ("full", "cpr_mfu") for how in ("handover", "save"))]


@pytest.mark.parametrize(("name", "on_notice", "on_loss"), LONG)
def test_a_long_notice_makes_a_death_harmless(
    config: Config, tmp_path: Path, name: str, on_notice: str, on_loss: str
) -> None:
    """A run ends bit-equal to no failure, and is charged as the simulator says, which takes all rows for updated."""
    if on_notice == "save" and name in ("never_save", "cpr_mirror", "tiers"):
        return  # no checkpoint to which rows can be added; refused
    of_run = {"strategy__name": name, "cluster__on_loss": on_loss, **OF_STRATEGY.get(name, {})}
    config = told(config, tmp_path, LONG_S, on_notice, **of_run)
    found, events = run(config, tmp_path / "told")
    calm, _ = run(changed(config, strategy__name="none"), tmp_path / "calm")
    assert outcome(found) == outcome(calm)
    num_failures = 4 if on_loss == "replace" else 3  # the last one is of a node that is away
    assert (found.num_failures, found.pls, found.lost_updates or 0) == (num_failures, 0.0, 0)
    kinds = [kind for event in events if isinstance(event, Recovered) for kind in event.kinds.values()]
    own = {"buddy": "replica", "parity": "parity"}.get(name)  # which loses nothing either
    assert {*kinds} == {own or {"handover": "handover", "save": "notice"}[on_notice]}
    run_spec = RunSpec(config)
    simulated = simulate(run_spec.strategy, job_of(config), run_spec.planned_faults)
    hours = simulated.load_h, simulated.lost_h, simulated.reschedule_h, simulated.pls
    assert (found.load_h, found.lost_h, found.reschedule_h, found.pls) == pytest.approx(hours, rel=1e-12)
    is_known = name in ("buddy", "parity") or (on_notice == "handover" and run_spec.strategy.tracker is None)
    most = pytest.approx(simulated.save_h, rel=1e-12)
    assert found.save_h == most if is_known else found.save_h < simulated.save_h


@pytest.mark.parametrize("name", ["full", "partial", "cpr_mfu", "cpr_ssu", "differential"])
def test_a_short_notice_saves_what_it_has_time_for(config: Config, tmp_path: Path, name: str) -> None:
    """Fewer updates are lost, by those that were saved on notice; a rank writes for no longer than its notice."""
    none, _ = run(told(config, tmp_path, SHORT_S, "none", strategy__name=name), tmp_path / "none")
    some, events = run(told(config, tmp_path, SHORT_S, "save", strategy__name=name), tmp_path / "some")
    noticed = [event for event in events if isinstance(event, Noticed)]
    assert all(0 < event.save_h <= SHORT_S / 3600 and event.num_rows > 0 for event in noticed)
    assert any(event.kinds.keys() < event.payload_bytes.keys() for event in noticed)
    assert none.lost_updates is not None
    assert some.lost_updates is not None
    saved = sum(event.persisted_updates or 0 for event in noticed)
    rolls_back = name in ("full", "differential")
    assert some.lost_updates == 0 if rolls_back else none.lost_updates - saved == some.lost_updates > 0
    handed, _ = run(told(config, tmp_path, SHORT_S, "handover", strategy__name=name), tmp_path / "handed")
    assert outcome(handed) == outcome(some), "a shard that takes too long is not handed over"


def test_rows_are_saved_on_notice_where_saves_are_free(config: Config, tmp_path: Path) -> None:
    """All of them, in no time."""
    config = told(config, tmp_path, SHORT_S, "save", strategy__name="partial", profile__o_save_h=0.0)
    found, _ = run(config, tmp_path / "told")
    assert (found.lost_updates, found.save_h) == (0, 0.0)


def test_a_false_figure_of_a_notice_is_noticed(config: Config, tmp_path: Path) -> None:
    """The audit knows how long a rank may write, what that costs, and who may be recovered without a loss."""
    config = told(config, tmp_path, LONG_S, "save", strategy__name="partial")
    _, events = run(config, tmp_path / "told")
    place = next(place for place, event in enumerate(events) if isinstance(event, Noticed))
    lies: dict[str, Any] = {
        "save_h is 7.0": {"save_h": 7.0},
        "ps1 wrote for": {"notices_h": {"ps1": 1e-9}},
        "ps1 was recovered by notice, but had no notice for it": {"kinds": {}},
        "payload_bytes is": {"payload_bytes": {"ps1": 1}},
    }
    for expected, lie in lies.items():
        lying = [*events[:place], altered(events[place], **lie), *events[place + 1 :]]
        assert any(expected in line for line in analysis.check(lying, config.model_dump(mode="json"))), expected


def test_without_a_notice_nothing_is_done(config: Config, tmp_path: Path) -> None:
    """A notice of 0 s, a notice that nobody heeds, and none give one record."""
    records = [
        facts(run(told(config, tmp_path, *how, strategy__name="cpr_mfu"), tmp_path / f"{number}")[1])
        for number, how in enumerate([("", "none"), (0, "handover"), (LONG_S, "none")])
    ]
    assert records[0] == records[1] == records[2]


TIERS: dict[str, Any] = {
    "strategy__name": "tiers",
    "strategy__interval_samples": 80,  # 20 of 64 steps
    "profile__tier_frac": {"disk": 0.3, "memory": 0.05},
}
LOSSES = "11.375,ps1\n14.875,ps1\n14.875,ps2\n30.625,host2\n33.25,ps0\n33.25,ps1\n48.125,ps3\n48.125,ps0\n"


def test_with_the_shared_disk_alone_tiers_is_full(config: Config, tmp_path: Path) -> None:
    """Law: the record is that of ``full``, but for the names."""
    config = changed(config, data__max_train_samples=256, strategy__interval_samples=60)
    full, tiers = (facts(run(changed(config, strategy__name=name), tmp_path / name)[1]) for name in ("full", "tiers"))
    names = {"strategy", "config_hash"}
    assert [{k: v for k, v in each.items() if k not in names} for each in full] == [
        {k: v for k, v in each.items() if k not in names} for each in tiers
    ]


@pytest.mark.parametrize(
    ("kill_loses", "resumed"),
    [
        ("process", [(13, 13), (17, 10), (35, 35), (38, 20), (55, 50)]),  # the disk that has step 30 went with host2
        ("node", [(13, 13), (17, 0), (35, 35), (38, 20), (55, 40)]),
    ],
)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_rollback_reads_the_newest_save_that_is_left(
    config: Config, tmp_path: Path, kill_loses: str, mode: str, resumed: list[tuple[int, int]]
) -> None:
    """Law: of memory, unless a rank and its buddy die, and of local disks, unless a node is lost.

    Run, simulator and audit agree.
    Saves are due in memory at each step, on local disks at every 10th, and on the shared disk at every 20th.
    """
    config = changed(config, **TIERS, data__max_train_samples=256, cluster__hosts=("a", "b", "c"), save__mode=mode)
    config = changed(config, strategy__memory_samples=4, strategy__disk_samples=40, strategy__kill_loses=kill_loses)
    config = under(config, tmp_path, f"hour,rank\n{LOSSES}")
    found, events = run(config, tmp_path / "run")
    calm, _ = run(changed(config, strategy__name="none"), tmp_path / "calm")
    recovered = [event for event in events if isinstance(event, Recovered)]
    assert [(event.step, event.resume_step) for event in recovered] == resumed
    assert (outcome(found), found.pls, found.lost_updates) == (outcome(calm), 0.0, 0)
    assert found.applied_updates == calm.applied_updates
    tiers = {event.sequence: event.tier for event in events if isinstance(event, Saved)}
    fracs = {"shared": 1.0, **config.profile.tier_frac}  # pyright: ignore[reportGeneralTypeIssues] - it is given
    assert [event.load_h for event in recovered] == pytest.approx(
        [config.profile.o_load_h * fracs[tiers[event.sequence or 0]] for event in recovered]
    )
    run_spec = RunSpec(config)
    simulated = simulate(run_spec.strategy, job_of(config), run_spec.planned_faults)
    assert found.num_saves == simulated.num_saves > 63, "lost saves are made and charged again"
    for bucket in BUCKETS[:-1]:
        assert getattr(found, f"{bucket}_h") == pytest.approx(getattr(simulated, f"{bucket}_h"), rel=1e-12), bucket
    place = next(place for place, event in enumerate(events) if isinstance(event, Saved) and event.step == 20)
    for lie in ({"tier": "memory"}, {"tier": "disk"}):
        lying = [*events[:place], altered(events[place], **lie), *events[place + 1 :]]
        problems = analysis.check(lying, config.model_dump(mode="json"))
        assert any("save_h is" in line for line in problems)
        assert any("resume_samples is" in line for line in problems)


def test_saves_in_memory_at_each_step_leave_nothing_to_repeat(config: Config, tmp_path: Path) -> None:
    """Law: while no rank dies together with its buddy."""
    config = changed(config, **TIERS, data__max_train_samples=256, strategy__memory_samples=4)
    config = under(config, tmp_path, "hour,rank\n9,ps1\n21,ps0\n21,ps2\n37,ps3\n50.2,ps1\n")
    found, events = run(config, tmp_path / "run")
    calm, _ = run(changed(config, strategy__name="none"), tmp_path / "calm")
    assert (outcome(found), found.lost_h, found.num_failures) == (outcome(calm), 0.0, 4)
    assert [event.rerun for event in events if isinstance(event, Trained)].count(True) == 0


ALL_PRICES = {
    "profile__step_frac": {"mfu": 0.031, "mirror": 0.01, "replica": 0.02},
    "profile__o_save_fixed_h": 0.1,
    "profile__detect_death_h": 0.02,
    "profile__num_trainers": 3,
    "profile__load": "by_bytes",
}
BOUNDS = (
    {"profile__io_bound": "link"},
    {"profile__io_bound": "both", "profile__storage_links": 1.5, "cluster__placement": "table"},
)


@pytest.mark.parametrize("bound", BOUNDS, ids=["link", "both"])
@pytest.mark.parametrize("clock", ["samples", "wall"])
@pytest.mark.parametrize("name", ["full", "cpr_mfu", "cpr_mirror", "buddy"])
def test_run_simulator_closed_form_and_audit_agree_on_all_prices_at_once(
    config: Config, tmp_path: Path, name: str, clock: str, bound: dict[str, Any]
) -> None:
    """Law: every bucket, on both clocks. Closed forms are of even shards and of as many failures as there are."""
    config = changed(config, strategy__name=name, data__max_train_samples=256, trace__clock=clock)
    config = saving_every(changed(config, **ALL_PRICES, **bound), 60)
    finished, _ = run(config, tmp_path / name)  # whose audit finds nothing
    run_spec = RunSpec(config)
    simulated = simulate(run_spec.strategy, job_of(config), run_spec.planned_faults)
    parts = run_spec.strategy.step_parts
    assert bool(parts) == (name != "full")
    if run_spec.strategy.tracker is not None:  # a budget that need not be used up, rows that the mirror sends
        assert finished.save_h <= simulated.save_h * (1 + 1e-12)
        assert finished.steps_h == simulated.steps_h == steps_h(run_spec.costs, parts)
        return
    for bucket in BUCKETS:
        assert getattr(finished, f"{bucket}_h") == pytest.approx(getattr(simulated, f"{bucket}_h"), rel=1e-12), bucket
    assert (finished.overhead_frac, finished.node_h) == (simulated.overhead_frac, simulated.node_h)
    if name == "buddy" and run_spec.config.cluster.placement == "row":
        job_h = run_spec.costs.job_h
        costs = replace(run_spec.costs, mtbf_h=job_h / finished.num_failures)
        assert simulated.total_h == pytest.approx(o_part_h(costs, job_h / finished.num_saves, parts), rel=0.01)


def test_prices_change_hours_and_nothing_else(config: Config, tmp_path: Path) -> None:
    """The same interval under other prices gives the same bits, and the audit derives every charge again."""
    config = changed(config, strategy__name="partial", strategy__interval_samples=60)
    plain, _ = run(config, tmp_path / "plain")
    priced, _ = run(changed(config, **PRICED), tmp_path / "priced")
    assert outcome(priced) == outcome(plain)
    assert (priced.pls, priced.payload_bytes) == (plain.pls, plain.payload_bytes)
    assert 0 < priced.reschedule_h < plain.reschedule_h, "spares took over"
    shard = priced.load_h / plain.load_h
    assert 0 < shard < 1 / 3, "one of four shards in most failures, and no dense network"
    assert plain.save_h < priced.save_h < plain.save_h + 4.0 * priced.num_saves, "saves waited for each other"


@pytest.mark.parametrize(("samples", "sizes"), [(40, [40] * 20 + [86]), (None, [86] * 20)])
def test_a_curve_of_twenty_points_leaves_the_result_alone(
    config: Config, tmp_path: Path, samples: int | None, sizes: list[int]
) -> None:
    """By default AUC is measured at 20 points on a fixed part of the set, and the result on the whole set as before.

    Its lookups touch no tracker, counter or row; and a sample position is evaluated once, reruns or not.
    """
    config = saving_every(changed(config, strategy__name="full" if samples else "cpr_mfu"), 80)
    plain, (*_, whole, _) = run(config, tmp_path / "plain")
    finished, events = run(changed(config, eval__points=20, eval__curve_samples=samples), tmp_path / "curve")
    assert (outcome(finished), finished.lost_updates) == (outcome(plain), plain.lost_updates)
    evaluations = [event for event in events if isinstance(event, Evaluated)]
    assert [event.num_samples for event in evaluations] == sizes
    assert [event.step for event in evaluations][:20] == [*range(13, 256, 13), 256]
    assert altered(evaluations[-1], machine={}) == altered(whole, machine={})


def test_at_a_boundary_saves_come_before_kills(config: Config, tmp_path: Path) -> None:
    """A kill at the boundary of a save finds everything saved: it loses nothing."""
    config = under(config, tmp_path, "hour,rank\n7.0,ps2\n")  # 7 of 56 h: the boundary after 32 of 256 steps
    config = changed(config, strategy__name="partial", strategy__interval_samples=32 * 4)
    finished, events = run(config, tmp_path / "run")
    story = [event.kind for event in events if event.step == 32 and event.kind != "train"]
    assert story == ["save", "fault", "lost", "regroup", "recover", "drop"]
    assert finished.pls == 0
    assert finished.lost_updates == 0


def test_a_failure_of_two_ranks_is_charged_once(config: Config, tmp_path: Path) -> None:
    """Load and reschedule once per failure, PLS once per rank."""
    trace = tmp_path / "two.csv"
    trace.write_text("hour,rank\n28,ps0\n28,ps3\n")
    finished, events = run(changed(config, strategy__name="never_save", trace__path=str(trace)), tmp_path / "run")
    (recovered,) = [event for event in events if isinstance(event, Recovered)]
    assert recovered.pls == {"ps0": 0.125, "ps3": 0.125}  # half of the samples, a quarter of the rows each
    assert (finished.num_failures, finished.num_lost_ranks) == (1, 2)
    assert finished.load_h == pytest.approx(config.profile.o_load_h)
    assert finished.reschedule_h == pytest.approx(config.profile.o_res_h)


def test_a_rank_that_dies_twice_is_charged_from_its_restore(config: Config, tmp_path: Path) -> None:
    """By default samples are lost once; with pls_since=save a second death pays for the first's again."""
    config = under(config, tmp_path, "hour,rank\n14,ps1\n28,ps1\n", strategy__name="never_save")
    once, _ = run(config, tmp_path / "once")
    twice, _ = run(changed(config, metrics__pls_since="save"), tmp_path / "twice")
    assert once.pls == pytest.approx((0.25 + 0.25) / 4)
    assert twice.pls == pytest.approx((0.25 + 0.5) / 4)


def test_a_planned_kill_that_does_not_happen_fails_the_run(config: Config, tmp_path: Path) -> None:
    """A trainer that never stops for planned kills must not produce a result."""
    parts = Parts(train=lambda config, root, kills, *rest: trainer.train(config, root, (), *rest))
    with pytest.raises(RunFailed, match=r"expected every planned kill, got none at steps 15, "):
        run(config, tmp_path / "run", parts)
    assert not (tmp_path / "run" / "DONE").exists()


def test_seeds_decide(config: Config, tmp_path: Path) -> None:
    """Another seed gives other parameters, of every rank."""
    config = changed(config, strategy__name="none", trace__path=None, data__max_train_samples=16)
    first, other = (run(changed(config, seed=seed), tmp_path / str(seed))[0].digests for seed in (0, 1))
    assert first.keys() == other.keys()
    assert not first.items() & other.items()


def test_steps_and_batches_of_evaluations_are_progress(config: Config, tmp_path: Path) -> None:
    """Law: once for the start, each step, and each batch of the evaluations; steps run again count too."""
    found: list[Counter[int]] = []

    def train(*arguments: Any) -> None:
        counts = Counter[int]()
        found.append(counts)
        arguments[-1].advanced = lambda step: counts.update([step])  # the supervisor
        trainer.train(*arguments)

    config = under(config, tmp_path, "hour,rank\n28,ps1\n", data__max_train_samples=64)  # after step 8
    config = changed(config, strategy__name="full", strategy__interval_samples=1000, eval__every_steps=12)
    config = changed(config, eval__batch_size=10, eval__max_samples=30, eval__curve_samples=20)
    assemble.run(config, tmp_path / "run", parts=Parts(train=train))
    expected = Counter({0: 1} | dict.fromkeys(range(1, 9), 2) | dict.fromkeys(range(9, 17), 1))
    assert found == [expected + Counter({8: 3, 12: 2, 16: 2 + 3})]


@pytest.mark.parametrize("seed", range(20))
def test_partial_recoveries_and_rollbacks_may_take_turns(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Law: the run ends, and its record adds up, whatever the turns; a rollback to the start undoes all before it."""

    def drawn(_self: CprVanilla, lost: Sequence[str], progress: Progress) -> RecoveryPlan:
        kinds.append("rollback" if rng.random() < 0.5 else "checkpoint")
        return RecoveryPlan(kinds=dict.fromkeys(lost, kinds[-1]))

    rng, kinds = generator(seed, "turns"), list[str]()
    monkeypatch.setattr(CprVanilla, "plan_recovery", drawn)
    hours = sorted(rng.uniform(2, 54, size=14).round(2))
    path = tmp_path / "trace.csv"
    path.write_text("hour,rank\n" + "".join(f"{hour},ps{rng.integers(4)}\n" for hour in hours))
    interval = int(rng.integers(40, 400))
    config = changed(config, strategy__name="cpr_vanilla", strategy__interval_samples=interval, trace__path=str(path))
    # On the wall clock failures strike while steps are run again, too.
    _, events = run(changed(config, trace__clock="wall" if seed % 2 else "samples"), tmp_path / "run")
    assert len({*kinds}) == 2
    recovered = [event for event in events if isinstance(event, Recovered)]
    assert [event.rollback for event in recovered] == [kind == "rollback" for kind in kinds]


@pytest.mark.parametrize("name", ["partial", "cpr_vanilla", "differential"])
def test_a_guard_of_0_is_full_recovery(config: Config, tmp_path: Path, name: str) -> None:
    """Law: at the same interval the run is that of ``full``, but for the names of the strategy and its options."""
    config = saving_every(changed(config, data__max_train_samples=256), 60)
    full, _ = run(changed(config, strategy__name="full", strategy__interval_samples=60), tmp_path / "full")
    options = {"strategy__name": name, "strategy__interval_samples": 60, "strategy__recovery": "partial"}
    guarded, events = run(changed(config, **options, strategy__guard=0), tmp_path / name)
    assert outcome(guarded) == outcome(full)
    assert (guarded.lost_h, guarded.pls, guarded.lost_updates) == (full.lost_h, 0, 0)
    recovered = [event for event in events if isinstance(event, Recovered)]
    assert all(event.rollback or not event.lost_updates for event in recovered)


@pytest.mark.parametrize("name", ["partial", "cpr_mfu", "cpr_oldest"])
def test_a_guard_bounds_what_is_lost(config: Config, tmp_path: Path, name: str) -> None:
    """Law: no failure leaves more than it allows, and some are still recovered partially."""
    config = changed(config, strategy__name=name, strategy__interval_samples=200)
    free, _ = run(config, tmp_path / "free")
    config = changed(config, strategy__guard=60 * free.pls)
    guarded, events = run(config, tmp_path / "guarded")
    assert {event.rollback for event in events if isinstance(event, Recovered)} == {True, False}
    assert guarded.pls <= 0.6 * free.pls
    simulated = simulate(RunSpec(config).strategy, job_of(config), RunSpec(config).planned_faults)
    assert (guarded.pls, guarded.lost_h) == pytest.approx((simulated.pls, simulated.lost_h), rel=1e-12)


def test_a_rollback_undoes_the_partial_recoveries_after_its_save(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: what they lost is trained again; if all is, the run ends with the bits of no failure, and nothing lost."""

    def by_turn(_self: CprVanilla, lost: Sequence[str], _progress: Progress) -> RecoveryPlan:
        turns.append(len(turns))
        return RecoveryPlan(kinds=dict.fromkeys(lost, "rollback" if turns[-1] % 2 else "checkpoint"))

    turns: list[int] = []
    monkeypatch.setattr(CprVanilla, "plan_recovery", by_turn)
    path = tmp_path / "trace.csv"
    path.write_text("hour,rank\n16,ps0\n20,ps1\n32,ps2\n38,ps0\n")
    config = changed(config, strategy__name="cpr_vanilla", strategy__interval_samples=256, trace__path=str(path))
    finished, events = run(config, tmp_path / "mixed")
    assert [event.rollback for event in events if isinstance(event, Recovered)] == [False, True, False, True]
    calm, _ = run(changed(config, strategy__name="none"), tmp_path / "none")
    assert (finished.digests, finished.lost_updates, finished.pls) == (calm.digests, 0, 0.0)
