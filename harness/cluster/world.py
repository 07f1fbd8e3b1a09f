"""The supervisor's side of engine ``rpc``: rank processes, spares, the control channel, generations of the RPC world.

A spare is a PS process without a shard. Spares that are members of the present generation take over the names of dead
ranks without a new one. Then the run goes on, and once it has reported a further step new spares are started. When
these are connected, the trainer asks for a generation that has them as members, between two requests.
"""

import math
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from harness.cluster.connections import Connections
from harness.cluster.deadlines import ListeningClock, TrainerProgress
from harness.cluster.formation import Formation, Place
from harness.cluster.launcher import Launcher, RankContext
from harness.cluster.processes import REAP_S, Processes, RankJob
from harness.cluster.rendezvous import Rendezvous
from harness.cluster.spares import Spares
from harness.core.errors import ConfigError, HarnessError, RunFailed
from harness.core.events import Machine
from harness.core.plans import CHIEF, Rank, all_ranks, is_ps
from harness.processes import control
from harness.processes.network import PrivateNetwork
from harness.processes.sockets import give_up_after
from harness.processes.stop import StopRequest

if TYPE_CHECKING:
    from harness.cluster.group import GroupOptions

_TICK = 0.05  # of the shorter deadline: how often the supervisor looks at the clock

Services = Mapping[str, Callable[..., Any]]
"""Functions in the supervisor's process that a trainer may call, by name."""


class World:
    """The processes of all ranks and their control connections. The :class:`Ranks` of engine ``rpc``.

    Args:
        launcher: starts the processes. Closed with the world.
        ps, trainer: what a PS rank and the trainer rank run. A spare runs what a PS rank runs.
        options: settings of the RPC world.
        host, port: where the control channel listens; port 0 lets the system choose.
        num_spares: spares that are kept.
        may_cut: whether ranks may have to be cut off the network (:meth:`cut_off`).
        progress_timeout_s: within which a trainer must finish something; None: it need not.

    Raises:
        ConfigError: the port is in use, or the host is not this machine's.
    """

    def __init__(
        self,
        num_ps: int,
        launcher: Launcher,
        *,
        ps: RankJob,
        trainer: RankJob,
        options: "GroupOptions",
        host: str,
        port: int,
        num_spares: int = 0,
        network: PrivateNetwork | None = None,
        may_cut: bool = False,
        progress_timeout_s: float | None = None,
    ) -> None:
        try:
            listener = control.listen(host, port) if network is None else network.listener
        except OSError as error:
            raise ConfigError(
                f"cluster.host, cluster.port: cannot listen on {host}:{port}: {error.strerror}; "
                "set cluster.port=0 to take a free port"
            ) from error
        if options.dead_after_s is not None:
            give_up_after(listener, options.dead_after_s)
        self._host = host
        self._network = network
        self.port: int = listener.getsockname()[1]
        self._options = options
        self._authkey = secrets.token_bytes(32)
        self.names = all_ranks(num_ps)
        self._ps, self._trainer = ps, trainer
        self._processes = Processes(launcher)
        self._connections = Connections(listener, self._authkey, options.rpc_timeout_s)
        self._spares = Spares(num_spares, self._processes, self._connections)
        members = (*self.names, *self._spares.names)
        self._formation = Formation(generation=0, members=members, takeovers={}, keeps_spares=num_spares > 0)
        self._is_formed = False  # whether the trainer has joined the present generation
        self._has_met_trainer = False  # whether it has connected
        self._rendezvous = Rendezvous(self._connections.send, len(self._formation.members))
        self._clock = ListeningClock(_TICK * min(options.rpc_timeout_s, options.join_timeout_s))
        self._begun_s = 0.0  # when the generation began
        self._mute: dict[Rank, Machine] = {}  # ranks that were killed at a deadline, since the last replacement
        self._told_hosts: set[str] = set()  # lost hosts that a replacement has reported
        self._may_cut = may_cut
        self._progress = TrainerProgress(self._clock, mute_s=options.rpc_timeout_s, idle_s=progress_timeout_s)
        self._to_cut: set[int] = set()  # processes that are cut off when they have connected

    @property
    def network_words(self) -> str:
        """Who can reach the ranks, for the record."""
        return "open" if self._network is None else "private"

    @property
    def pids(self) -> dict[Rank, int]:
        """Process id of each rank and spare."""
        return self._processes.pids

    @property
    def places(self) -> Machine:
        """For the record: ``hosts``, the host of each rank and spare, where they are on several; empty otherwise."""
        return {"hosts": self._processes.hosts} if self._processes.hosts else {}

    def start(self) -> None:
        """Start all ranks and spares into generation 0. Raises RunFailed."""
        for rank in self._formation.members:
            self._spawn(rank, self._formation.place(rank))
        self._begun_s = self._clock.read()

    def _spawn(self, rank: Rank, place: Place | None) -> None:
        context = RankContext(
            rank=rank,
            place=place,
            num_ps=len(self.names) - 1,
            supervisor_pid=os.getpid(),
            host=self._host,
            port=self.port,
            authkey=self._authkey,
            options=self._options,
            entrance=self._network and self._network.entrance,
        )
        self._processes.spawn(context, self._trainer if rank == CHIEF else self._ps)

    def kill(self, ranks: Sequence[Rank], hosts: Sequence[int] = ()) -> dict[Rank, Machine]:
        """Send SIGKILL to all of ``ranks``, then reap them; returns each one's pid, signal and wait status.

        ``hosts``: end as a whole; see :meth:`harness.cluster.launcher.Launcher.end_hosts`.
        """
        self._processes.end_hosts(hosts)
        machines = self._processes.kill(ranks)
        for rank in ranks:
            self._connections.drop(rank)
        return machines

    def hang(self, ranks: Sequence[Rank]) -> dict[Rank, Machine]:
        """Send SIGSTOP to all of ``ranks``, and wait until they have stopped; returns each one's pid and signal."""
        return self._processes.hang(ranks)

    def cut_off(self, ranks: Sequence[Rank]) -> dict[Rank, Machine]:
        """Let no packet reach ``ranks`` any more; returns each one's pid. Raises RunFailed.

        A rank that has just been started is cut off when it has connected: it opens its other sockets later, but is
        not told the addresses of a generation, and so joins none.
        """
        connected = [rank for rank in ranks if rank in self._connections]
        self._processes.cut_off(connected)
        self._to_cut |= {self._processes[rank].pid for rank in ranks if rank not in connected}
        return {rank: {"pid": self._processes[rank].pid} for rank in ranks}

    def slow(self, factors: Mapping[Rank, float]) -> None:
        """See :class:`harness.cluster.supervisor.Ranks`: the processes are stopped and continued."""
        self._processes.slow(factors)

    # --- generations ------------------------------------------------------------------------------------------------

    def replace(self, ranks: Iterable[Rank]) -> Machine:
        """Give the names of dead ranks to spares or new processes.

        If the present generation has a spare for each, these take over, and the generation stays. Otherwise a new one
        begins, with what spares there are, new processes for the rest, and the survivors. The trainer gets no order:
        its call of ``replace`` returns the formation, and it joins that.

        A rank that counts as lost but still runs (it did not answer in time) is killed first: two processes must never
        serve one shard.
        """
        dead = list(ranks)
        old = {rank: self._processes[rank].pid for rank in dead}
        mute, self._mute = {**self._mute, **self._processes.end(dead)}, {}
        for rank in dead:
            self._connections.drop(rank)
        spares = self._spares.ready()
        members = [spare for spare in spares if spare in self._formation.members] if self._is_formed else []
        if len(members) >= len(dead):
            takeovers = dict(zip(dead, members, strict=False))
            self._formation = replace(self._formation, takeovers={**self._formation.takeovers, **takeovers})
            for rank, spare in takeovers.items():
                self._spares.take_over(spare, rank)
        else:
            takeovers = dict(zip(dead, spares, strict=False))
            for rank, spare in takeovers.items():
                self._spares.take_over(spare, rank)
            self._begin_generation([rank for rank in dead if rank not in takeovers])
        replaced = {rank: [old[rank], self._processes[rank].pid] for rank in dead}
        lost_hosts = {host: why for host, why in self._processes.lost_hosts().items() if host not in self._told_hosts}
        self._told_hosts.update(lost_hosts)
        hosts = {**self.places, **({"lost_hosts": lost_hosts} if lost_hosts else {})}
        return {"pids": self.pids, "replaced": replaced, "spares": takeovers, "mute": mute, "port": self.port, **hosts}

    def _begin_generation(self, fresh: Sequence[Rank] = ()) -> None:
        """Order all PS ranks and connected spares to join the next generation; start ``fresh`` ranks into it."""
        members = (*self.names, *self._spares.ready())
        generation = self._formation.generation + 1
        self._formation = replace(self._formation, generation=generation, members=members, takeovers={})
        self._is_formed = False
        for rank in fresh:
            self._spawn(rank, self._formation.place(rank))
        for rank in members:
            if rank not in fresh and rank != CHIEF:
                self._connections.send(rank, "join", self._formation.place(rank))
        self._rendezvous.begin(generation, len(members))
        self._begun_s = self._clock.read()

    def regroup(self) -> Formation:
        """Begin a generation whose members are all ranks and connected spares, if that is not the present one."""
        if set(self._formation.members) != {*self.names, *self._spares.ready()}:
            self._begin_generation()
        return self._formation

    def formed(self, generation: int) -> None:
        """Record that the trainer has joined ``generation``: all members are up."""
        self._is_formed = generation == self._formation.generation

    def dead(self) -> dict[Rank, str]:
        """PS ranks whose process has ended, and how, in words."""
        codes = {rank: self._processes[rank].exitcode for rank in self.names if rank != CHIEF}
        return {rank: self._end_of(rank, code) for rank, code in codes.items() if code is not None}

    def lost_with(self, ranks: Iterable[Rank]) -> dict[Rank, str]:
        """PS ranks on the hosts of ``ranks``, which did not answer, if these hosts were lost; and why.

        A host that is silent is waited for until it is heard or lost.
        """
        return {rank: why for rank, why in self._processes.lost_with(ranks).items() if is_ps(rank)}

    def _end_of(self, rank: Rank, exitcode: int) -> str:
        pid = self._processes[rank].pid
        if rank not in self._mute:
            if lost := self._processes.lost_with([rank]):
                return lost[rank]
            return f"pid {pid} ended with exit code {exitcode} while a generation was formed"
        return (
            f"pid {pid} did not join within {self._options.join_timeout_s:g} s (cluster.join_timeout_s), and was killed"
        )

    # --- deadlines --------------------------------------------------------------------------------------------------

    def _end_the_mute(self) -> None:
        """Kill the ranks that have not joined a generation in time, and a trainer that is not heard. Raises RunFailed
        if the trainer is one of them; it is not replaced."""
        now_s, options = self._clock.read(), self._options
        if CHIEF in self._connections and (why := self._progress.problem):
            raise self._end_trainer(why)
        if self._is_formed or now_s - self._begun_s <= options.join_timeout_s:
            return
        mute = [rank for rank in self._formation.members if self._rendezvous.is_mute(rank)]
        if CHIEF in mute or not mute:
            others = "".join(f", nor did {rank}" for rank in mute if rank != CHIEF)
            why = f"did not join within {options.join_timeout_s:g} s (cluster.join_timeout_s){others}"
            raise self._end_trainer(why)
        for rank, machine in self.kill(mute).items():
            self._mute[rank] = {"pid": machine["pid"], "seconds": now_s - self._begun_s, "action": "killed"}
        self._begun_s = now_s

    def _end_trainer(self, why: str) -> RunFailed:
        """Kill the trainer; the error that says so."""
        (machine,) = self.kill([CHIEF]).values()
        return RunFailed(f"{CHIEF} (pid {machine['pid']}) {why}, and was killed")

    # --- serving ----------------------------------------------------------------------------------------------------

    def serve(
        self, services: Services, stop: StopRequest | None = None, on_tick: Callable[[], float] = lambda: math.inf
    ) -> None:
        """Serve the ranks until the trainer has finished. ``stop``: the trainer is told once this is set.

        ``on_tick`` is called between messages, and again before as many seconds as it returns have passed.
        Besides ``services`` a trainer may call what :meth:`_own_services` adds. Raises the error that the trainer
        reported, and RunFailed if it died.
        """
        services = {**services, **self._own_services(services)}
        while True:
            # The trainer finds the death of a PS rank by a request that fails. Only while a generation is being formed
            # must the supervisor report it, since no request can be sent yet.
            wait_s = max(0.0, min(self._clock.tick_s, on_tick()))  # first: it may end connections
            is_awaited = self._rendezvous.is_awaited
            watched = self._processes.watched(None if is_awaited else [CHIEF])
            asked = [] if stop is None or stop.is_set else [stop.fileno()]
            ready = wait([*self._connections.waited(), *watched, *asked], wait_s)
            if stop is not None and stop.is_set and CHIEF in self._connections:
                self._connections.send(CHIEF, "halt")
                stop = None
            self._processes.check()
            for rank in self._processes.on_lost_hosts():  # where only the agent is stuck they run: so they end
                self._connections.drop(rank)
            for connection, message in self._connections.received(ready):
                if self._handle(connection, message, services):
                    return
            if self._rendezvous.is_awaited and (self._has_lost_a_spare() or self.dead()):
                self._rendezvous.abandon()
            self._fail_without_trainer()
            self._end_the_mute()

    def _has_lost_a_spare(self) -> bool:
        """Whether a spare that is a member of the present generation has ended since the last call."""
        return any(spare in self._formation.members for spare in self._spares.forget_dead())

    def _fail_without_trainer(self) -> None:
        """Raise RunFailed if the trainer has ended, or has closed its connection, as its end does."""
        if CHIEF in self._connections:
            return
        chief = self._processes[CHIEF]
        if CHIEF in self._connections.stuck:
            raise self._end_trainer(self._progress.silence)  # in the middle of a message
        if self._has_met_trainer:
            chief.join(REAP_S)
            self._processes.check()
        if chief.exitcode is not None:
            raise RunFailed(f"{CHIEF} (pid {chief.pid}) ended with exit code {chief.exitcode} before its job was done")
        if self._has_met_trainer:
            raise self._end_trainer("closed its connection")

    def _own_services(self, services: Services) -> Services:
        """Functions about processes and generations, and two of ``services`` that change them."""

        def replace_ranks(lost: Mapping[Rank, str], step: int, *args: Any) -> Formation:
            services["replace"](lost, step, *args)
            self._spares.refill_after(step)
            return self._formation

        def status(**values: Any) -> None:
            services["status"](**values)
            self._spares.refill(values.get("step", 0), lambda spare: self._spawn(spare, None))

        own = {"dead": self.dead, "regroup": self.regroup, "formed": self.formed, "lost_with": self.lost_with}
        return {**own, "formation": lambda: self._formation, "replace": replace_ranks, "status": status}

    def _handle(self, connection: Connection, message: control.Message, services: Services) -> bool:
        """Handle one message; True if the trainer has finished."""
        kind, *args = message
        if kind == "hello":
            self._greet(connection, *args)
            return False
        rank = self._connections.rank_of(connection)
        if rank == CHIEF:
            self._progress.hear(kind, *args)
        if kind == "finished":
            return True
        if kind == "failed":
            raise args[0]
        if kind == "tell":
            services[args[0]](**args[1])
        elif kind == "call":
            self._answer(rank, services[args[0]], args[1])
        elif kind == "publish":
            self._rendezvous.publish(rank, *args)
        elif kind == "await_all":
            self._rendezvous.await_all(rank, *args)
        return False

    def _greet(self, connection: Connection, rank: Rank, pid: int, generation: int | None) -> None:
        """A rank has connected; it joins ``generation`` now, or waits for an order if that is None."""
        if self.pids.get(rank) != pid:
            self._connections.refuse(connection)  # the last word of a process that has been replaced
            return
        if pid in self._to_cut:
            self._processes.cut_off([rank])
        elif self._may_cut and rank != CHIEF:
            self._processes.check_cut(rank)
        self._connections.admit(connection, rank)
        if rank == CHIEF:
            self._has_met_trainer = True
            self._progress.hear("hello")
        if generation is None:
            if self._spares.are_connected:
                self._connections.send(CHIEF, "spares")
        elif generation != self._formation.generation:
            self._connections.send(rank, "join", self._formation.place(rank))

    def _answer(self, rank: Rank, method: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            result, failure = method(*args), None
        except HarnessError as error:
            result, failure = None, error
        self._connections.send(rank, "result", result, failure)

    def close(self) -> None:
        """Order every rank to stop; kill and reap those that have not ended two seconds later."""
        for rank in self.pids:
            self._connections.send(rank, "stop")
        self._processes.close()
        self._connections.close()
        if self._network is not None:
            self._network.close()
