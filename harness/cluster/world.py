"""The supervisor's side of engine ``rpc``: rank processes, spares, the control channel, generations of the RPC world.

A spare is a process that serves no rank yet. Spares that are members of the present generation can take over the names
of dead ranks within it. After the next reported step, new spares are started. When these are connected, the trainer
asks, between two requests, for a generation that has them as members.
"""

import math
import os
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from types import MappingProxyType
from typing import Any

from harness.cluster.deadlines import ListeningClock
from harness.cluster.group import Formation, Rendezvous
from harness.cluster.launcher import Launcher, Main, RankContext
from harness.cluster.link import Connections
from harness.cluster.members import Members
from harness.cluster.trainer_watch import TrainerWatch
from harness.config.model import ClusterConfig
from harness.core.errors import HELD, ConfigError, HarnessError, MustStartAnew
from harness.core.events import Machine
from harness.core.plans import CHIEF, NodeMap, Rank, all_ranks, is_ps, is_spare, spare_name
from harness.processes import control
from harness.processes.control import limit_silence
from harness.processes.network import PrivateNetwork
from harness.processes.stop import StopRequest

_TICK = 0.05  # of the shorter deadline: longest time between two checks of all deadlines


class World:
    """The processes of all ranks and their control connections: the ``Ranks`` of engine ``rpc``.

    Args:
        launcher: starts the processes. Closed with the world.
        ps, trainer: main functions of a PS rank, a compute rank or a spare, and of the trainer.
        options: settings of the RPC world, the control channel and the spares.
        network: the private network of the ranks; None without one. Closed with the world.
        progress_timeout_s: seconds within which the trainer must finish something; None: no deadline.
        nodes: which PS rank's process serves each shard at the start; None: its own.

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
        nodes: NodeMap | None = None,
    ) -> None:
        try:
            listener = control.listen(options.host, options.port) if network is None else network.listener
        except OSError as error:
            raise ConfigError(
                f"cluster.host, cluster.port: cannot listen on {options.host}:{options.port}: {error.strerror}; "
                "set cluster.port=0 to take a free port"
            ) from error
        if launcher.dead_after_s is not None:
            limit_silence(listener, launcher.dead_after_s)
        self._network = network
        self.port: int = listener.getsockname()[1]
        self._options = options
        self._authkey = secrets.token_bytes(32)
        self.names = all_ranks(num_ps, options.num_trainers)
        self._nodes = NodeMap(num_ps) if nodes is None else nodes
        self._ps, self._trainer = ps, trainer
        self._launcher = launcher
        self._connections = Connections(listener, self._authkey, options.rpc_timeout_s)
        self.hang = launcher.hang
        self._numbers: dict[Rank, int] = {}  # of the process that has a name, at its start
        self._num_spawned = 0
        self._num_spares = options.spares  # number ever started: a name is never used again
        self._refill_after: int | None = None  # step after which missing spares are started
        self._formation = Formation(generation=-1, members=(), takeovers={})
        self.members = Members()
        self._is_halting = False  # the trainer has been told to stop
        self._rendezvous = Rendezvous(self._formation, self._connections.send)
        self._clock = ListeningClock(_TICK * min(options.rpc_timeout_s, options.join_timeout_s))
        self._begun_s = 0.0  # when the generation began
        self._mute: dict[Rank, Machine] = {}  # for the record: who was killed at a deadline since the last replacement
        self._renewed: set[Rank] = set()  # lost ranks whose new processes run already
        self._told_hosts: set[str] = set()  # lost hosts that a replacement has reported
        self._trainer_watch = TrainerWatch(
            launcher, self._connections, self._clock, mute_s=options.rpc_timeout_s, idle_s=progress_timeout_s
        )

    @property
    def pids(self) -> dict[Rank, int]:
        return self._launcher.pids

    def _machine(self) -> Machine:
        """Facts for the record: pids of ranks and spares, the control port and, with several hosts, their hosts."""
        hosts = self._launcher.hosts
        return {"pids": self.pids, "port": self.port, **({"hosts": hosts} if hosts else {})}

    def start(self) -> Machine:
        """Start all ranks and spares into generation 0. Raises RunFailed.

        Returns facts about processes and network for the ``machine`` part of an event.
        """
        spares = [*map(spare_name, range(self._num_spares))]
        self._trainer_watch.trainer_started()
        self._begin_generation(spares, fresh=[*self._present, *spares])
        return {"network": "open" if self._network is None else "private", **self._machine()}

    @property
    def _present(self) -> tuple[Rank, ...]:
        """The ranks that have a process of their own, spares left out."""
        return tuple(rank for rank in self.names if rank not in self._nodes.hosted)

    def _spawn(self, rank: Rank, formation: Formation | None = None) -> None:
        """Start the process of a rank or spare, which joins ``formation``; without one it awaits an order to join."""
        self._numbers[rank] = self._num_spawned
        self._num_spawned += 1
        context = RankContext(
            rank=rank,
            formation=formation,
            number=self._numbers[rank],
            supervisor_pid=os.getpid() if self._launcher.dead_after_s is None else None,
            port=self.port,
            authkey=self._authkey,
            options=self._options,
            dead_after_s=self._launcher.dead_after_s,
            entrance=self._network and self._network.entrance,
            held=dict(HELD),
        )
        self._launcher.spawn(context, self._trainer if rank == CHIEF else self._ps)

    def kill(self, ranks: Sequence[Rank], hosts: Sequence[int] = ()) -> dict[Rank, Machine]:
        """See :meth:`harness.cluster.launcher.Launcher.kill`; drops the connections of ``ranks``, too."""
        machines = self._launcher.kill(ranks, hosts)
        self._connections.drop(ranks)
        return machines

    def note_step(self, step: int) -> None:
        """Start new spares in place of used ones, at a step later than the one that used them."""
        if self._refill_after is not None and step > self._refill_after:
            self._refill_after = None
            for _ in range(self._options.spares - len(self._reap_spares())):
                self._spawn(spare_name(self._num_spares))
                self._num_spares += 1

    def _reap_spares(self) -> list[Rank]:
        """Reap spares that have ended, and return the others."""
        for spare in filter(is_spare, self.pids):
            if self._launcher.has_ended(spare):
                self._launcher.forget(spare)
        return [*filter(is_spare, self.pids)]

    def _ready_spares(self) -> list[Rank]:
        """The spares that run and have connected."""
        return [spare for spare in self._reap_spares() if spare in self._connections]

    def replace(self, ranks: Collection[Rank], step: int) -> Machine:
        """Give the names of dead ranks to spares or new processes.

        If the present generation has a spare for each dead rank, these spares take over, and the generation stays.
        Otherwise a new generation begins, of the survivors, connected spares, and new processes where spares are too
        few. The trainer gets no order to join it: it asks for the formation.

        With ``on_loss: shrink`` survivors serve the shards of dead PS ranks instead (:class:`NodeMap`).

        A rank that counts as lost but still runs, since it did not answer in time, is killed first: two processes must
        never serve one shard.
        """
        dead = [rank for rank in ranks if rank not in self._renewed or self._launcher.has_ended(rank)]
        self._renewed.difference_update(ranks)
        mute, self._mute = {**self._mute, **self._launcher.end(dead)}, {}
        self._connections.drop(dead)
        spares = self._ready_spares()
        members = [spare for spare in spares if spare in self._formation.members]
        stays = not dead or (self._rendezvous.is_complete and len(members) >= len(dead))
        takeovers = dict(zip(dead, members if stays else spares, strict=False))
        for rank, spare in takeovers.items():
            self._launcher.rename(spare, rank)
            self._connections.rename(spare, rank)
        if stays:
            self._formation = replace(self._formation, takeovers={**self._formation.takeovers, **takeovers})
        else:
            if self._options.on_loss == "shrink":
                self._nodes.lose({self._nodes[rank] for rank in filter(is_ps, dead)})
            fresh = [rank for rank in dead if rank not in takeovers and rank not in self._nodes.hosted]
            self._begin_generation(self._ready_spares(), fresh=fresh)
        self._refill_after = step
        lost_hosts = {host: why for host, why in self._launcher.lost_hosts().items() if host not in self._told_hosts}
        self._told_hosts.update(lost_hosts)
        hosts = {"lost_hosts": lost_hosts} if lost_hosts else {}
        return {**self._machine(), "spares": takeovers, "mute": mute, **hosts}

    def replace_chief(self, ranks: Sequence[Rank]) -> None:
        """Start new processes for ``ranks``, the trainer and ranks lost with it, in a new generation.

        Old processes that still run are killed. :meth:`replace` later starts no process for these ranks.
        """
        self._launcher.end(ranks)
        self._connections.drop(ranks)
        for rank in ranks:
            self.members.lose(rank, f"died with {CHIEF}, or before it")
        self._renewed.update(ranks)
        self._trainer_watch.trainer_started()
        self._begin_generation(self._ready_spares(), fresh=ranks)

    def give_back(self, nodes: Sequence[Rank]) -> dict[Rank, Machine]:
        """Start processes for ``nodes`` in a new generation, in which they take their shards over; returns the pids."""
        moves = {rank: node for rank, node in self._nodes.hosted.items() if rank in nodes}
        for rank in moves:
            self._nodes.give_back(rank)
        self._begin_generation(self._ready_spares(), fresh=[*moves], moves=moves)
        return {rank: {"pid": self.pids[rank]} for rank in nodes}

    def _begin_generation(
        self, spares: Sequence[Rank], fresh: Sequence[Rank] = (), moves: Mapping[Rank, Rank] = MappingProxyType({})
    ) -> None:
        """Start processes for ``fresh`` in the next generation, and order the others but the trainer to join it."""
        members = (*self._present, *spares)
        self._formation = Formation(
            generation=self._formation.generation + 1,
            members=members,
            takeovers={},
            hosted=self._nodes.hosted,
            moves={**moves},
        )
        self._rendezvous = Rendezvous(self._formation, self._connections.send)
        for rank in fresh:
            self._spawn(rank, self._formation)
        self._launcher.share(self._nodes.hosted)
        for rank in members:
            if rank not in fresh and rank != CHIEF:
                self._connections.send(rank, "join", rank, self._formation)
        self._begun_s = self._clock.read()

    def regroup(self) -> Formation:
        """Begin and return a generation of all ranks and connected spares; the present one if it has these members."""
        spares = self._ready_spares()
        if set(self._formation.members) != {*self._present, *spares}:
            self._begin_generation(spares)
        return self._formation

    def _look_after_members(self) -> None:
        """Kill processes that missed a deadline, and act on the ends of the trainer and of members.

        The generation being formed is abandoned if one of its members has ended. In a formed generation the death of a
        rank is detected by the trainer, whose request fails.

        Raises MustStartAnew if the trainer has ended, RunFailed if a process cannot be killed.
        """
        if not self._trainer_watch.has_ended:
            self._kill_overdue(self._overdue())
        if self._trainer_watch.has_ended:
            why = self._launcher.on_lost_hosts.get(CHIEF)
            how = f"(pid {self.pids[CHIEF]}) {self._end_of(CHIEF, 'before its job was done')}"
            raise MustStartAnew(f"{CHIEF} ended: {why}" if why else f"{CHIEF} {how}")
        if not self._rendezvous.is_complete and any(map(self._launcher.has_ended, self._formation.members)):
            self._rendezvous.abandon()

    def membership(self, found: Mapping[Rank, str]) -> tuple[Formation, dict[Rank, str]]:
        """The present generation, and all lost ranks with the reasons, spares left out.

        ``found``: ranks that did not answer, and the error texts. If one is on a host that gives no answer, this waits
        until the host counts as lost, and with it all ranks there.
        """
        self._launcher.await_ends(found)
        ended = [rank for rank in self.names if self._launcher.has_ended(rank)]
        with_hosts = {rank: why for rank, why in self._launcher.on_lost_hosts.items() if rank in self.names}
        for rank, why in with_hosts.items():
            self.members.lose(rank, why)
        for rank in ended:
            self.members.lose(rank, f"pid {self.pids[rank]} {self._end_of(rank, 'while it was not asked')}")
        lost = {**self.members.lost, **found, **with_hosts}
        on_nodes = {self._nodes.get(rank, rank): why for rank, why in lost.items()}
        lost = {**{rank: on_nodes[node] for rank, node in self._nodes.items() if node in on_nodes}, **lost}
        return self._formation, {rank: lost[rank] for rank in self.names if rank in lost}

    def _overdue(self) -> dict[Rank, str]:
        """The ranks that missed a deadline, and which one, in words; the trainer alone if it is among them."""
        if why := self._trainer_watch.problem:
            return {CHIEF: why}
        options = self._options
        if self._rendezvous.is_complete or self._clock.read() - self._begun_s <= options.join_timeout_s:
            return {}
        late = [rank for rank in self._rendezvous.missing if rank in self.pids]
        why = f"did not join within {options.join_timeout_s:g} s (cluster.join_timeout_s)"
        if CHIEF in late:
            return {CHIEF: why + "".join(f", nor did {rank}" for rank in late if rank != CHIEF)}
        return dict.fromkeys(late, why)

    def _kill_overdue(self, overdue: Mapping[Rank, str]) -> None:
        """Kill ranks that missed a deadline, and keep the reasons for the record."""
        now_s = self._clock.read()
        for rank, machine in self.kill([*overdue]).items():
            seconds = self._trainer_watch.silent_s if rank == CHIEF else now_s - self._begun_s
            self._mute[rank] = {"pid": machine["pid"], "seconds": seconds, "action": "killed", "why": overdue[rank]}
        if overdue:
            self._begun_s = now_s

    def _end_of(self, rank: Rank, when: str) -> str:
        """How the process of a rank ended, in words."""
        if rank in self._mute:
            return f"{self._mute[rank]['why']}, and was killed"
        return f"ended with exit code {self._launcher[rank].exitcode} {when}"

    def serve(
        self, supervisor: Any, stop: StopRequest | None = None, on_tick: Callable[[], float] = lambda: math.inf
    ) -> None:
        """Serve the ranks until the trainer has finished.

        Args:
            supervisor: the object whose methods the trainer calls; about generations it calls methods of this object.
            stop: once it is set, the trainer is told to stop.
            on_tick: called between messages. It returns the seconds within which it must be called again.

        Raises:
            HarnessError: the error that the trainer reported, that a call without a result raised, or ``on_tick``.
            MustStartAnew: the trainer has died, which was not planned.
            RunFailed: processes cannot be started any more.
        """
        while True:
            wait_s = max(0.0, min(self._clock.tick_s, on_tick()))  # called first, since it may end connections
            asked = [] if stop is None or stop.is_set else [stop.fileno()]
            ready = wait([*self._connections.waited(), *self._launcher.watched(), *asked], wait_s)
            if stop is not None and stop.is_set and CHIEF in self._connections:
                self._connections.send(CHIEF, "halt")
                stop, self._is_halting = None, True
            self._connections.drop(self._launcher.on_lost_hosts)  # ends their processes, which may still run
            for connection, rank, message in self._connections.received(ready):
                if self._handle(connection, rank, message, supervisor):
                    return
            self._look_after_members()

    def _handle(self, connection: Connection, rank: Rank | None, message: control.Message, supervisor: Any) -> bool:
        """Handle one message; True if the trainer has finished."""
        kind, *args = message
        if kind == "hello":
            self._greet(connection, *args)
            return False
        assert rank is not None, "a rank says its name first"
        if rank == CHIEF:
            self._trainer_watch.hear(kind, *args)
        if kind == "finished":
            return True
        if kind == "failed":
            raise args[0]
        if kind == "tell":
            name, values = args
            getattr(supervisor, name)(**values)
        elif kind == "call":
            name, values = args
            self._connections.send(rank, "result", *_outcome(getattr(supervisor, name), values))
        elif kind == "ask":
            self._connections.send(rank, "result", *_outcome(getattr(self, args[0]), args[1]))
        elif kind == "publish":
            self._rendezvous.publish(rank, *args)
        return False

    def _greet(self, connection: Connection, rank: Rank, number: int, generation: int | None) -> None:
        """Register a process that has connected; refuse one that has been replaced.

        ``number``: of the process. ``generation``: the one that it joins first; None if it awaits one.
        """
        if self._numbers.get(rank) != number:
            self._connections.forget(connection)
            return
        self._connections.admit(connection, rank)
        if rank == CHIEF:
            self._trainer_watch.hear("hello")
            if self._is_halting:
                self._connections.send(rank, "halt")  # the one that was told has died
        if generation is None or rank not in self._formation.members:  # others have formed one without a late spare
            if is_spare(rank) and all(spare in self._connections for spare in filter(is_spare, self.pids)):
                self._connections.send(CHIEF, "spares")
        elif generation != self._formation.generation:
            self._connections.send(rank, "join", rank, self._formation)

    def close(self) -> None:
        """End all processes, and close launcher, connections and network.

        Each rank is ordered to stop, and killed if it runs two seconds later.
        """
        for rank in self.pids:
            self._connections.send(rank, "stop")
        self._launcher.close()
        self._connections.close()
        if self._network is not None:
            self._network.close()


def _outcome(method: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, HarnessError | None]:
    """The value that a method returned, and the HarnessError that it raised instead, for the trainer that called it."""
    try:
        return method(*args), None
    except HarnessError as error:
        return None, error
