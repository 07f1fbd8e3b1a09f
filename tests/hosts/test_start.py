"""The start of fork servers on hosts: which keys it needs, what it runs, and who is refused."""

import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.config.model import ClusterConfig
from harness.core.errors import ConfigError
from harness.core.plans import HostMap
from harness.hosts.launcher import HostsLauncher
from harness.hosts.ray_launcher import RayLauncher
from harness.hosts.start import words_of
from harness.processes.control import interface_of, limit_silence_of_all

ROOT = Path(__file__).resolve().parents[2]
WRONG = f"env PYTHONPATH={ROOT} {sys.executable} {ROOT}/tests/hosts/wrong_servers.py"


def refusal(folder: Path, **keys: Any) -> str:
    """Why a launcher is refused."""
    given: dict[str, Any] = {"launcher": "hosts", "hosts": ("a", "b"), "network": "open", "start_agent": "{command}"}
    with pytest.raises(ConfigError) as caught:
        HostsLauncher(ClusterConfig(**given | keys), HostMap(2, 2, {}), folder)
    return str(caught.value)


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"hosts": ()}, "cluster.hosts: expected the names of hosts with cluster.launcher=hosts, got none"),
        ({"network": "auto"}, "cluster.network: expected open with cluster.launcher=hosts, got auto: others of"),
        ({"transports": ("shm", "uv")}, "cluster.transports: expected uv with cluster.launcher=hosts, got shm"),
        ({"host": "0.0.0.0"}, "cluster.host: expected an address of this machine that the hosts reach, got 0.0.0.0"),
        ({"host": "192.0.2.99"}, "cluster.host: cannot listen on 192.0.2.99: Cannot assign requested address"),
        ({"start_agent": "'{command}"}, 'cluster.start_agent: expected a command, got "\'{command}": No closing quot'),
        ({"start_agent": "/nowhere {command}"}, "cluster.start_agent: cannot run /nowhere: No such file or directory"),
    ],
)
def test_keys_that_do_not_fit_are_one_line(tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    """Law: before anything is started."""
    message = refusal(tmp_path, **keys)
    assert message.startswith(words)
    assert "\n" not in message


def test_without_ray_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: before anything is started."""
    monkeypatch.setitem(sys.modules, "ray", None)
    words = "cluster.launcher: ray: expected the package ray, which is missing; pip install -r requirements-ray.txt"
    with pytest.raises(ConfigError, match=f"^{words}$"):
        RayLauncher(ClusterConfig(launcher="ray", network="open"), HostMap(2, 0, {}), tmp_path)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"hosts": ("a", "a")}, "hosts: expected each host once, got a, a"),
        ({"hosts": ("-oProxyCommand=x",)}, "String should match pattern"),
        ({"start_agent": "ssh {host}"}, "start_agent: expected a command with {command} in it, got 'ssh {host}'"),
        (
            {"start_agent": "ssh {hosts} {command}"},
            "expected {host} and {command} alone in braces, got {hosts}",
        ),
        ({"hosts": ("a",), "place": {"ps0": "b"}}, r"place: ps0: expected one of cluster.hosts \(a\), got 'b'"),
    ],
)
def test_a_config_names_its_hosts(keys: dict[str, Any], words: str) -> None:
    """Law: what is wrong without a look at the machine is refused at birth."""
    with pytest.raises(ValidationError, match=words):
        ClusterConfig(**keys)


def test_a_template_is_a_command_with_the_programs_words() -> None:
    """Law: ``{command}`` alone is many words; within a word it is one text for a shell; ``{host}`` is the name."""
    command = words_of("{command}", "a")
    assert command[:2] == ["env", f"PYTHONPATH={ROOT}"]
    assert command[-2:] == ["-m", "harness.run.fork_server"]
    assert words_of("ssh -p 22 {host} {command}", "a") == ["ssh", "-p", "22", "a", *command]
    assert words_of("sh -c 'exec {command}'", "a") == ["sh", "-c", f"exec {' '.join(command)}"]


# --- the start --------------------------------------------------------------------------------------------------------


def test_a_start_command_that_fails_is_one_line_with_what_it_printed(tmp_path: Path) -> None:
    """Law: the line names host and exit code; the other host's command is not left behind."""
    note = tmp_path / "pid"
    script = (
        f"if [ $0 = a ]; then echo $$ > {note}; exec sleep 600; fi; "
        f'while [ ! -s {note} ]; do sleep 0.05; done; echo "no route to $0"; exit 255'
    )
    (tmp_path / "start").write_text(script)
    message = refusal(tmp_path, start_agent=f"sh -c '. {tmp_path}/start' {{host}} {{command}}")
    words = "was not started: the command ended with exit code 255; it printed: no route to b"
    assert message == f"cluster.start_agent: the fork server of host b {words}"
    assert not Path(f"/proc/{note.read_text().strip()}").exists()


def test_a_stranger_without_the_key_is_refused(tmp_path: Path) -> None:
    """Law: it serves no host, though it knows the address; nor does one with other versions or code."""
    message = refusal(tmp_path, start_agent=f"{WRONG} stranger {{command}}")
    assert "the supervisor cannot be reached at 127.0.0.1:" in message
    assert message.endswith("digest sent was rejected")
    message = refusal(tmp_path, hosts=("a",), start_agent=f"{WRONG} other {{command}}")
    assert message.startswith("cluster.hosts: a: expected the supervisor's code and versions, got others: python ")
    assert re.search(r", torch \S+ -> 1\.0", message)


# --- sockets ----------------------------------------------------------------------------------------------------------


def test_an_address_has_an_interface() -> None:
    """Law: of this machine, by IPv4 and by IPv6; another machine's has none."""
    assert (interface_of("127.0.0.1"), interface_of("203.0.113.9")) == ("lo", None)
    if socket.has_ipv6 and os.path.exists("/proc/net/if_inet6"):
        assert interface_of("2001:db8::9") is None


def test_all_sockets_of_a_process_give_a_silent_host_up() -> None:
    """Law: those that are open, and those that a listening one accepts later."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as open_one,
    ):
        listener.accept()[0].close()
        limit_silence_of_all(1.5)
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as later:
            for sock in (open_one, later):
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1500
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
