"""Laws of compute ranks and of ``trainer0``; that their number changes no bit is in ``tests/run/test_equivalence.py``.

``arguments`` of a trainer's job: config, store, faults, cluster, supervisor.
"""

import logging
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import analysis
from harness.cluster import rank_process
from harness.cluster.launcher import RankContext
from harness.cluster.server import RankSpec
from harness.config.model import Config
from harness.core.errors import RunFailed
from harness.core.events import Finished, Lost, Recovered, Regrouped, Saved
from harness.core.plans import is_ps
from harness.core.shares import Share
from harness.record.event_log import read_events
from harness.record.rundir import read_config
from harness.run import assemble, trainer
from harness.run.verify import compare_records
from tests import runs
from tests.model.test_backends import needs_compiled
from tests.runs import changed, run_on_both, saving_every, under

pytestmark = needs_compiled
NUM_STEPS = 30
NUM_SEEDS = int(os.environ.get("TEST_SEEDS", "1"))
"""Of runs in which compute ranks die: `TEST_SEEDS=200 pytest tests/run/test_trainers.py -k lose_nothing` for more."""


@pytest.fixture
def several(config: Config) -> Config:
    """30 steps of 4 samples on 4 PS ranks, two of which die; three trainers."""
    config = changed(
        saving_every(config, 36),
        engine="rpc",
        trainer__backend="compiled",
        strategy__name="partial",
        resume__every_s=None,
    )
    return changed(config, data__max_train_samples=4 * NUM_STEPS, cluster__num_trainers=3)


def run(config: Config, folder: Path, **parts: Any) -> Finished:
    """Carry out a run with replaced :class:`harness.run.assemble.Parts`."""
    return assemble.run(config, folder, parts=assemble.Parts(**parts))


def once(path: Path) -> bool:
    """Whether this is the first call with this path."""
    with suppress(FileExistsError):
        path.touch(exist_ok=False)
        return True
    return False


CHARGES = ("reschedule_h", "overhead_frac", "num_failures", "num_lost_ranks", "num_unplanned", "generation", "digests")
"""Fields of the last event that the deaths of trainers change."""


def facts(run_dir: Path) -> tuple[list[dict[str, Any]], list[tuple[int, float, bool]]]:
    """The events of a run but for the deaths of trainers and what they cost, without what the machine has to do with.

    A PS rank and a trainer may die as one failure, so ``planned`` and ``generation`` go too. A failure ends a block of
    losses, so these are apart: of each step its number, its loss, and whether it had run before.
    """
    events = [event.to_json() for event in read_events(run_dir / "events.jsonl")]
    for name in CHARGES:
        del events[-1][name]
    for event in events:
        for name in ("ranks", "unplanned_ranks", "replaced"):
            if name in event:
                event[name] = [rank for rank in event[name] if is_ps(rank)]
        for name in ("machine", "planned", "generation"):
            event.pop(name, None)
    blocks = [event for event in events if event["event"] == "train"]
    losses = [
        (step, loss, block["rerun"])
        for block in blocks
        for step, loss in enumerate(block["losses"], block["first_step"])
    ]
    others = [each for each in events if each not in blocks and each.get("ranks", each.get("replaced")) != []]
    return others, losses


# --- compute ranks ----------------------------------------------------------------------------------------------------


def dying_main(folder: Path, deaths: Mapping[str, tuple[int, str]], spec: RankSpec, context: RankContext) -> None:
    """Main function of a rank; a compute rank kills itself before or after one of its shares, by its number, once."""
    at, moment = deaths.get(context.rank, (0, ""))
    if at and once(folder / context.rank):
        make, counts = spec.make_share_trainer, Counter[str]()
        assert make is not None

        def make_dying() -> Callable[[Share], Tensor]:
            compute = make()

            def computed(share: Share) -> Tensor:
                counts["shares"] += 1
                if counts["shares"] == at and moment == "before":
                    os.kill(os.getpid(), signal.SIGKILL)
                part_PW = compute(share)
                if counts["shares"] == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return part_PW

            return computed

        object.__setattr__(spec, "make_share_trainer", make_dying)
    rank_process.ps_main(spec, context)


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_compute_ranks_that_die_lose_nothing(several: Config, tmp_path: Path, seed: int) -> None:
    """Law: but for their loss the record is that of the undisturbed run, at whatever share one or both of two die."""
    chance = random.Random(seed)
    cache = chance.choice(["none", "lookahead", "stale"])
    strategy = chance.choice(["full", "partial", "cpr_mfu", "cpr_ssu", "cpr_mirror", "buddy", "differential"])
    cache = "none" if strategy == "cpr_mirror" else cache
    config = changed(several, cache__mode=cache, save__mode=chance.choice(["sync", "async"]), strategy__name=strategy)
    config = changed(config, trace__allow_unplanned=True, metrics__log_every_steps=7)
    deaths = {
        f"trainer{index}": (chance.randrange(1, NUM_STEPS), chance.choice(["before", "after"]))
        for index in chance.sample([1, 2], chance.choice([1, 2]))
    }
    config = changed(config, cluster__spares=chance.choice([0, 1]))
    run(changed(config, engine="local"), tmp_path / "whole")
    finished = run(config, tmp_path / "again", ps_main=partial(dying_main, tmp_path, deaths))
    assert facts(tmp_path / "again") == facts(tmp_path / "whole")
    assert finished.num_unplanned == len(deaths)
    assert analysis.check(read_events(tmp_path / "again" / "events.jsonl"), read_config(tmp_path / "again")) == []


def test_a_compute_rank_that_a_trace_makes_mute_is_found_by_its_deadline(several: Config, tmp_path: Path) -> None:
    """Law: by a tenth of it, and nobody else is blamed."""
    lines = "10,trainer1,,hang\n20,trainer2,forward,hang\n30,trainer2,apply,hang\n"
    config = under(several, tmp_path, f"hour,rank,phase,fault\n{lines}", cluster__rpc_timeout_s=1.0)
    _, events = run_on_both(config, tmp_path)
    mute = [event.machine["mute"] for event in events if isinstance(event, Regrouped)]
    assert [[*each] for each in mute] == [["trainer1"], ["trainer2"], ["trainer2"]]
    detected_s = [event.machine["seconds"] for event in events if isinstance(event, Lost)]
    assert min(detected_s) <= 1.1


@pytest.mark.parametrize("engine", ["local", "rpc"])
def test_a_shard_that_is_restored_while_a_batch_is_computed_gets_its_gradients(
    several: Config, tmp_path: Path, engine: str
) -> None:
    """Law: copies that the restoration drops are fetched anew; with no staleness the bits are those without copies."""
    trace = "hour,rank,phase\n10,trainer1,forward\n11,ps1,regroup\n"
    config = under(several, tmp_path, trace, cluster__num_trainers=2, cache__staleness=0, cache__max_rows=130)
    runs.run(changed(config, engine="local"), tmp_path / "none")
    runs.run(changed(config, engine=engine, cache__mode="stale"), tmp_path / "stale")
    assert compare_records(tmp_path / "none", tmp_path / "stale", ignored={"cache", "config_hash", "settings"}) == []


PLAIN, AHEAD = ("none", "cpr_mfu", "sync"), ("lookahead", "full", "async")
STALE = ("stale", "partial", "async")


@pytest.mark.parametrize(
    ("phases", "settings"),
    [
        (("lookup", "apply", "forward"), PLAIN),
        (("save", "manifest", "eval"), AHEAD),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in ((("restore", "regroup", "boundary"), PLAIN), (("boundary", "forward", "apply"), STALE))
        ),
    ],
    ids=str,
)
def test_a_trace_kills_compute_ranks_in_every_phase(
    several: Config, tmp_path: Path, phases: tuple[str, str, str], settings: tuple[str, str, str]
) -> None:
    """Law: the record of processes that are killed is that of engine ``local``, which has none.

    A compute rank and a PS rank, one compute rank, two at once, and ``trainer0`` between two steps, alone and soon
    after another died.
    """
    first, second, third = phases
    cache, strategy, mode = settings
    struck = [(10, "ps1", first), (10, "trainer1", first), (20, "trainer2", second), (22, "trainer0", "boundary")]
    struck += [(40, "trainer1", third), (40, "trainer2", third), *((hour, "ps3", "boundary") for hour in (12, 24, 44))]
    lines = [f"{hour},{rank},{when}" for hour, rank, when in sorted(struck)]
    config = under(several, tmp_path, "\n".join(["hour,rank,phase", *lines]), eval__every_steps=10)
    config = changed(config, cache__mode=cache, strategy__name=strategy, save__mode=mode)
    finished, events = run_on_both(config, tmp_path)
    lost = [{*event.ranks} for event in events if isinstance(event, Lost)]
    assert finished.num_lost_ranks == sum(map(len, lost))
    assert any({"ps1", "trainer1"} <= ranks for ranks in lost)


def test_a_spare_takes_over_from_a_compute_rank(several: Config, tmp_path: Path) -> None:
    """Law: the process was there before; a failure in which each dead rank has a spare waits for nothing."""
    trace = "hour,rank,repair_h\n14,trainer1,6\n40,ps1,6\n40,trainer2,6\n"
    config = under(several, tmp_path, trace, metrics__log_every_steps=1)
    config = changed(config, cluster__spares=1, profile__spare_o_res_h=0.01, trace__repair="reschedule")
    _, events = run_on_both(config, tmp_path)
    assert [event.reschedule_h for event in events if isinstance(event, Recovered)] == [0.01, 6]
    (started, *_), regrouped = events, [event.machine for event in events if isinstance(event, Regrouped)]
    assert regrouped[0]["spares"] == {"trainer1": "spare0"}
    assert regrouped[0]["pids"]["trainer1"] == started.machine["pids"]["spare0"]


# --- trainer0 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", ["none", "lookahead", "stale"])
def test_nothing_is_lost_with_trainer0_while_another_trainer_lives(several: Config, tmp_path: Path, cache: str) -> None:
    """Law: the dense network, caches and ledgers are those of the undisturbed run."""
    for name, engine, lines in (("whole", "local", ""), ("again", "rpc", "10,trainer0\n31,trainer0\n")):
        config = under(several, tmp_path, f"hour,rank\n{lines}", cache__mode=cache, engine=engine)
        _, events = runs.run(config, tmp_path / name)
    assert [event.dense for event in events if isinstance(event, Recovered)] == ["kept", "kept"]
    undisturbed, disturbed = facts(tmp_path / "whole"), facts(tmp_path / "again")
    for others, _ in (undisturbed, disturbed):
        others[:] = [each for each in others if each["event"] in ("save", "eval")]
    assert disturbed == undisturbed


@pytest.mark.parametrize(
    ("strategy", "dense"),
    [("full", "rollback"), ("partial", "checkpoint"), ("never_save", "initial"), ("buddy", "checkpoint")],
)
def test_all_trainers_may_die_between_two_steps(several: Config, tmp_path: Path, strategy: str, dense: str) -> None:
    """Law: with a PS rank and without; the strategy says where the dense network restarts, the record what it lacks.

    That both engines agree, and what full recovery ends with, is in ``test_equivalence``.
    """
    struck = ["10,ps1", "10,trainer0", "10,trainer1", "31,trainer0", "31,trainer1", "40,ps2"]
    trace = "\n".join(["hour,rank", *struck])
    config = under(several, tmp_path, trace, engine="local", cluster__num_trainers=2)
    mode = "async" if strategy == "partial" else "sync"
    _, events = runs.run(changed(config, strategy__name=strategy, save__mode=mode), tmp_path / "run")
    recovered = [event for event in events if isinstance(event, Recovered)]
    trainers = ["trainer0", "trainer1"]
    assert [event.ranks for event in recovered] == [["ps1", *trainers], trainers, ["ps2"]]
    assert [event.dense for event in recovered] == [dense, dense, "kept"]
    for event in recovered[:2]:
        before = [save.samples for save in events[: events.index(event)] if isinstance(save, Saved)]
        restarts_at = event.samples if dense == "rollback" else max(before, default=0)
        assert event.lost_dense_samples == event.samples - restarts_at


@pytest.mark.parametrize(
    ("struck", "hour", "lost"),
    [
        ("9,ps2,manifest,kill\n9,ps3,manifest,hang", 16.8, [["ps2", "ps3", "trainer0", "trainer1"]]),
        ("14,ps2,lookup,kill", 14, [["ps2", "trainer0", "trainer1"]]),
        ("9,trainer1,regroup,kill", 14, [["trainer0", "trainer1"], ["trainer1"]]),
    ],
)
def test_ranks_may_die_in_a_phase_around_the_death_of_all_trainers(
    several: Config, tmp_path: Path, struck: str, hour: float, lost: list[list[str]]
) -> None:
    """Law: what nobody has found yet is part of the failure, and a stopped rank is not waited for.

    There is a save at hour 16.8, before the faults of that boundary.
    """
    trainers = f"{hour},trainer0,,\n{hour},trainer1,,\n"
    trace = f"hour,rank,phase,fault\n{struck}\n{trainers}"
    config = under(several, tmp_path, trace, cluster__num_trainers=2)
    _, events = run_on_both(changed(config, cluster__rpc_timeout_s=1.5, cluster__join_timeout_s=30.0), tmp_path)
    assert [event.ranks for event in events if isinstance(event, Lost)] == lost


def test_a_compute_rank_that_dies_while_trainer0_is_replaced_takes_no_state_with_it(
    several: Config, tmp_path: Path
) -> None:
    """Law: it lived when ``trainer0`` was killed, so that state was handed over; the audit judges alike."""
    trace = "hour,rank,phase\n10,trainer0,\n10,ps1,\n10,trainer1,regroup\n"
    _, events = run_on_both(under(several, tmp_path, trace, cluster__num_trainers=2), tmp_path)
    assert [event.dense for event in events if isinstance(event, Recovered)] == ["kept"]


def dying_newborn(folder: Path, rank: str, num: int, spec: RankSpec, context: RankContext) -> None:
    """Main function of a rank; the process that is the ``num``-th one of this name dies before it joins."""
    if context.rank == rank:
        number = next(each for each in range(1, 9) if once(folder / f"{rank}-{each}"))
        if number == num:
            os.kill(os.getpid(), signal.SIGKILL)
    rank_process.ps_main(spec, context)


@pytest.mark.parametrize("rank", ["ps1", "trainer1"])
def test_a_rank_may_die_before_the_first_world_is_formed(several: Config, tmp_path: Path, rank: str) -> None:
    """Law: it is a loss at step 0, and nothing is lost with it."""
    config = changed(several, trace__path=None, trace__allow_unplanned=True)
    finished = run(config, tmp_path / "run", ps_main=partial(dying_newborn, tmp_path, rank, 1))
    lost = [event for event in read_events(tmp_path / "run" / "events.jsonl") if isinstance(event, Lost)]
    assert [(event.step, event.ranks) for event in lost] == [(0, [rank])]
    whole = run(changed(config, engine="local"), tmp_path / "whole")
    assert finished.digests == whole.digests
    assert analysis.check(read_events(tmp_path / "run" / "events.jsonl"), read_config(tmp_path / "run")) == []


@pytest.mark.slow
def test_a_rank_may_die_while_all_start_anew(several: Config, tmp_path: Path) -> None:
    """Law: they start anew once more."""
    config = changed(several, resume__every_s=0.0)
    main = partial(dying_newborn, tmp_path, "trainer1", 2)
    assemble.run(config, tmp_path / "run", parts=assemble.Parts(train=partial(dying, (12,)), ps_main=main))
    run(changed(config, engine="local"), tmp_path / "whole")
    assert compare_records(tmp_path / "whole", tmp_path / "run") == []
    assert (tmp_path / "trainer1-3").exists()


def test_a_rank_may_die_while_a_new_trainer0_joins(several: Config, tmp_path: Path) -> None:
    """Law: after a planned kill of ``trainer0`` it belongs to the same failure."""
    config = under(several, tmp_path, "hour,rank\n10,trainer0\n10,ps1\n", trace__allow_unplanned=True)
    run(config, tmp_path / "run", ps_main=partial(dying_newborn, tmp_path, "ps1", 2))
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert [event.ranks for event in events if isinstance(event, Recovered)] == [["ps1", "trainer0"]]
    assert analysis.check(events, read_config(tmp_path / "run")) == []
    run(changed(config, engine="local"), tmp_path / "whole")
    assert facts(tmp_path / "run")[1] == facts(tmp_path / "whole")[1]


def dying(steps: tuple[int, ...], *arguments: Any) -> None:
    """The trainer's job; it kills itself once after each of these numbers of steps."""
    real = arguments[-1].advanced

    def advanced(step: int) -> None:
        real(step)
        if any(step >= each and once(arguments[1].root / f"died{number}") for number, each in enumerate(steps)):
            os.kill(os.getpid(), signal.SIGKILL)

    arguments[-1].advanced = advanced
    trainer.train(*arguments)


@pytest.mark.parametrize("num_trainers", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_the_run_goes_on_by_itself_when_trainer0_has_died(
    several: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture, num_trainers: int
) -> None:
    """Law: the record is that of a run in which it had not died; the next event has the processes of the new start."""
    config = changed(several, cluster__num_trainers=num_trainers, resume__every_s=0.0)
    config = changed(config, cluster__max_replacements_in_a_row=2)
    with caplog.at_level(logging.WARNING):
        finished = run(config, tmp_path / "again", train=partial(dying, (12, 12, 22)))
    run(changed(config, engine="local"), tmp_path / "whole")
    assert compare_records(tmp_path / "whole", tmp_path / "again") == []
    assert finished.num_unplanned == 0
    deaths = [record.message for record in caplog.records if "all ranks start anew" in record.message]
    assert len(deaths) == 3
    assert "trainer0 (pid " in deaths[0]
    events = read_events(tmp_path / "again" / "events.jsonl")
    assert [len(event.machine["resumed"]) for event in events if "resumed" in event.machine]


@pytest.mark.parametrize(
    ("every_s", "words"),
    [
        (None, "there is no resume point to go on from (resume.every_s)"),
        (0.0, "so did 2 before it at one resume point (cluster.max_replacements_in_a_row)"),
    ],
)
def test_a_trainer0_that_dies_again_and_again_ends_the_run_in_one_line(
    several: Config, tmp_path: Path, every_s: float | None, words: str
) -> None:
    """Law: so does one that dies where there is no resume point."""
    config = changed(several, cluster__num_trainers=1, resume__every_s=every_s, cluster__max_replacements_in_a_row=2)
    with pytest.raises(RunFailed) as failed:
        run(config, tmp_path / "run", train=partial(dying, (12, 12, 12, 12)))
    assert str(failed.value).endswith(words)
    assert not (tmp_path / "run" / "DONE").exists()
