"""The drop in AUC at each failure: what it is, and that measuring it changes nothing.

That runs have the bits that they had without it is in ``tests/golden``, that both engines record the same in
``test_equivalence``.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.cluster.protocol import Exchange
from harness.config.model import Config
from harness.core.events import Dropped, Evaluated, Event, Injected, Recovered, error_of
from harness.core.optimizers import OPTIMIZERS
from harness.core.shard import Shard
from harness.model.metrics import NUM_GROUPS, auc_deviations, exact_auc
from harness.run.assemble import Parts
from harness.run.export import export
from harness.run.spec import RunSpec
from tests.recovery.mortal_ranks import MortalRanks
from tests.runs import changed, facts, run, saving_every, under

DEATHS = "hour,rank\n9,ps1\n20,ps0\n21,ps2\n37,2\n"


@pytest.fixture
def deaths(config: Config, tmp_path: Path) -> Config:
    """A run that learns, under four failures at boundaries, which are evaluated on all test samples."""
    (tmp_path / "deaths.csv").write_text(DEATHS)
    return changed(
        config,
        trace__path=str(tmp_path / "deaths.csv"),
        trainer__learning_rate=0.1,
        eval__recovery_samples=10_000,
        cache__lookahead=16,
        strategy__name="partial",
    )


def drops_of(events: list[Event]) -> list[Dropped]:
    return [event for event in events if isinstance(event, Dropped)]


def test_a_drop_is_the_difference_of_the_aucs_on_both_sides_of_a_failure(deaths: Config, tmp_path: Path) -> None:
    """Law: the first AUC is that of an evaluation at the same boundary, and what a death without saves costs is large.

    With a curve of every step on the same samples, the first AUC is the curve's where the ranks were killed.
    """
    curve = changed(deaths, strategy__name="never_save", eval__every_steps=1, eval__curve_samples=10_000)
    _, events = run(curve, tmp_path / "curve")
    aucs = {event.step: event.auc for event in events if isinstance(event, Evaluated)}
    drops = drops_of(events)
    assert len(drops) == 4
    for drop in drops:
        assert drop.auc_before == aucs[drop.step]
        assert drop.auc_before is not None
        assert drop.auc_after is not None
        assert drop.drop == drop.auc_before - drop.auc_after != 0.0
        assert drop.num_samples == next(event.num_samples for event in events if isinstance(event, Evaluated))


def test_a_recovery_that_loses_nothing_has_no_drop(deaths: Config, tmp_path: Path) -> None:
    """Law: from a replica the model is evaluated as before, to the bit."""
    _, events = run(changed(deaths, strategy__name="buddy"), tmp_path / "buddy")
    assert [drop.drop for drop in drops_of(events)] == [0.0] * 4
    assert all(drop.auc_before for drop in drops_of(events))


def test_a_rollback_has_no_drop_and_is_not_evaluated(deaths: Config, tmp_path: Path) -> None:
    """Law: lost steps run again to the same bits, so that a rollback costs no AUC."""
    _, events = run(changed(deaths, strategy__name="full"), tmp_path / "full")
    assert [(drop.drop, drop.auc_before, drop.num_samples) for drop in drops_of(events)] == [(0.0, None, 0)] * 4


@pytest.mark.parametrize(("mode", "unknown"), [("none", []), ("lookahead", ["ps1", "ps2"]), ("stale", [])])
def test_failures_in_a_phase_are_evaluated_around_their_step(
    deaths: Config, tmp_path: Path, mode: str, unknown: list[str]
) -> None:
    """Law: a failure has one drop wherever in a step it strikes; those that are recovered together have one of both.

    With the lookahead cache, training goes on without the dead rank to the end of a window: then the drop is unknown.
    """
    trace = "hour,rank,phase\n9,ps1,lookup\n15,ps2,forward\n20,ps0,apply\n26,ps3,save\n33,ps1,manifest\n41,ps2,eval\n"
    config = under(deaths, tmp_path, trace + "50,ps0,restore\n50,ps1,\n", cache__mode=mode, eval__every_steps=30)
    finished, events = run(saving_every(config, 100), tmp_path / "phases")
    drops = drops_of(events)
    assert [drop.ranks for drop in drops] == [["ps1"], ["ps2"], ["ps0"], ["ps3"], ["ps1"], ["ps2"], ["ps0", "ps1"]]
    assert sum(drop.num_failures for drop in drops) == finished.num_failures == 7
    assert [rank for drop in drops for rank in drop.ranks if drop.drop is None] == unknown
    assert all((drop.num_samples > 0) == (drop.drop is not None) for drop in drops)


@pytest.mark.parametrize(("optimizer", "cache"), [("sgd", "none"), ("adagrad", "lookahead"), ("sgd", "stale")])
def test_the_movement_of_a_failure_is_the_norm_of_what_its_recovery_undid(
    deaths: Config, tmp_path: Path, optimizer: str, cache: str
) -> None:
    """Law: the distance from the exported model of a run that ends where the ranks die to the initial rows.

    The state of the optimizer is no part of it.
    """
    config = under(deaths, tmp_path, "hour,rank\n9,ps1\n9,ps3\n", trainer__optimizer=optimizer)
    config = changed(config, strategy__name="never_save", eval__movement=True, cache__mode=cache, cache__staleness=0)
    (drop,) = drops_of(run(config, tmp_path / "lost")[1])
    until = changed(config, strategy__name="none", data__max_train_samples=4 * drop.step, store__keep_finished=True)
    run(until, tmp_path / "until")
    export(tmp_path / "until", tmp_path / "model", lambda done, total: None)
    tables = [np.load(path).astype(np.float64) for path in sorted((tmp_path / "model" / "tables").iterdir())]
    spec, squares = RunSpec(config), 0.0
    for rank in (1, 3):
        shard = Shard(spec.placement, rank, spec.model.row_values, seed=config.seed, counts_updates=False)
        assert shard.optimizer is OPTIMIZERS["sgd"], "without state"
        shard.initialise(applied_step=0)
        for number, table in enumerate(tables):
            squares += np.square(table[rank::4] - shard.values_MD[shard.span(number)].numpy()).sum()
    assert drop.movement == pytest.approx(math.sqrt(squares), rel=1e-12)
    assert squares > 0


@pytest.mark.parametrize(
    ("strategy", "interval"), [("full", 100), ("buddy", None), ("partial", 4), ("partial", 100), ("cpr_mfu", 100)]
)
def test_rows_that_were_saved_where_the_rank_dies_do_not_move(
    deaths: Config, tmp_path: Path, strategy: str, interval: int | None
) -> None:
    """Law: a save after each step leaves nothing to undo, nor does a replica; steps that run again undo nothing.

    With seldom saves partial recovery moves rows at every failure. Without the key nothing is known.
    """
    config = changed(deaths, strategy__name=strategy, strategy__interval_samples=interval)
    moved, plain = (
        [drop.movement for drop in drops_of(run(changed(config, eval__movement=is_on), tmp_path / f"{is_on}")[1])]
        for is_on in (True, False)
    )
    if interval == 100 and strategy != "full":
        assert all(moved)
    else:
        assert moved == [0.0] * 4
    assert plain == [None] * 4


def test_without_evaluations_at_recoveries_a_record_is_as_with_them(deaths: Config, tmp_path: Path) -> None:
    """Law: all other events are the same, and those of drops are missing."""
    _, plain = run(changed(deaths, eval__at_recoveries=False), tmp_path / "plain")
    _, measured = run(deaths, tmp_path / "measured")
    assert facts(plain) == facts([event for event in measured if not isinstance(event, Dropped)])


def test_the_deviations_of_parts_give_the_error_of_an_auc() -> None:
    """Law: they add up to 0; of a difference of two AUCs they give the spread over sets of samples that was drawn."""
    generator = np.random.default_rng(7)

    def drawn() -> tuple[float, float]:
        labels = torch.from_numpy((generator.random(800) < 0.25).astype(np.float32))
        first = labels + torch.from_numpy(generator.normal(size=800).astype(np.float32))
        second = first + 0.3 * torch.from_numpy(generator.normal(size=800).astype(np.float32))
        before, after = (auc_deviations(scores, labels) for scores in (first, second))
        assert math.isclose(sum(before), 0.0, abs_tol=1e-12)
        assert len(before) == NUM_GROUPS
        aucs = [exact_auc(scores, labels) or math.nan for scores in (first, second)]
        return aucs[0] - aucs[1], error_of([one - other for one, other in zip(before, after, strict=True)])

    differences, errors = zip(*(drawn() for _ in range(400)), strict=True)
    assert np.mean(np.square(errors)) ** 0.5 == pytest.approx(np.std(differences), rel=0.1)


@pytest.mark.parametrize("phase", ["apply", "forward"])
@pytest.mark.parametrize("mode", ["none", "stale"])
def test_failures_of_neighbouring_steps_have_drops_of_their_own(
    deaths: Config, tmp_path: Path, phase: str, mode: str
) -> None:
    """Law: neither AUC of a drop is measured after another failure of the same drop.

    The first failure is found at the boundary where the second one strikes, before the rows of a batch are pulled.
    """
    hours = [56 / 256 * step - 1e-3 for step in (100, 101)]
    found = []
    for name, last in (("one", ""), ("both", f"{hours[1]},ps2,\n")):
        config = under(deaths, tmp_path, f"hour,rank,phase\n{hours[0]},ps1,{phase}\n{last}")
        config = changed(config, strategy__name="never_save", cache__mode=mode, cache__staleness=0)
        found.append(drops_of(run(config, tmp_path / name)[1]))
    (alone,), drops = found
    assert [drop.ranks for drop in drops] == [["ps1"], ["ps2"]]
    assert drops[0].auc_before == alone.auc_before
    assert drops[0].drop is not None
    assert drops[0].auc_after == drops[1].auc_before != drops[1].auc_after


@pytest.mark.parametrize("name", ["full", "partial"])
def test_a_death_that_is_found_by_an_evaluation_is_no_part_of_the_planned_failure(
    deaths: Config, tmp_path: Path, name: str
) -> None:
    """Law: what was planned happens all the same, and the drop that is known is of that; each AUC is of one model.

    ``ps1`` dies, unplanned, in the evaluation before the planned death of ``ps2``, or in the one after it, which then
    measures what both lost.
    """
    config = under(deaths, tmp_path, f"hour,rank\n{56 / 50 * 20 - 1e-3},ps2\n", trace__allow_unplanned=True)
    config = changed(config, strategy__name=name, data__max_train_samples=200, eval__batch_size=32)
    config = saving_every(config, 32)
    for number in (27, 28, 29, 31, 32, 33):
        MortalRanks.begin({("ps1", number, Exchange): "before"})
        _, events = run(config, tmp_path / str(number), Parts(make_ranks=MortalRanks))
        recovered = [event.ranks for event in events if isinstance(event, Recovered)]
        assert recovered == ([["ps1"], ["ps2"]] if number < 30 else [["ps2"], ["ps1"]])
        assert [(event.step, event.rank) for event in events if isinstance(event, Injected)] == [(20, "ps2")]
        known = [drop.ranks for drop in drops_of(events) if drop.drop is not None]
        together = [["ps2"]] if number < 30 else [["ps2", "ps1"]]
        assert known == (recovered if name == "full" else together)
