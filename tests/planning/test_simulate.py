"""The event-driven simulator against a walk over every boundary."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from harness.core.errors import ConfigError
from harness.core.faults import Hang, Partition, PlannedFault, Strike
from harness.core.placement import Placement
from harness.core.plans import Costs, Progress, SavePlan, ps_rank
from harness.core.pls import rank_weights
from harness.core.strategies import OPTIONS, STRATEGIES, make_strategy, options_of
from harness.core.strategy import Strategy
from harness.core.whole_strategies import Full
from harness.planning.simulate import Job, SaveSizes, save_sizes, saves_of, simulate
from harness.store.kinds import SAVE_KINDS, RowCounts, SaveKind
from harness.traces.schedule import schedule
from harness.traces.trace import parse_trace

NUM_STEPS, BATCH, NUM_PS = 400, 8, 4
COSTS = Costs(
    job_h=56,
    mtbf_h=5.6,
    o_save_h=0.1,
    o_load_h=0.04,
    o_res_h=0.05,
    num_ps=NUM_PS,
    ranks_per_failure=1,
    pls_target=0.1,
    total_samples=NUM_STEPS * BATCH,
)
JOB = Job(
    costs=COSTS,
    batch_size=BATCH,
    num_steps=NUM_STEPS,
    weights=rank_weights(Placement("row", (10,), NUM_PS)),
    sizes=SaveSizes(
        rows=RowCounts(all=240, tracked=230, chosen=10, mirrored=5),
        width=1,
        dense=40,
        shards={ps_rank(k): 240 for k in range(NUM_PS)},
    ),
)


def draw_strikes(rng: random.Random) -> tuple[PlannedFault, ...]:
    """Up to a dozen strikes of one to three ranks, boundaries 0 and the last among them."""
    steps = sorted(rng.sample([0, 1, NUM_STEPS - 1, *range(2, NUM_STEPS - 1)], rng.randrange(12)))
    ranks = [tuple(ps_rank(i) for i in sorted(rng.sample(range(NUM_PS), rng.randint(1, 3)))) for _ in steps]
    return tuple(
        PlannedFault(step=step, strikes=dict.fromkeys(who, Strike(0.0, 1)))
        for step, who in zip(steps, ranks, strict=True)
    )


def walk(strategy: Strategy, planned_kills: Sequence[PlannedFault]) -> tuple[float, float, int, int]:
    """(PLS, lost hours, bytes saved, saves): every step run, lost steps run again, every boundary asked."""
    pending = {planned_kill.step: planned_kill for planned_kill in planned_kills}
    step, saved_step, lost_steps, num_bytes, num_saves = 0, 0, 0, 0, 0
    since = dict.fromkeys(JOB.weights, 0)
    pls_samples = 0
    while True:
        progress = Progress(
            step=step,
            samples=step * BATCH,
            previous_samples=max(0, step - 1) * BATCH,
            total_samples=COSTS.total_samples,
            saved_step=saved_step,
            saved_samples=saved_step * BATCH,
        )
        plan = strategy.plan_save(progress) if step > saved_step else None
        if plan:
            saved_step, num_saves = step, num_saves + 1
            num_bytes += {"priority": 160, "tracked": 120, "with_mirror": 200}.get(plan.kind, 1000)
            if plan.closes_interval:
                since = dict.fromkeys(since, step)
        planned_kill = pending.pop(step, None)
        recovery = planned_kill and strategy.plan_recovery(frozenset(planned_kill.ranks), progress)
        if recovery and "rollback" in recovery.kinds.values():
            lost_steps, step = lost_steps + step - saved_step, saved_step
        elif recovery:
            for rank in (rank for rank, kind in recovery.kinds.items() if kind != "replica"):
                pls_samples += (step - since[rank]) * BATCH
                since[rank] = step
        if step == NUM_STEPS:
            return pls_samples / COSTS.total_samples / NUM_PS, lost_steps / NUM_STEPS * 56, num_bytes, num_saves
        step += 1


@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - {"none"}))
def test_the_simulator_equals_a_walk_over_every_boundary(name: str) -> None:
    """PLS, lost hours, bytes and saves of random schedules, at intervals from below a batch to beyond the job."""
    rng = random.Random(name)
    intervals = [None, 1, 7, 8, 9, 60, 64, 250, 800, 801, 3192, 3200, 5000]
    for interval in intervals:
        untracked = "interval" if name == "cpr_mirror" else rng.choice(["priority", "interval"])
        settings = {"interval_samples": interval, "r": rng.choice([0.125, 0.3, 0.1, 1.0]), "untracked": untracked}
        own = {key: value for key, value in settings.items() if key in OPTIONS[name].model_fields}
        strategy = make_strategy(options_of(name, **own), COSTS)
        for _ in range(4):
            planned_kills = draw_strikes(rng)
            outcome = simulate(strategy, JOB, planned_kills)
            pls, lost_h, num_bytes, num_saves = walk(strategy, planned_kills)
            assert (outcome.payload_bytes, outcome.num_saves) == (num_bytes, num_saves)
            assert outcome.pls == pytest.approx(pls, rel=1e-12)
            assert outcome.lost_h == pytest.approx(lost_h, rel=1e-12)
            assert outcome.load_h == pytest.approx(len(planned_kills) * 0.04)
            assert outcome.reschedule_h == pytest.approx(len(planned_kills) * 0.05)


@pytest.mark.parametrize("name", ["full", "partial", "never_save"])
def test_a_rank_that_is_mute_is_given_up_first(name: str) -> None:
    """A failure with a rank that hangs or is cut off costs ``detect_h`` more, once; one of ranks that end does not."""
    job = replace(JOB, costs=replace(COSTS, detect_h=0.5))
    ends = PlannedFault(step=50, strikes={"ps1": Strike(0.0, 1)})
    mute = PlannedFault(
        step=90, strikes={"ps0": Strike(0.0, 2, Hang(name="hang")), "ps1": Strike(0.0, 2, Partition(name="partition"))}
    )
    outcome = simulate(make_strategy(options_of(name), COSTS), job, (ends, mute))
    assert outcome.reschedule_h == pytest.approx(0.05 + 0.05 + 0.5)


class Adaptive(Full):
    """Saves 40 samples after the newest save for as long as that lies in the first half, then after 100."""

    def __init__(self, asked: list[Progress]) -> None:
        super().__init__(Full.Options(name="full"), COSTS)
        self.asked = asked

    def plan_save(self, progress: Progress) -> SavePlan | None:
        """At the first boundary that the forecast of the newest save names."""
        self.asked.append(progress)
        assert progress.saved_samples is not None
        return SavePlan(kind="full") if progress.samples >= self._due(progress.saved_samples) else None

    def next_save(self, progress: Progress, after: int | None = None) -> int | None:
        """The newest save's, None beyond the run."""
        assert progress.saved_samples is not None
        due = self._due(progress.saved_samples)
        return due if due < progress.total_samples else None

    def _due(self, saved_samples: int) -> int:
        return saved_samples + (40 if saved_samples < COSTS.total_samples // 2 else 100)


def test_an_adaptive_strategy_is_asked_with_what_is_true() -> None:
    """It is asked where it forecast a save, with the newest save of then, and never before."""
    asked: list[Progress] = []
    saves = saves_of(Adaptive(asked), batch_size=BATCH, num_steps=NUM_STEPS, total_samples=COSTS.total_samples)
    steps = [step for step, _ in saves]
    assert steps == [*range(5, 201, 5), *range(213, 400, 13)]
    assert [progress.step for progress in asked] == steps
    assert [progress.saved_step for progress in asked] == [0, *steps[:-1]]


def test_only_boundaries_with_a_save_are_visited() -> None:
    """All saves of a walk over every boundary, by as many questions as there are saves."""
    for interval, r in [(801, 0.125), (1000, 0.3), (77, 0.1), (3000, 0.007)]:
        strategy = make_strategy(options_of("cpr_mfu", interval_samples=interval, r=r), COSTS)
        every = {}
        for step in range(1, NUM_STEPS + 1):
            samples = (step - 1) * BATCH
            progress = Progress(
                step=step, samples=step * BATCH, previous_samples=samples, total_samples=COSTS.total_samples
            )
            if plan := strategy.plan_save(progress):
                every[step] = plan
        found = saves_of(strategy, batch_size=BATCH, num_steps=NUM_STEPS, total_samples=COSTS.total_samples)
        assert every
        assert dict(found) == every


def test_sizes_add_up_over_shards() -> None:
    """Tables of 100 and 30 rows on 4 ranks, the first tracked: K = floor(25/8) = 3 rows and ids on each."""
    sizes = save_sizes(Placement("row", (100, 30), 4), width=16, dense_bytes=7, tracked=(0,), r=0.125)
    assert sizes.full == 130 * 64 + 7
    assert sizes.of("priority") == 4 * 3 * (64 + 4) + 30 * 64 + 7


def test_sizes_with_a_mirror() -> None:
    """The same tables with a mirror of 2 rows of each rank, which only a save at the end of an interval writes."""
    placement = Placement("row", (100, 30), 4)
    sizes = save_sizes(placement, width=16, dense_bytes=7, tracked=(0,), r=0.125, share=0.08)
    assert sizes.of("tracked") == 4 * 3 * (64 + 4) + 7
    assert sizes.of("with_mirror") == 4 * 5 * (64 + 4) + 30 * 64 + 7
    whole = save_sizes(placement, width=16, dense_bytes=7, tracked=(0,), r=0.125, share=1.0)
    assert whole.of("tracked") == 7, "no row is left to choose"
    assert whole.of("with_mirror") == 100 * (64 + 4) + 30 * 64 + 7


class _EveryId(SaveKind):
    """Every row, by its id."""

    def rows(self, shard: Any, tracker: Any, tracked: Sequence[int], step: int) -> dict:
        """Not asked here."""
        raise AssertionError

    def most_rows(self, of: RowCounts) -> tuple[int, int]:
        """All rows, by id."""
        return 0, of.all


def test_a_kind_of_save_says_its_own_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: the simulator prices a kind that was added by the kind itself, and refuses one that does not exist."""
    monkeypatch.setitem(SAVE_KINDS, "every_id", _EveryId())
    sizes = save_sizes(Placement("row", (100, 30), 4), width=16, dense_bytes=7, tracked=(0,), r=0.125)
    assert sizes.of("every_id") == 130 * (64 + 4) + 7
    with pytest.raises(ConfigError, match=r"kind of save: expected one of full, .*, got 'no such'"):
        sizes.of("no such")


def test_only_lost_ranks_are_failures() -> None:
    """Slow ranks cost their hours; writes that fail and bits that flip are no deaths. A rank that hangs costs more."""
    text = (
        "hour,rank,fault,factor,repair_h\n7,ps1,slow,3,14\n9,ps2,disk_full,,\n14,ps2,slow,2,14\n20,ps3,bitflip,,\n"
        "30,ps0,kill,,\n40,ps1,hang,,\n"
    )
    planned = schedule(
        parse_trace(text.splitlines(), "trace"),
        job_h=COSTS.job_h,
        total_samples=COSTS.total_samples,
        batch_size=BATCH,
        num_steps=NUM_STEPS,
        num_ps=NUM_PS,
        seed=0,
    )
    costs = replace(COSTS, detect_h=0.5)
    outcome = simulate(make_strategy(options_of("partial"), costs), replace(JOB, costs=costs), planned)
    assert outcome.num_failures == 2
    assert outcome.reschedule_h == pytest.approx(28 + 7 + 2 * COSTS.o_res_h + 0.5)
