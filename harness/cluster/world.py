"""The supervisor's side of engine ``rpc``: rank processes, spares, the control channel, generations of the RPC world.

A spare is a PS process without a shard. Spares that are members of the present generation can take over the names of
dead ranks within it. After the next reported step, new spares are started. When these are connected, the trainer asks,
between two requests, for a generation that has them as members.
"""

import math
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from harness.cluster.deadlines import ListeningClock
from harness.cluster.group import Formation, Rendezvous
from harness.cluster.launcher import Launcher, Main, RankContext
from harness.cluster.link import Connections
from harness.cluster.processes import Processes
from harness.cluster.trainer_deaths import ExchangeOutcomes, NumberedCalls, Replacements, Result, TrainerWatch
from harness.config.model import ClusterConfig
from harness.core.errors import HELD, ConfigError, HarnessError, NoTrainerLeft, RunFailed
from harness.core.events import Machine
from harness.core.plans import Rank, all_ranks, is_ps, is_spare, is_spare_trainer, is_trainer, rank_order, spare_name
from harness.processes import control
from harness.processes.control import give_up_after
from harness.processes.network import PrivateNetwork
from harness.processes.stop import StopRequest

_TICK = 0.05  # of the shorter deadline: longest time between two checks of all deadlines


class World:
    """The processes of all ranks and their control connections. The :class:`Ranks` of engine ``rpc``.

    Args:
        launcher: starts the processes. Closed with the world.
        ps, trainer: main functions of a PS rank, or a spare, and of a trainer rank.
        options: settings of the RPC world, the control channel and the spares.
        network: the private network of the ranks; None without one. Closed with the world.
        progress_timeout_s: seconds within which a trainer must finish something; None: no deadline.

    Raises:
        ConfigError: the port is in use, or the host is not this machine's.
    """

    def __init__(
        self,
        num_ps: int,
        launcher: Launcher,
        *,
        ps: Main,
        trainer: Main,
        options: ClusterConfig,
        network: PrivateNetwork | None = None,
        progress_timeout_s: float | None = None,
    ) -> None:
        try:
            listener = control.listen(options.host, options.port) if network is None else network.listener
        except OSError as error:
            raise ConfigError(
                f"cluster.host, cluster.port: cannot listen on {options.host}:{options.port}: {error.strerror}; "
                "set cluster.port=0 to take a free port"
            ) from error
        if launcher.dead_after_s is not None:
            give_up_after(listener, launcher.dead_after_s)
        self._network = network
        self.port: int = listener.getsockname()[1]
        self._options = options
        self._authkey = secrets.token_bytes(32)
        self.names = all_ranks(num_ps, options.num_trainers)
        self._trainers = [*filter(is_trainer, self.names)]
        self._ps, self._trainer = ps, trainer
        self._launcher, self._processes = launcher, Processes(launcher)
        self._connections = Connections(listener, self._authkey, options.rpc_timeout_s)
        self.hang = self._processes.hang
        self._num_spares = options.spares  # number ever started: a name is never used again
        self._refill_after: int | None = None  # step after which missing spares are started
        self._formation = Formation(generation=-1, members=(), takeovers={})
        self._calls, self._outcomes = NumberedCalls(), ExchangeOutcomes(self._connections.send)
        self._replaced_at_once: dict[Rank, int] = {}  # ranks that died with all trainers: pids before
        self._replacements = Replacements(options, self._processes, self._connections, self._spawn)
        self._is_halting = False  # the trainers have been told to stop
        self._rendezvous = Rendezvous(self._formation, self._connections.send)
        self._clock = ListeningClock(_TICK * min(options.rpc_timeout_s, options.join_timeout_s))
        self._begun_s = 0.0  # when the generation began
        self._mute: dict[Rank, Machine] = {}  # ranks that were killed at a deadline, since the last replacement
        self._told_hosts: set[str] = set()  # lost hosts that a replacement has reported
        self._watch = TrainerWatch(
            self._trainers,
            options,
            self._processes,
            self._connections,
            self._clock,
            progress_timeout_s=progress_timeout_s,
        )

    @property
    def pids(self) -> dict[Rank, int]:
        return self._processes.pids

    def _machine(self) -> Machine:
        """Facts for the record: pids of ranks and spares, the control port and, with several hosts, their hosts."""
        hosts = self._processes.hosts
        return {"pids": self.pids, "port": self.port, **({"hosts": hosts} if hosts else {})}

    def start(self) -> Machine:
        """Start all ranks and spares into generation 0, and spare trainers. Raises RunFailed.

        Returns facts about processes and network for the ``machine`` part of an event.
        """
        spares = [*map(spare_name, range(self._num_spares))]
        self._begin_generation(spares, fresh=[*self.names, *spares])
        self._replacements.refill()
        return {"network": "open" if self._network is None else "private", **self._machine()}

    def _spawn(self, rank: Rank, formation: Formation | None = None) -> None:
        context = RankContext(
            rank=rank,
            formation=formation,
            supervisor_pid=os.getpid(),
            port=self.port,
            authkey=self._authkey,
            options=self._options,
            dead_after_s=self._launcher.dead_after_s,
            entrance=self._network and self._network.entrance,
            held=dict(HELD),
        )
        runs_job = is_trainer(rank) or is_spare_trainer(rank)
        self._processes.spawn(context, self._trainer if runs_job else self._ps)

    def kill(self, ranks: Sequence[Rank], hosts: Sequence[int] = ()) -> dict[Rank, Machine]:
        """Kill and reap ``ranks`` as :meth:`Processes.kill` does, and drop their connections. Raises RunFailed.

        ``hosts``: kill all processes there too; see :meth:`harness.cluster.launcher.Launcher.end_hosts`.
        """
        if hosts:
            self._launcher.end_hosts(hosts)
        machines = self._processes.kill(ranks)
        self._connections.drop(ranks)
        return machines

    def formation(self) -> Formation:
        return self._formation

    def reached(self, step: int) -> None:
        """Start new spares and spare trainers in place of used ones, at a step later than the one that used them."""
        if self._refill_after is not None and step > self._refill_after:
            self._refill_after = None
            for _ in range(self._options.spares - len(self._spares())):
                self._spawn(spare_name(self._num_spares))
                self._num_spares += 1
            self._replacements.refill()

    def _spares(self) -> list[Rank]:
        """Reap spares that have ended, and return the others."""
        for spare in filter(is_spare, self.pids):
            if self._processes.has_ended(spare):
                self._processes.forget(spare)
        return [*filter(is_spare, self.pids)]

    def _ready_spares(self) -> list[Rank]:
        return [spare for spare in self._spares() if spare in self._connections]

    def replace(self, ranks: Collection[Rank], step: int) -> Machine:
        """Give the names of dead ranks to spares or new processes.

        If the present generation has a spare for each dead PS rank, these spares take over, and the generation stays.
        Otherwise a new generation begins, of the survivors, connected spares, and new processes where spares are too
        few. Living trainers get no order to join it: they ask for the formation. Replacements of trainers wait until
        the others admit them.

        A rank that counts as lost but still runs, since it did not answer in time, is killed first: two processes must
        never serve one shard.
        """
        lost, (at_once, self._replaced_at_once) = [*ranks], (self._replaced_at_once, {})
        old = {rank: at_once.get(rank) or self._processes[rank].pid for rank in lost}
        dead = [rank for rank in lost if is_ps(rank) and rank not in at_once]
        spare_trainers: dict[Rank, Rank] = {}
        for trainer in [rank for rank in lost if is_trainer(rank) and rank not in at_once]:
            self.kill([trainer])
            if trainer in self._trainers:
                self._lose_trainer(trainer)
            if spare := self._replacements.start(trainer):
                spare_trainers[trainer] = spare
            self._watch.begins(trainer, is_connected=spare is not None)
        mute, self._mute = {**self._mute, **self._processes.end(dead)}, {}
        self._connections.drop(dead)
        spares = self._ready_spares()
        members = [spare for spare in spares if spare in self._formation.members]
        stays = not dead or (self._rendezvous.is_complete and len(members) >= len(dead))
        takeovers = dict(zip(dead, members if stays else spares, strict=False))
        for rank, spare in takeovers.items():
            self._processes.rename(spare, rank)
            self._connections.rename(spare, rank)
        if stays:
            self._formation = replace(self._formation, takeovers={**self._formation.takeovers, **takeovers})
        else:
            self._begin_generation(self._ready_spares(), fresh=[rank for rank in dead if rank not in takeovers])
        self._refill_after = step
        replaced = {rank: [old[rank], self._processes[rank].pid] for rank in lost}
        lost_hosts = {host: why for host, why in self._launcher.lost_hosts().items() if host not in self._told_hosts}
        self._told_hosts.update(lost_hosts)
        hosts = {"lost_hosts": lost_hosts} if lost_hosts else {}
        return {**self._machine(), "replaced": replaced, "spares": takeovers | spare_trainers, "mute": mute, **hosts}

    def dead_trainers_after(self, ranks: Collection[Rank]) -> list[Rank]:
        return [*self._replacements, *self._trainers] if {*self._trainers} <= {*ranks} else []

    def replace_all_trainers(self, ranks: Sequence[Rank]) -> None:
        """Start new processes for ``ranks``, all trainers and the PS ranks lost with them, in a new generation.

        Old processes that still run are killed. :meth:`replace` later starts no process for these ranks.
        """
        self._processes.end(ranks)
        self._connections.drop(ranks)
        self._replaced_at_once = {rank: self.pids[rank] for rank in ranks}
        self.names = tuple(sorted({*self.names, *ranks}, key=rank_order))
        self._trainers = [*filter(is_trainer, ranks)]
        self._replacements.give_up()
        self._calls, self._outcomes = NumberedCalls(), ExchangeOutcomes(self._connections.send)
        for trainer in self._trainers:
            self._watch.begins(trainer)
        self._begin_generation(self._ready_spares(), fresh=ranks)

    def _begin_generation(self, spares: Sequence[Rank], fresh: Sequence[Rank] = ()) -> None:
        """Start processes for ``fresh`` in the next generation, and order the other PS ranks and ``spares`` to join it.

        Trainers that wait to be admitted get the order too if they are members; the other trainers get none.
        """
        members = (*self.names, *spares)
        self._formation = Formation(generation=self._formation.generation + 1, members=members, takeovers={})
        self._rendezvous = Rendezvous(self._formation, self._connections.send)
        for rank in fresh:
            self._spawn(rank, self._formation)
        for rank in members:
            if rank not in fresh and rank not in self._trainers:
                self._connections.send(rank, "join", rank, self._formation)
        self._begun_s = self._clock.read()

    def regroup(self) -> Formation:
        """Begin and return a generation of all ranks and connected spares; the present one if it has these members."""
        spares = self._ready_spares()
        if set(self._formation.members) != {*self.names, *spares}:
            self._begin_generation(spares)
        return self._formation

    def _look_after_members(self) -> None:
        """Kill processes that missed a deadline, and act on the ends of trainers and members.

        A dead trainer is removed; a replacement that ended is started anew. The generation being formed is abandoned if
        one of its members has ended. In a formed generation the death of a PS rank is detected by a trainer whose
        request fails. Deadlines are not checked in a call that finds a trainer dead.

        Raises RunFailed if no trainer is left, a trainer died before the first generation was formed, too many
        replacements ended in a row, or a process cannot be started, killed or watched any more.
        """
        trainers = [*self._trainers, *self._replacements]
        if not any(map(self._watch.has_ended, trainers)):
            self._give_up(self._overdue())
        ended = [*filter(self._watch.has_ended, trainers)]
        for rank in ended:
            if rank in self._trainers:
                self._lose_trainer(rank)
        if self._rendezvous.is_awaited and any(map(self._processes.has_ended, self._formation.members)):
            self._rendezvous.abandon()
        if self._replacements.is_entering and (ended or not self._rendezvous.can_complete):
            self._end_admission()
        for rank in ended:
            if rank in self._replacements and self._watch.has_ended(rank):
                self._restart(rank)
        self._admit_if_ready()

    def _restart(self, replacement: Rank) -> None:
        """Replace a replacement that ended before it took part. Raises RunFailed after too many in a row."""
        how = f"(pid {self.pids[replacement]}) {self._end_of(replacement, 'before it took part')}"
        self._mute.pop(replacement, None)
        spare = self._replacements.restart(replacement, how)
        self._watch.begins(replacement, is_connected=spare is not None)

    def _admit_if_ready(self) -> None:
        """Begin the generation that includes new trainers, once all are ready and the other trainers wait for them."""
        if admitter := self._replacements.begin():
            self.names = tuple(sorted((*self.names, *self._replacements), key=rank_order))
            self._begin_generation(self._ready_spares())
            self._connections.send(admitter, "result", self._formation, None)

    def _end_admission(self) -> None:
        """Cancel the admission of new trainers after a member's death: kill them, and start others instead.

        So no new trainer waits for the state from a dead trainer, and no trainer waits for a new one without state.
        """
        self._replacements.is_entering = False
        if not self._rendezvous.is_complete:
            self._rendezvous.abandon()
        self.names = tuple(rank for rank in self.names if rank not in self._replacements)
        for rank in self._replacements:
            self.kill([rank])
            self._tell_trainers("trainer_died", rank_order(rank)[1], "ended, as a rank died during its admission")
            self._restart(rank)

    def entered(self) -> None:
        """Count the replacements as trainers: they have got the state. A no-op if their admission was cancelled."""
        if self._replacements.is_entering:
            self._trainers = sorted((*self._trainers, *self._replacements), key=rank_order)
            self._replacements.took_part()
            if self._is_halting:
                self._tell_trainers("halt")  # the new ones were not told yet

    def dead(self) -> dict[Rank, str]:
        """The PS ranks whose processes have ended, and how, in words."""
        ended = [rank for rank in self.names if is_ps(rank) and self._processes.has_ended(rank)]
        hosts = self._processes.lost_with([rank for rank in ended if rank not in self._mute])
        return {
            rank: hosts.get(rank) or f"pid {self.pids[rank]} {self._end_of(rank, 'while a generation was formed')}"
            for rank in ended
        }

    def alive(self, ranks: Iterable[Rank]) -> set[Rank]:
        """The members of ``ranks``, all of which refused a call, whose processes have not ended."""
        return {rank for rank in ranks if not self._processes.ends(rank)}

    def form_anew(self) -> Formation:
        """Begin a generation of the same ranks and all connected spares, and return it."""
        self._begin_generation(self._ready_spares())
        return self._formation

    def lost_with(self, ranks: Iterable[Rank]) -> dict[Rank, str]:
        """As :meth:`Processes.lost_with`, but without trainers and spares."""
        return {rank: why for rank, why in self._processes.lost_with(ranks).items() if is_ps(rank)}

    def _overdue(self) -> dict[Rank, str]:
        """The ranks that missed a deadline, and which one, in words; one trainer alone if a trainer is among them."""
        for rank in (*self._trainers, *self._replacements):
            if why := self._watch.problem(rank, is_replacement=rank in self._replacements):
                return {rank: why}
        options = self._options
        if self._rendezvous.is_complete or self._clock.read() - self._begun_s <= options.join_timeout_s:
            return {}
        late = [rank for rank in self._rendezvous.missing if rank in self.pids]
        why = f"did not join within {options.join_timeout_s:g} s (cluster.join_timeout_s)"
        for trainer in filter(is_trainer, late):
            return {trainer: why + "".join(f", nor did {rank}" for rank in late if rank != trainer)}
        return dict.fromkeys(late, why)

    def _tell_trainers(self, *message: Any) -> None:
        for trainer in self._trainers:
            self._connections.send(trainer, *message)

    def _give_up(self, overdue: Mapping[Rank, str]) -> None:
        """Kill ranks that missed a deadline, and keep the reasons for the record."""
        now_s = self._clock.read()
        for rank, machine in self.kill([*overdue]).items():
            seconds = self._watch.silent_s(rank) if is_trainer(rank) else now_s - self._begun_s
            self._mute[rank] = {"pid": machine["pid"], "seconds": seconds, "action": "killed", "why": overdue[rank]}
        if overdue:
            self._begun_s = now_s

    def _end_of(self, rank: Rank, when: str) -> str:
        """How the process of a rank ended, in words."""
        if rank in self._mute:
            return f"{self._mute[rank]['why']}, and was killed"
        return f"ended with exit code {self._processes[rank].exitcode} {when}"

    def serve(
        self, supervisor: Any, stop: StopRequest | None = None, on_tick: Callable[[], float] = lambda: math.inf
    ) -> None:
        """Serve the ranks until all trainers have finished.

        Args:
            supervisor: the object whose methods trainers call; about generations they call methods of this object.
            stop: once it is set, the trainers are told to stop.
            on_tick: called between messages. It returns the seconds within which it must be called again.

        Raises:
            HarnessError: the error that a trainer reported, that a call without a result raised, or ``on_tick``.
            RunFailed: no trainer is left, or processes cannot be started or watched any more.
        """
        while True:
            wait_s = max(0.0, min(self._clock.tick_s, on_tick()))  # called first, since it may end connections
            trainers = (*self._trainers, *self._replacements)
            watched = self._processes.watched(None if self._rendezvous.is_awaited else trainers)
            asked = [] if stop is None or stop.is_set else [stop.fileno()]
            ready = wait([*self._connections.waited(), *watched, *asked], wait_s)
            if stop is not None and stop.is_set and all(trainer in self._connections for trainer in self._trainers):
                self._tell_trainers("halt")
                stop, self._is_halting = None, True
            self._launcher.check()
            self._connections.drop(self._processes.on_lost_hosts())  # ends their processes, which may still run
            for connection, rank, message in self._connections.received(ready):
                if self._handle(connection, rank, message, supervisor):
                    return
            self._look_after_members()
            if self._outcomes.have_finished(self._trainers):
                return

    def _handle(self, connection: Connection, rank: Rank | None, message: control.Message, supervisor: Any) -> bool:
        """Handle one message; True if all trainers have finished."""
        kind, *args = message
        if kind == "hello":
            self._greet(connection, *args)
            return False
        assert rank is not None, "a rank says its name first"
        if is_trainer(rank):
            self._watch.hear(rank, kind, *args)
        if kind == "finished":
            self._outcomes.finished(rank)
            self._outcomes.settle(self._trainers)
            return self._outcomes.have_finished(self._trainers)
        if kind == "failed":
            raise args[0]
        if kind in ("tell", "call"):
            self._carry_out(rank, kind, getattr(supervisor, args[0]), *args[1:])
        elif kind == "ready":
            self._replacements.ready(rank)
        elif kind == "admit":
            self._replacements.await_all(rank)
        elif kind == "ask":
            self._connections.send(rank, "result", *_outcome(getattr(self, args[0]), args[1]))
        elif kind == "ask_outcome":
            self._outcomes.ask(rank, *args)
            self._outcomes.settle(self._trainers)
        elif kind == "publish":
            self._rendezvous.publish(rank, *args)
        return False

    def _greet(self, connection: Connection, rank: Rank, pid: int, generation: int | None) -> None:
        """Register a process that has connected. ``generation``: the one that it joins first; None if it awaits one."""
        if self.pids.get(rank) != pid:
            self._connections.forget(connection)  # a late message of a process that has been replaced
            return
        self._connections.admit(connection, rank)
        if is_trainer(rank):
            self._watch.hear(rank, "hello")
        if self._is_halting and rank in self._trainers:
            self._connections.send(rank, "halt")  # those that were told have all died
        if generation is None or rank not in self._formation.members:  # others have formed one without a late spare
            if is_spare(rank) and all(spare in self._connections for spare in filter(is_spare, self.pids)):
                self._tell_trainers("spares")
        elif generation != self._formation.generation:
            self._connections.send(rank, "join", rank, self._formation)

    def _carry_out(self, rank: Rank, kind: str, method: Callable[..., Any], values: Any, number: int | None) -> None:
        """Call a method of the supervisor for a trainer, which waits for the result of a "call", but of no "tell"."""
        if kind == "call":
            result = self._calls.result(number, lambda: _outcome(method, values))
            self._connections.send(rank, "result", *result)
        elif self._calls.is_new(number):
            method(**values)

    def _lose_trainer(self, trainer: Rank) -> None:
        """Remove a dead trainer and tell the others, which ask to replace it.

        Raises RunFailed if no trainer is left, or if the first generation is not formed yet.
        """
        how = f"(pid {self.pids[trainer]}) {self._end_of(trainer, 'before its job was done')}"
        if why := self._processes.lost_with([trainer]).get(trainer):
            how = f"ended: {why}"
        self._trainers.remove(trainer)
        self._replacements.lost(trainer)
        if not self._trainers or (self._formation.generation == 0 and not self._rendezvous.is_complete):
            alone = "; no trainer is left" if self._options.num_trainers > 1 else ""
            raise RunFailed(f"{trainer} {how}{alone}")
        self.names = tuple(rank for rank in self.names if rank != trainer)
        self._tell_trainers("trainer_died", rank_order(trainer)[1], how)
        self._outcomes.ask_again()

    def close(self) -> None:
        """End all processes, and close launcher, connections and network.

        Each rank is ordered to stop, and killed if it runs two seconds later. Trainers that wait to be admitted are
        killed at once.
        """
        for rank in self._replacements.waiting:
            self._processes[rank].kill()
        for rank in self.pids:
            self._connections.send(rank, "stop")
        self._processes.close()
        self._connections.close()
        if self._network is not None:
            self._network.close()


def _outcome(method: Callable[..., Any], args: tuple[Any, ...]) -> Result:
    """The result of a method, or the HarnessError that it raises, for the trainer that called it.

    NoTrainerLeft is raised here instead, since no trainer is left to receive it.
    """
    try:
        return method(*args), None
    except NoTrainerLeft:
        raise
    except HarnessError as error:
        return None, error
