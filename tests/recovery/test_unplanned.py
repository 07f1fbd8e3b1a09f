"""Deaths that no trace planned, at any moment: in the middle of a step, of a save, of another rank's recovery."""

import json
import os
import random
import threading
from pathlib import Path

import pytest

import analysis
from harness.cluster.local import LocalRanks
from harness.cluster.protocol import CopyShard, Exchange, Initialise, OnShard, Request, Restore, Save
from harness.config.model import Config
from harness.core.errors import RunFailed
from harness.core.events import Evaluated, Finished
from harness.record.recorder import read_events
from harness.record.rundir import read_config
from harness.run import assemble
from harness.run.assemble import Parts
from tests.runs import changed, run


class Finish(Save):
    """A Save of mode ``finish``, as a kind of request of its own."""


class FillReplica(CopyShard):
    """A CopyShard into a replica, as a kind of request of its own."""


def kind_of(request: Request) -> type:
    if isinstance(request, CopyShard) and not request.from_replica:
        return FillReplica
    return Finish if isinstance(request, Save) and request.mode == "finish" else type(request)


class MortalRanks(LocalRanks):
    """Ranks that die on given requests: ``doom[(rank, number, kind)]`` is the n-th request of a kind to a rank.

    ``before``: the rank dies without having served it; otherwise right after it has answered.
    """

    doom: dict[tuple[str, int, type], str] = {}  # noqa: RUF012 - set by each test
    died: list[str] = []  # noqa: RUF012
    served: dict[tuple[str, type], int] = {}  # noqa: RUF012 - requests of each kind to each rank

    def __init__(self, num_ps, make_server, num_trainers) -> None:
        served = self.served

        def make(rank: str):
            server = make_server(rank)
            real = server.handle

            def handle(request):
                key = (rank, kind_of(request))
                served[key] = served.get(key, 0) + 1
                fate = self.doom.pop((rank, served[key], kind_of(request)), None)
                if fate == "before":
                    self.die(rank)
                    return None  # which nobody hears of
                reply = real(request)
                if fate == "after":
                    self.die(rank)
                return reply

            server.handle = handle
            return server

        super().__init__(num_ps, make, num_trainers)

    def die(self, rank: str) -> None:
        """Drop the shard."""
        self.died.append(rank)
        self.kill([rank])


def run_mortal(
    config: Config,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    doom: dict[tuple[str, int, type], str],
    ranks: type[MortalRanks] = MortalRanks,
) -> Finished:
    """A local run in which ranks die as ``doom`` says; all of it must come true."""
    monkeypatch.setattr(MortalRanks, "doom", dict(doom))
    monkeypatch.setattr(MortalRanks, "died", [])
    monkeypatch.setattr(MortalRanks, "served", {})
    mortal = changed(config, trace__path=None, trace__allow_unplanned=True)
    finished, events = run(mortal, run_dir, Parts(make_ranks=ranks))
    assert analysis.check(events, read_config(run_dir)) == [], "the record adds up, whatever happened"
    assert sorted(MortalRanks.died) == sorted(rank for rank, _, _ in doom)
    return finished


def named(doom: dict[tuple[str, int, type], str]) -> str:
    return " ".join(f"{rank}-{kind.__name__}{number}" for rank, number, kind in doom)


PATIENCE_S = 60.0
NUM_SAMPLES = 100  # 25 steps: the deaths below are in the first 21
IN_A_STEP = (
    {("ps1", 15, Exchange): "after"},
    {("ps1", 15, Exchange): "after", ("ps2", 16, Exchange): "after"},
    {("ps2", 20, Exchange): "after", ("ps2", 1, Restore): "after"},
    {("ps2", 20, Exchange): "after", ("ps2", 1, Restore): "after", ("ps2", 2, Restore): "after"},
    {("ps2", 20, Exchange): "after", ("ps1", 21, Exchange): "after", ("ps1", 1, Restore): "after"},
    {("ps1", 1, Initialise): "after"},
    {("ps3", 1, Save): "after"},
)
BEFORE_WHAT_IT_KNOWS_IS_SAFE = (
    {("ps0", 3, Save): "after"},
    {("ps0", 7, Save): "after", ("ps3", 7, Save): "after"},
    {("ps0", 1, OnShard): "after"},
)


@pytest.mark.parametrize(
    ("strategy", "doom"),
    [
        *(("full", doom) for doom in (*IN_A_STEP, *BEFORE_WHAT_IT_KNOWS_IS_SAFE)),
        *(("partial", doom) for doom in IN_A_STEP),
    ],
    ids=lambda value: value if isinstance(value, str) else named(value),
)
def test_a_death_anywhere_loses_nothing_that_was_saved(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doom: dict, strategy: str
) -> None:
    """Full recovery, and partial recovery that saves every step, end bit-equal to no failure wherever ranks die."""
    config = changed(config, data__max_train_samples=NUM_SAMPLES)
    reference, _ = run(changed(config, strategy__name="none"), tmp_path / "none")
    interval = 4 if strategy == "partial" else 12
    mortal = changed(config, strategy__name=strategy, strategy__interval_samples=interval)
    finished = run_mortal(mortal, tmp_path / "mortal", monkeypatch, doom)
    assert finished.digests == reference.digests
    assert finished.auc == reference.auc
    assert finished.applied_updates == reference.applied_updates
    assert (finished.lost_updates or 0) == 0


@pytest.mark.parametrize("doom", BEFORE_WHAT_IT_KNOWS_IS_SAFE, ids=named)
def test_a_death_in_a_save_loses_what_the_save_was_for(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doom: dict
) -> None:
    """A checkpoint exists when its manifest does: with a save every step, one step's updates of the shard are lost."""
    mortal = changed(
        config, data__max_train_samples=NUM_SAMPLES, strategy__name="partial", strategy__interval_samples=4
    )
    finished = run_mortal(mortal, tmp_path / "mortal", monkeypatch, doom)
    assert finished.lost_updates is not None
    assert 0 < finished.lost_updates <= 4 * 26
    assert finished.pls == pytest.approx(len(doom) * 4 / NUM_SAMPLES / 4)
    saves = {rank: MortalRanks.served[rank, Save] for rank in ("ps1", "ps2")}
    assert set(saves.values()) == {NUM_SAMPLES // 4}, (
        "a save that failed is asked of the dead again, and of nobody else"
    )


def test_a_survivor_that_dies_while_others_are_recovered_gets_its_step_again(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had applied the step; its replacement has not, and the step is sent to it too."""
    config = changed(config, data__max_train_samples=NUM_SAMPLES)
    reference, _ = run(changed(config, strategy__name="none"), tmp_path / "none")

    class Cruel(MortalRanks):
        def replace(self, ranks, step):
            machine = super().replace(ranks, step)
            if list(ranks) == ["ps1"]:
                self.die("ps3")
            return machine

    monkeypatch.setattr(MortalRanks, "doom", {("ps1", 11, Exchange): "after"})
    monkeypatch.setattr(MortalRanks, "died", [])
    every_step = changed(
        config,
        trace__path=None,
        trace__allow_unplanned=True,
        strategy__name="partial",
        strategy__interval_samples=4,
    )
    finished, _ = run(every_step, tmp_path / "cruel", Parts(make_ranks=Cruel))
    assert MortalRanks.died == ["ps1", "ps3"]
    assert finished.digests == reference.digests


def test_who_dies_during_a_recovery_belongs_to_the_same_failure(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One failure, charged once; PLS once for each of the two; only the dead were restored."""
    doom = {("ps2", 60, Exchange): "after", ("ps1", 61, Exchange): "after", ("ps1", 1, Restore): "after"}
    config = changed(config, strategy__name="partial", strategy__interval_samples=40)
    finished = run_mortal(config, tmp_path / "run", monkeypatch, doom)
    assert (finished.num_failures, finished.num_lost_ranks) in ((1, 2), (2, 2))
    restored = {rank: number for (rank, kind), number in MortalRanks.served.items() if kind is Restore}
    assert set(restored) == {"ps1", "ps2"}


def test_ranks_that_keep_dying_end_the_run(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After cluster.max_replacements_in_a_row it is not bad luck any more."""
    doom = {("ps1", 50, Exchange): "after", **{("ps1", n, Restore): "after" for n in range(1, 9)}}
    with pytest.raises(RunFailed, match=r"cluster\.max_replacements_in_a_row"):
        run_mortal(changed(config, strategy__name="partial"), tmp_path / "run", monkeypatch, doom)


@pytest.mark.parametrize("number", range(20, 27))
def test_what_is_due_at_the_boundary_of_a_rollback_takes_place(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A death detected by any request around a boundary where a save and an evaluation are due: both are on record."""
    config = changed(config, strategy__name="full", strategy__interval_samples=80, data__max_train_samples=240)
    config = changed(config, eval__every_steps=20)
    finished = run_mortal(config, tmp_path / "run", monkeypatch, {("ps1", number, Exchange): "before"})
    assert finished.num_unplanned == 1
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert [event.step for event in events if isinstance(event, Evaluated)] == [20, 40, 60]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_chaos(config: Config, tmp_path: Path, mode: str) -> None:
    """Real ranks killed at random moments, one or two at a time: full recovery still ends bit-equal to no failure.

    The run waits in its middle for the first kill, lest it end before.
    """
    config = changed(config, trace__path=None, trace__allow_unplanned=True, eval__every_steps=60, save__mode=mode)
    config = changed(config, data__max_train_samples=512)
    # More than are killed: on a busy machine all of it may fall into one recovery.
    config = changed(config, cluster__max_replacements_in_a_row=20)
    reference, _ = run(changed(config, strategy__name="none"), tmp_path / "none")
    run_dir, chance, done = tmp_path / "chaos", random.Random(7), threading.Event()
    killed: list[int] = []
    has_killed = threading.Event()

    def kill_at_random() -> None:
        while not done.wait(chance.uniform(0.05, 0.3)) and len(killed) < 8:
            pids = _pids_in_training(run_dir / "events.jsonl")
            for rank in chance.sample(sorted(pids), min(len(pids), chance.choice([1, 1, 2]))):
                try:
                    os.kill(pids[rank], 9)
                    killed.append(pids[rank])
                    has_killed.set()
                except ProcessLookupError:
                    pass

    def await_kill(status: assemble.RunStatus) -> None:
        if status.phase == "train" and status.step >= 40:
            assert has_killed.wait(PATIENCE_S)

    killer = threading.Thread(target=kill_at_random)
    killer.start()
    try:
        full = changed(config, engine="rpc", strategy__name="full")
        finished = assemble.run(full, run_dir, on_status=await_kill)
    finally:
        done.set()
        killer.join()
    assert finished.num_unplanned > 0
    assert finished.digests == reference.digests
    assert finished.auc == reference.auc


def _pids_in_training(record: Path) -> dict[str, int]:
    """PS ranks by name, once the first checkpoint exists: a world that is still being formed cannot be mended."""
    pids: dict[str, int] = {}
    is_saved = False
    for line in record.read_text().splitlines() if record.exists() else ():
        if not line.endswith("}"):
            continue
        event = json.loads(line)
        is_saved |= event["event"] == "save"
        if event["event"] in ("started", "regroup"):
            pids = {rank: pid for rank, pid in event["machine"]["pids"].items() if rank.startswith("ps")}
    return pids if is_saved else {}
