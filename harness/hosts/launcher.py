"""The launcher of ranks on several hosts: an agent on each starts, watches and kills the processes there."""

import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import Any

from harness.cluster.launcher import Launcher, Main, RankContext, RankProcess
from harness.config.model import ClusterConfig
from harness.core.errors import ConfigError, RunFailed, shown
from harness.core.plans import HostMap, Rank
from harness.hosts.agent_link import AgentLink, HostLost, Notice
from harness.hosts.agent_start import end_agents, start_agents


@dataclass(frozen=True)
class HostProcess:
    """The process of a rank on another host. ``number`` identifies it in messages between supervisor and agent."""

    pid: int
    number: int
    agent: AgentLink

    @property
    def host(self) -> str:
        return self.agent.host

    @property
    def exitcode(self) -> int | None:
        return self.agent.exitcode(self.number)

    def kill(self) -> None:
        """Order the agent to send SIGKILL, without waiting."""
        self.agent.send("kill", self.number)

    def pause(self) -> None:
        """Order the agent to send SIGSTOP, without waiting."""
        self.agent.send("pause", self.number)

    def resume(self) -> None:
        """Order the agent to send SIGCONT, without waiting."""
        self.agent.send("resume", self.number)

    @property
    def is_paused(self) -> bool:
        try:
            return self.agent.ask("is_paused", self.number)
        except HostLost:
            return True  # it runs no more

    def join(self, timeout_s: float) -> None:
        self.agent.await_end(self.number, timeout_s)


class HostsLauncher(Launcher):
    """Starts ranks on the hosts of ``cluster.hosts``, by an agent on each. A host that dies is lost for good.

    Args:
        hosts: which host each rank is on; hosts that it says are lost are ended first.
        checkpoints: a folder that all hosts must share.

    Raises:
        ConfigError: a key does not fit, an agent cannot be started or has other code, or the folder is not shared.
        RunFailed: a lost host cannot be ended.
    """

    def __init__(self, cluster: ClusterConfig, hosts: HostMap, checkpoints: Path) -> None:
        _refuse(cluster)
        self.dead_after_s = cluster.dead_after_s
        self._hosts = hosts
        self._notice = Notice()
        try:
            self._agents, self._commands = start_agents(cluster, self._notice.give)
        except BaseException:
            self._notice.close()
            raise
        self._ctrl_z = _CtrlZ(lambda: [agent for agent in self._agents.values() if agent.lost is None])
        try:
            self._check_shared(Path(shown(checkpoints)).absolute())
            self.end_hosts(hosts.lost)
        except BaseException:
            self.close()
            raise

    def _check_shared(self, folder: Path) -> None:
        """Raise ConfigError unless all hosts share ``folder`` and can write there: each adds its name to a test file.

        A test file that is left behind has the name of a temporary checkpoint file, which the next run removes.
        """
        text = secrets.token_hex(8)
        probe = folder / f".probe-{text}.tmp"
        try:
            probe.write_text(text)
            apart = [host for host, agent in self._agents.items() if not self._shares(agent, probe, text)]
        except OSError as error:
            raise ConfigError(f"out: cannot write to {folder}: {error.strerror}") from error
        except HostLost as error:
            raise ConfigError(f"cluster.hosts: {error}") from error
        finally:
            with suppress(OSError):
                probe.unlink()
        if apart:
            raise ConfigError(
                f"out: expected a folder that all hosts share, but on {', '.join(apart)} {folder} is another one or "
                "cannot be written; checkpoints are written and read there by all hosts"
            )

    def _shares(self, agent: AgentLink, probe: Path, text: str) -> bool:
        agent.ask("probe", str(probe), text)
        is_shared = probe.read_text() == text + agent.host
        probe.write_text(text)
        return is_shared

    def spawn(self, context: RankContext, main: Main) -> RankProcess:
        """Start the process of a rank on its host; of a spare, on the living host with the fewest processes."""
        while True:
            self.check()
            agent = self._choose(context.rank)
            try:
                number, pid = agent.spawn(context, main)
            except HostLost:
                continue
            return HostProcess(pid, number, agent)

    def _choose(self, rank: Rank) -> AgentLink:
        agents = [*self._agents.values()]
        for host, agent in enumerate(agents):
            if agent.lost is not None:
                self._hosts.lose(host)
        living = [agent for agent in agents if agent.lost is None]
        if not living:
            raise RunFailed(f"{rank} could not be started: all hosts were lost ({_words(self.lost_hosts())})")
        if rank in self._hosts:
            return agents[self._hosts[rank]]
        return min(living, key=lambda agent: (agent.is_silent, agent.num_running))

    def end_hosts(self, hosts: Sequence[int]) -> None:
        agents = [*self._agents.values()]
        for host in hosts:
            self._hosts.lose(host)
            agents[host].end_host()

    def watched(self, processes: Iterable[RankProcess]) -> list[Any]:
        """One file descriptor, readable from the end of any process or the loss of a host until :meth:`check`."""
        return [self._notice.fileno()]

    def check(self) -> None:
        """Make the file descriptor of :meth:`watched` unreadable again."""
        self._notice.take()

    def lost_hosts(self) -> dict[str, str]:
        return {host: agent.lost for host, agent in self._agents.items() if agent.lost is not None}

    def close(self) -> None:
        """End all agents, and the commands that started them."""
        self._ctrl_z.close()
        end_agents(self._agents.values(), self._commands.values())
        self._notice.close()


def _words(lost: Mapping[str, str]) -> str:
    return "; ".join(f"{host}: {why}" for host, why in lost.items())


def _refuse(cluster: ClusterConfig) -> None:
    """Raise ConfigError for keys of ``cluster`` that do not fit ranks on several hosts."""
    launcher = f"cluster.launcher={cluster.launcher}"
    if not cluster.hosts:
        raise ConfigError(f"cluster.hosts: expected the names of hosts with {launcher}, got none")
    if cluster.network != "open":
        raise ConfigError(
            f"cluster.network: expected open with {launcher}, got {cluster.network}: others of the network "
            "reach the ranks, and RPC authenticates nobody; on a network that you trust, set cluster.network=open"
        )
    if "shm" in cluster.transports:
        raise ConfigError(f"cluster.transports: expected uv with {launcher}, got shm, which ends at a host")
    with suppress(ValueError):  # a name
        if ip_address(cluster.host).is_unspecified:
            raise ConfigError(
                f"cluster.host: expected an address of this machine that the hosts reach, got {cluster.host}, "
                "which names none"
            )


class _CtrlZ:
    """Handler of Ctrl-Z (SIGTSTP): suspends the leases of all agents, then stops this process with SIGSTOP.

    The leases are resumed when the process is continued. A no-op outside of the main thread, and if the process ignores
    or handles the signal already. A SIGSTOP of others cannot be handled: the agents treat a supervisor that it stops
    as one that is cut off.

    Args:
        agents: returns the living agents.
    """

    def __init__(self, agents: Callable[[], Iterable[AgentLink]]) -> None:
        self._agents = agents
        self._asked = -1
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:
            return
        self._asked = os.eventfd(0, os.EFD_CLOEXEC)
        threading.Thread(target=self._serve, args=(self._asked,), name="ctrl-z", daemon=True).start()
        signal.signal(signal.SIGTSTP, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None, /) -> None:
        with suppress(OSError):
            os.eventfd_write(self._asked, 1)

    def _serve(self, asked: int) -> None:
        with suppress(OSError):
            while os.eventfd_read(asked) < _END:
                for agent in self._agents():
                    agent.suspend()
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # by this thread: it goes on after SIGCONT
                for agent in self._agents():
                    agent.go_on()
        os.close(asked)

    def close(self) -> None:
        """Restore the default action of SIGTSTP."""
        if self._asked >= 0:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.eventfd_write(self._asked, _END)
            self._asked = -1


_END = 1 << 32  # more than signals can have added
