"""The launcher of ranks on several hosts, by a fork server on each."""

import secrets
from contextlib import suppress
from pathlib import Path

from harness.cluster.launcher import Launcher
from harness.config.model import ClusterConfig
from harness.core.errors import ConfigError, shown
from harness.core.plans import HostMap
from harness.hosts.start import end_servers, start_servers
from harness.processes.forked import ForkServer, HostLost


class HostsLauncher(Launcher):
    """Starts ranks on the hosts of ``cluster.hosts``. A host that dies is lost for good.

    Args:
        hosts: which host each rank is on; hosts that it says are lost are ended first.
        checkpoints: a folder that all hosts must share.

    Raises:
        ConfigError: a key does not fit, a fork server cannot be started or has other code, or the folder is not shared.
        RunFailed: a lost host cannot be ended.
    """

    def __init__(self, cluster: ClusterConfig, hosts: HostMap, checkpoints: Path) -> None:
        _check_keys(cluster)
        servers, self._commands = start_servers(cluster)
        super().__init__(servers, hosts, cluster.dead_after_s)
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
            apart = [server.host for server in self._servers if not _shares(server, probe, text)]
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

    def close(self) -> None:
        """See :class:`Launcher`. Then end all fork servers, and the commands that started them."""
        super().close()
        end_servers(self._servers, self._commands)


def _shares(server: ForkServer, probe: Path, text: str) -> bool:
    """Whether a process on the server's host finds ``text`` in the file ``probe``, and can change it for a moment."""
    server.fork(_answer_probe, probe, text, server.host).join()
    is_shared = probe.read_text() == text + server.host
    probe.write_text(text)
    return is_shared


def _answer_probe(probe: Path, text: str, host: str) -> None:
    """On a host: append its name to a file if its content is ``text``; a no-op if it is missing or not writable."""
    with suppress(OSError):
        if probe.read_text() == text:
            probe.write_text(text + host)


def _check_keys(cluster: ClusterConfig) -> None:
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
    if cluster.host in ("0.0.0.0", "::"):
        raise ConfigError(
            f"cluster.host: expected an address of this machine that the hosts reach, got {cluster.host}, which names "
            "none"
        )
