"""Laws of several trainers in processes of their own; that they change no bit is in ``tests/run/test_equivalence.py``.

``arguments`` of a trainer's job: config, folder of checkpoints, faults, cluster, effects.
"""

import json
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.futures import Future

import analysis
from harness.cluster.group import Formation
from harness.cluster.link import ControlLink
from harness.cluster.mesh import Mesh, _Peer
from harness.cluster.rpc import RpcCluster
from harness.cluster.trainers import SeveralTrainers
from harness.config.model import Config
from harness.core.errors import RunFailed
from harness.core.events import Finished, Lost, Recovered, Regrouped, Saved, Started
from harness.core.plans import is_ps
from harness.model.dlrm import DenseNetwork
from harness.record.event_log import read_events
from harness.record.rundir import read_config
from harness.run import assemble, trainer
from harness.run.verify import compare_records
from tests import runs
from tests.model.test_backends import needs_compiled
from tests.runs import changed, saving_every

pytestmark = needs_compiled
NUM_STEPS = 30
NUM_SEEDS = int(os.environ.get("TEST_SEEDS", "2"))
"""Of runs in which trainers die: `TEST_SEEDS=200 pytest tests/run/test_trainers.py -k lose_nothing` for more."""


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


def run(config: Config, folder: Path, train: Any = trainer.train) -> Finished:
    """Carry out a run whose trainers do ``train``."""
    return assemble.run(config, folder, parts=assemble.Parts(train=train))


def counting(folder: Path, *arguments: Any) -> None:
    """The trainer's job, which writes how often this trainer called each PS rank, and for how many steps."""
    calls: Counter[str] = Counter()
    real = RpcCluster._call

    def call(self: RpcCluster, rank: str, function: Callable[..., Any], *args: Any) -> Future[Any]:
        calls[rank] += 1
        return real(self, rank, function, *args)

    RpcCluster._call = call
    trainer.train(*arguments)
    (folder / f"{arguments[-1].group.index}.json").write_text(json.dumps(calls))


def test_each_ps_rank_is_asked_by_one_trainer_and_each_sample_trained_on_by_one(
    several: Config, tmp_path: Path
) -> None:
    """Law: messages to PS ranks are as many as with one trainer; parts of a batch differ by one sample at most."""
    config = changed(several, trace__path=None, data__max_train_samples=40)
    totals: dict[int, Counter[str]] = {}
    for num_trainers in (1, 3):
        folder = tmp_path / str(num_trainers)
        folder.mkdir()
        finished = run(changed(config, cluster__num_trainers=num_trainers), folder / "run", partial(counting, folder))
        calls = [Counter(json.loads(path.read_text())) for path in sorted(folder.glob("?.json"))]
        assert len(calls) == num_trainers
        assert [len(each) for each in calls] == ([4] if num_trainers == 1 else [1, 1, 2])
        totals[num_trainers] = sum(calls, Counter())
    assert totals[1] == totals[3]
    assert finished.machine["samples"] == {"trainer0": 10, "trainer1": 10, "trainer2": 20}
    assert len({finished.digests[f"trainer{number}"] for number in range(3)}) == 1


def flipping(*arguments: Any) -> None:
    """The trainer's job; in trainer 1 a bit of the dense network is flipped after step 12."""
    real, steps = DenseNetwork.step, Counter[str]()

    def step(self: DenseNetwork, *, is_alone: bool = False) -> None:
        real(self, is_alone=is_alone)
        steps["all"] += 1
        if steps["all"] == 12 and arguments[-1].group.index == 1:
            self.state()["top.0.bias"].numpy().view("int32")[0] ^= 1

    DenseNetwork.step = step
    trainer.train(*arguments)


def test_a_bit_that_is_flipped_in_one_replica_is_named_at_the_next_boundary(several: Config, tmp_path: Path) -> None:
    """Law: one line that names the trainer; no result."""
    with pytest.raises(
        RunFailed, match=r"^trainer1: dense network at step \d+: expected that of trainer0, got another"
    ):
        run(several, tmp_path / "run", flipping)
    assert not (tmp_path / "run" / "DONE").exists()


def send_self(number: int) -> None:
    """A signal to this process."""
    os.kill(os.getpid(), number)


def dying(index: int, act: Callable[[], None], *arguments: Any) -> None:
    """The trainer's job; after 10 steps one trainer, once, meets its end, or stands still, by ``act``."""
    real, steps = arguments[-1].advanced, Counter[str]()

    def advanced(step: int) -> None:
        real(step)
        steps["all"] += 1
        if steps["all"] == 10 and arguments[-1].group.index == index and once(arguments[1] / "acted"):
            act()

    arguments[-1].advanced = advanced
    trainer.train(*arguments)


def dying_in_exchange(folder: Path, deaths: Mapping[int, tuple[int, str]], *arguments: Any) -> None:
    """The trainer's job; trainers kill themselves before, in or after one of their exchanges, by its number.

    Whoever replaces one in ``folder`` does not.
    """
    at, moment = deaths.get(arguments[-1].group.index, (0, ""))
    exchange, begin, counts = Mesh.exchange, _Peer.begin, Counter[str]()
    if not once(folder / f"{arguments[-1].group.index}"):
        at = 0

    def dying(self: Mesh, what: str, value: Any, **how: Any) -> dict[int, Any]:
        counts["exchanges"] += 1
        counts["begun"] = 0
        if counts["exchanges"] == at and moment == "before":
            send_self(signal.SIGKILL)
        values = exchange(self, what, value, **how)
        if counts["exchanges"] == at and moment == "after":
            send_self(signal.SIGKILL)
        return values

    def sending(self: _Peer, views: list[memoryview]) -> None:
        begin(self, views)
        counts["begun"] += 1
        if counts["exchanges"] == at and moment == "sent to one" and counts["begun"] == 1:
            send_self(signal.SIGKILL)

    Mesh.exchange, _Peer.begin = dying, sending
    trainer.train(*arguments)


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


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_trainers_that_die_lose_nothing_while_one_lives(several: Config, tmp_path: Path, seed: int) -> None:
    """Law: but for their loss the record is that of the undisturbed run, at whatever moment one or two of three die."""
    chance = random.Random(seed)
    cache = chance.choice(["none", "lookahead", "stale"])
    strategy = chance.choice(["full", "partial", "cpr_mfu", "cpr_ssu", "cpr_mirror", "buddy", "differential"])
    cache = "none" if strategy == "cpr_mirror" else cache
    config = changed(several, cache__mode=cache, save__mode=chance.choice(["sync", "async"]), strategy__name=strategy)
    config = changed(config, trace__allow_unplanned=True, metrics__log_every_steps=7)
    deaths = {
        index: (chance.randrange(1, 120), chance.choice(["before", "sent to one", "after"]))
        for index in chance.sample(range(3), chance.choice([1, 2]))
    }
    config = changed(config, cluster__spare_trainers=chance.choice([0, 1]))
    run(changed(config, engine="local"), tmp_path / "whole")
    finished = run(config, tmp_path / "again", partial(dying_in_exchange, tmp_path, deaths))
    assert facts(tmp_path / "again") == facts(tmp_path / "whole")
    assert len({digest for rank, digest in finished.digests.items() if rank.startswith("trainer")}) == 1
    assert finished.num_unplanned == len(deaths)
    assert analysis.check(read_events(tmp_path / "again" / "events.jsonl"), read_config(tmp_path / "again")) == []


def dying_in_admission(folder: Path, index: int, moment: str, *arguments: Any) -> None:
    """The trainer's job; one trainer dies once, as trainer 1, which had died, is taken in again, or is taken in."""
    reals = {name: getattr(SeveralTrainers, name) for name in ("admit", "enter")}
    join, admit, wait = RpcCluster._join, RpcCluster.admit, ControlLink.await_trainers
    is_in = {"admission": not arguments[3].awaits_trainers and arguments[-1].group.index == 1}

    def die(now: str) -> None:
        if now == moment and arguments[-1].group.index == index and is_in["admission"] and once(folder / "died"):
            send_self(signal.SIGKILL)

    def exchanging(name: str, self: SeveralTrainers, *args: Any) -> Any:
        die("before")
        result = reals[name](self, *args)
        die("after")
        return result

    def joining(self: RpcCluster, formation: Formation) -> None:
        die("join")
        join(self, formation)

    def waiting(self: ControlLink) -> Formation:
        if moment == "wait" and arguments[-1].group.index == index and not (folder / "died").exists():
            self.send("admit")
            die("wait")
        elif moment == "wait":
            time.sleep(0.5)  # the new one is ready before the heir asks
        return wait(self)

    def admitting(self: RpcCluster, state: Callable[[], Any]) -> None:
        is_in["admission"] = True
        admit(self, state)
        is_in["admission"] = False

    for name in reals:
        setattr(SeveralTrainers, name, lambda self, *args, name=name: exchanging(name, self, *args))
    RpcCluster._join, RpcCluster.admit, ControlLink.await_trainers = joining, admitting, waiting
    trainer.train(*arguments)


@pytest.mark.parametrize(("index", "moment"), [(0, "wait"), (1, "after"), (2, "join")])
def test_a_trainer_that_dies_while_another_is_taken_in_holds_up_nobody(
    several: Config, tmp_path: Path, index: int, moment: str
) -> None:
    """Law: whether it is the one that gives its state, the one that gets it or a third; all three live at the end."""
    (tmp_path / "trace.csv").write_text("hour,rank\n20,trainer1\n")
    config = changed(several, trace__path=str(tmp_path / "trace.csv"), trace__allow_unplanned=True)
    run(changed(config, engine="local"), tmp_path / "whole")
    finished = run(config, tmp_path / "again", partial(dying_in_admission, tmp_path, index, moment))
    assert (tmp_path / "died").exists()
    assert facts(tmp_path / "again") == facts(tmp_path / "whole")
    assert len([rank for rank in finished.digests if not is_ps(rank)]) == 3


@pytest.mark.parametrize(
    ("strategy", "dense"),
    [("full", "rollback"), ("partial", "checkpoint"), ("never_save", "initial"), ("buddy", "checkpoint")],
)
def test_all_trainers_may_die_between_two_steps(several: Config, tmp_path: Path, strategy: str, dense: str) -> None:
    """Law: with a PS rank and without; the strategy says where the dense network restarts, the record what it lacks.

    That both engines agree, and what full recovery ends with, is in ``test_equivalence``.
    """
    struck = ["10,ps1", "10,trainer0", "10,trainer1", "31,trainer0", "31,trainer1", "40,ps2"]
    (tmp_path / "trace.csv").write_text("\n".join(["hour,rank", *struck]))
    config = changed(several, engine="local", trace__path=str(tmp_path / "trace.csv"), cluster__num_trainers=2)
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
    (tmp_path / "trace.csv").write_text(f"hour,rank,phase,fault\n{struck}\n{trainers}")
    config = changed(several, trace__path=str(tmp_path / "trace.csv"), cluster__num_trainers=2)
    config = changed(config, cluster__rpc_timeout_s=1.5, cluster__join_timeout_s=30.0)
    for engine in ("local", "rpc"):
        _, events = runs.run(changed(config, engine=engine), tmp_path / engine)
        assert [event.ranks for event in events if isinstance(event, Lost)] == lost
    assert compare_records(tmp_path / "local", tmp_path / "rpc") == []


@pytest.mark.parametrize(("engine", "fault"), [("local", "kill"), ("rpc", "hang")])
def test_the_death_of_all_trainers_ends_the_run_in_one_line(
    several: Config, tmp_path: Path, engine: str, fault: str
) -> None:
    """Law: if a trace kills the last one before another is back, the line names that of the trace."""
    (tmp_path / "trace.csv").write_text(f"hour,rank,fault\n11,trainer0,\n13,trainer1,{fault}\n")
    config = changed(several, engine=engine, trace__path=str(tmp_path / "trace.csv"), cluster__num_trainers=2)
    words = r"^line 3 of the trace: expected a trainer that lives, but trainer0, trainer1 died before another one took"
    with pytest.raises(RunFailed, match=words):
        runs.run(config, tmp_path / "run")
    if engine == "rpc":
        words = r"^trainer\d \(pid \d+\) ended with exit code -9 before its job was done; no trainer is left$"
        with pytest.raises(RunFailed, match=words):
            run(
                several,
                tmp_path / "died",
                partial(dying_in_exchange, tmp_path, dict.fromkeys(range(3), (40, "before"))),
            )


def peers_of_self() -> set[tuple[str, int]]:
    """The addresses that this process is connected with by TCP."""
    peers: set[tuple[str, int]] = set()
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError), socket.socket(fileno=os.dup(fd)) as each:
            if each.family == socket.AF_INET:
                peers.add(each.getpeername())
    return peers


def connect_and_die(record: Path | None = None) -> None:
    """Connect anew to all that this process is connected with, and die before the first word; ``record``: with ps0."""
    opened: list[socket.socket] = []
    for peer in peers_of_self():
        with suppress(ConnectionRefusedError):
            opened.append(socket.create_connection(peer))
    if record is not None:
        (started, *_) = read_events(record)
        os.kill(started.machine["pids"]["ps0"], signal.SIGKILL)
    send_self(signal.SIGKILL)


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_rank_that_refuses_an_heir_is_not_lost(several: Config, tmp_path: Path, *, is_alone: bool) -> None:
    """Law: a rank whose caller died as it connected lives, keeps what it holds, and is asked again; also where no
    generation can be formed, as another rank is dead.
    """
    config = changed(several, trace__path=None, trace__allow_unplanned=True)
    events = tmp_path / "run" / "events.jsonl"
    act = connect_and_die if is_alone else partial(connect_and_die, events)
    finished = run(config, tmp_path / "run", partial(dying, 1, act))
    lost = [rank for event in read_events(events) if isinstance(event, Lost) for rank in event.ranks]
    assert sorted(lost) == (["trainer1"] if is_alone else ["ps0", "trainer1"])
    assert finished.num_unplanned == len(lost)
    if is_alone:
        run(changed(config, engine="local"), tmp_path / "whole")
        assert facts(tmp_path / "run") == facts(tmp_path / "whole")


@pytest.mark.parametrize(
    ("index", "act", "progress_s", "why"),
    [
        (0, partial(time.sleep, 60), 8.5, "finished nothing for 8.5 s, last step 5 (trainer.progress_timeout_s)"),
        (1, partial(send_self, signal.SIGSTOP), 600.0, "gave no sign of life for 2 s (cluster.rpc_timeout_s)"),
    ],
    ids=["no progress", "stopped"],
)
def test_a_trainer_that_stands_still_is_named_and_no_other(  # noqa: PLR0917 - pytest's
    several: Config, tmp_path: Path, index: int, act: Callable[[], None], progress_s: float, why: str
) -> None:
    """Law: those that wait for it are not to blame, whether it is stopped or gets no further; they go on."""
    config = changed(several, cluster__rpc_timeout_s=2.0, cluster__join_timeout_s=4.0, trace__allow_unplanned=True)
    run(changed(config, engine="local"), tmp_path / "whole")
    run(changed(config, trainer__progress_timeout_s=progress_s), tmp_path / "run", partial(dying, index, act))
    assert facts(tmp_path / "run") == facts(tmp_path / "whole")
    lost = [event for event in read_events(tmp_path / "run" / "events.jsonl") if isinstance(event, Lost)]
    (words,) = [event.machine["detail"] for event in lost if not event.planned]
    assert [*words] == [f"trainer{index}"]
    assert words[f"trainer{index}"].endswith(f"{why}, and was killed")


def test_a_trainer_that_a_trace_makes_mute_is_found_by_its_deadline(several: Config, tmp_path: Path) -> None:
    """Law: by a tenth of it, and nobody else is blamed."""
    lines = "10,trainer1,,hang\n20,trainer0,lookup,hang\n30,trainer2,apply,hang\n"
    (tmp_path / "trace.csv").write_text(f"hour,rank,phase,fault\n{lines}")
    config = changed(several, trace__path=str(tmp_path / "trace.csv"), cluster__rpc_timeout_s=1.0)
    runs.run(changed(config, engine="local"), tmp_path / "local")
    _, events = runs.run(config, tmp_path / "rpc")
    assert compare_records(tmp_path / "local", tmp_path / "rpc") == []
    mute = [event.machine["mute"] for event in events if isinstance(event, Regrouped)]
    assert [[*each] for each in mute] == [["trainer1"], ["trainer0"], ["trainer2"]]
    assert min(each["seconds"] for by_rank in mute for each in by_rank.values()) <= 1.1


PLAIN, AHEAD = ("none", "cpr_mfu", "sync"), ("lookahead", "full", "async")


@pytest.mark.parametrize(
    ("phases", "settings"),
    [
        (("lookup", "apply", "forward"), PLAIN),
        (("apply", "forward", "lookup"), AHEAD),
        (("save", "manifest", "eval"), AHEAD),
        (("restore", "regroup", "boundary"), PLAIN),
    ],
    ids=str,
)
def test_a_trace_kills_trainers_in_every_phase(
    several: Config, tmp_path: Path, phases: tuple[str, str, str], settings: tuple[str, str, str]
) -> None:
    """Law: the record of three processes that are killed is that of engine ``local``, which has none.

    A trainer and a PS rank, the one that acts, two at once, and one at a boundary soon after another died.
    """
    first, second, third = phases
    cache, strategy, mode = settings
    struck = [(10, "ps1", first), (10, "trainer0", first), (20, "trainer1", second), (22, "trainer0", "boundary")]
    struck += [(40, "trainer1", third), (40, "trainer2", third), *((hour, "ps3", "boundary") for hour in (12, 24, 44))]
    lines = [f"{hour},{rank},{when}" for hour, rank, when in sorted(struck)]
    (tmp_path / "trace.csv").write_text("\n".join(["hour,rank,phase", *lines]))
    config = changed(several, trace__path=str(tmp_path / "trace.csv"), eval__every_steps=10)
    config = changed(config, cache__mode=cache, strategy__name=strategy, save__mode=mode)
    for engine in ("local", "rpc"):
        finished, events = runs.run(changed(config, engine=engine), tmp_path / engine)
        lost = [{*event.ranks} for event in events if isinstance(event, Lost)]
        assert finished.num_lost_ranks == sum(map(len, lost))
        assert any({"ps1", "trainer0"} <= ranks for ranks in lost)
    assert compare_records(tmp_path / "local", tmp_path / "rpc") == []


def awaiting_spares(folder: Path, *arguments: Any) -> None:
    """The trainer's job, which begins once a spare trainer has begun, and passes step 12 once a second one has."""

    def wait(num_spares: int) -> None:
        ends_s = time.monotonic() + 20
        while len([*folder.glob("spare-*")]) < num_spares and time.monotonic() < ends_s:
            time.sleep(0.001)

    def advanced(step: int) -> None:
        real(step)
        if step == 12:
            wait(2)

    real, arguments[-1].advanced = arguments[-1].advanced, advanced
    if arguments[-1].group.index < 0:
        (folder / f"spare-{os.getpid()}").touch()
    wait(1)
    trainer.train(*arguments)


def test_a_spare_trainer_takes_over(several: Config, tmp_path: Path) -> None:
    """Law: the process was there before, another one is started behind it, and the record is that of ``local``.

    A failure waits for nothing where each dead rank has a spare; the second one comes before a repair of 6 h has ended.
    """
    lines = "10,trainer0,6\n14,trainer1,6\n30,trainer2,6\n40,ps1,6\n40,trainer0,6\n"
    (tmp_path / "trace.csv").write_text(f"hour,rank,repair_h\n{lines}")
    config = changed(several, trace__path=str(tmp_path / "trace.csv"), metrics__log_every_steps=1)
    config = changed(config, cluster__spare_trainers=1, profile__spare_o_res_h=0.01, profile__num_trainers=3)
    config = changed(config, trace__repair="reschedule")
    _, events = runs.run(changed(config, engine="local"), tmp_path / "local")
    assert [event.reschedule_h for event in events if isinstance(event, Recovered)] == [0.01, 6, 0.01, 6]
    run(config, tmp_path / "rpc", partial(awaiting_spares, tmp_path))
    assert compare_records(tmp_path / "local", tmp_path / "rpc") == []
    for engine in ("local", "rpc"):
        folder = tmp_path / engine
        assert analysis.check(read_events(folder / "events.jsonl"), read_config(folder)) == []
    events = read_events(tmp_path / "rpc" / "events.jsonl")
    (started, *_), regrouped = events, [event.machine for event in events if isinstance(event, Regrouped)]
    assert regrouped[0]["spares"] == {"trainer0": "spare_trainer0"}
    assert regrouped[0]["replaced"]["trainer0"][1] == started.machine["pids"]["spare_trainer0"]
    pids = {rank: pid for machine in regrouped for rank, pid in machine["pids"].items()}
    assert "spare_trainer1" in pids
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())


@pytest.mark.parametrize("seed", range(1, NUM_SEEDS))
def test_trainers_that_are_killed_at_any_moment_lose_nothing(several: Config, tmp_path: Path, seed: int) -> None:
    """Law: as above, where another process kills two of three by pid at random microseconds; PS ranks stay."""
    chance = random.Random(seed)
    config = changed(several, trace__path=None, trace__allow_unplanned=True, data__max_train_samples=400)
    config = changed(config, strategy__name="cpr_mfu", save__mode=chance.choice(["sync", "async"]))
    config = changed(config, cluster__spare_trainers=chance.choice([0, 1]))
    run(changed(config, engine="local"), tmp_path / "whole")
    killed: list[int] = []

    def kill(status: assemble.RunStatus) -> None:
        if status.phase != "train" or killed:
            return
        (started, *_) = read_events(tmp_path / "again" / "events.jsonl")
        pids = [started.machine["pids"][f"trainer{index}"] for index in chance.sample(range(3), 2)]
        killed.extend(pids)
        threading.Thread(target=kill_at_times, args=(pids, [chance.uniform(0, 0.6) for _ in pids])).start()

    assemble.run(config, tmp_path / "again", on_status=kill)
    assert killed
    assert facts(tmp_path / "again") == facts(tmp_path / "whole")
    events = read_events(tmp_path / "again" / "events.jsonl")
    pids = [event.machine["pids"] for event in events if isinstance(event, Started | Regrouped)]
    assert len({tuple(pid for rank, pid in each.items() if is_ps(rank)) for each in pids}) == 1
    assert not any(Path(f"/proc/{pid}").exists() for pid in killed)


def kill_at_times(pids: list[int], pauses_s: list[float]) -> None:
    """SIGKILL to each, after a pause; a no-op for one that has ended."""
    for pid, pause_s in zip(pids, pauses_s, strict=True):
        time.sleep(pause_s)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
