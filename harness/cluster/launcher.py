"""Launchers: how the process of a rank is started, watched and ended, on this machine or on another.

One class and one entry in :data:`LAUNCHERS` for each; config key ``cluster.launcher``.
"""

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Protocol

from harness.cluster.spawn import fork_server
from harness.core.errors import RunFailed
from harness.core.names import LAUNCHER_NAMES, PartTable
from harness.core.plans import Rank

if TYPE_CHECKING:  # the supervisor's side of a cluster must not import torch
    from harness.cluster.group import GroupOptions
    from harness.cluster.network import Entrance


@dataclass(frozen=True)
class Place:
    """The place of a process in a generation of the RPC world; can be pickled.

    Attributes:
        rank, index: its name, and its number among ``world_size`` members.
    """

    generation: int
    rank: Rank
    index: int
    world_size: int


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """What the process of a rank is told; can be pickled.

    Attributes:
        rank: its name at first: a spare may take over another.
        place: in the first generation to join; None for a spare that waits for an order.
        supervisor_pid: process whose end must also end the rank.
        host, port, authkey: of the supervisor's control channel.
        entrance: of the network that the ranks have to themselves; None where they have none.
    """

    rank: Rank
    place: Place | None
    num_ps: int
    supervisor_pid: int
    host: str
    port: int
    authkey: bytes
    options: "GroupOptions"
    entrance: "Entrance | None" = None


Main = Callable[[RankContext, Any], None]
"""Main function of a rank's process, called with its context and its work."""


class RankProcess(Protocol):
    """A handle with which the supervisor watches and kills the process of one rank."""

    @property
    def pid(self) -> int:
        """Process id, on the host of the process."""
        ...

    @property
    def exitcode(self) -> int | None:
        """Exit code, or minus the number of the signal that ended the process; None while it runs."""
        ...

    def kill(self) -> None:
        """Send SIGKILL without waiting. A no-op if the process has ended."""
        ...

    def join(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` for the process to end; :attr:`exitcode` is None if it still runs."""
        ...


class Launcher(Protocol):
    """Starts the processes of ranks. Used by one thread of the supervisor."""

    def spawn(self, context: RankContext, main: Main, work: Any) -> RankProcess:
        """Start ``main(context, work)`` in a process that ends when the supervisor ends. Raises RunFailed."""
        ...

    def watched(self, processes: Iterable[RankProcess]) -> list[Any]:
        """Objects for ``multiprocessing.connection.wait``; one of them is ready once one of ``processes`` has ended."""
        ...

    def close(self) -> None:
        """Release the launcher's own resources. Called after all its processes have ended."""
        ...


class ForkedProcess:
    """A process forked on this machine."""

    def __init__(self, process: BaseProcess) -> None:
        assert process.pid is not None, "it was started"
        self._process = process
        self.pid = process.pid

    @property
    def exitcode(self) -> int | None:
        """See :class:`RankProcess`."""
        return self._process.exitcode

    @property
    def sentinel(self) -> int:
        """File descriptor that is readable once the process has ended."""
        return self._process.sentinel

    def kill(self) -> None:
        """Send SIGKILL to the process id; a no-op if the process has ended."""
        with suppress(ProcessLookupError):  # it has ended already
            os.kill(self.pid, signal.SIGKILL)

    def join(self, timeout_s: float) -> None:
        """See :class:`RankProcess`."""
        self._process.join(timeout_s)


class ForkLauncher:
    """Forks ranks on this machine from a server that has torch loaded: 10 ms instead of 1.3 s of import."""

    def spawn(self, context: RankContext, main: Main, work: Any) -> ForkedProcess:
        """See :class:`Launcher`."""
        process = fork_server().Process(target=main, args=(context, work), name=context.rank)
        try:
            process.start()
        except (OSError, EOFError) as error:  # the fork server failed to fork and has ended
            raise RunFailed(f"{context.rank} could not be started: {error}; check memory and limits") from error
        return ForkedProcess(process)

    def watched(self, processes: Iterable[RankProcess]) -> list[Any]:
        """The sentinels of the processes: readable once a process has ended."""
        return [process.sentinel for process in processes if isinstance(process, ForkedProcess)]

    def close(self) -> None:
        """A no-op: the fork server ends with this process."""


LAUNCHERS: PartTable[Callable[[], Launcher]] = PartTable(LAUNCHER_NAMES, {"fork": ForkLauncher})
"""Launchers by the value of config key ``cluster.launcher``."""
