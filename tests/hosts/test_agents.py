"""Agents of hosts: who is one, which keys they need, and when the supervisor counts a host as lost."""

import os
import re
import socket
import struct
import sys
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError

from harness.config.model import ClusterConfig
from harness.core.errors import ConfigError, RunFailed
from harness.core.plans import HostMap
from harness.hosts.agent import AgentSettings
from harness.hosts.agent_link import AgentLink, HostLost, Notice
from harness.hosts.agent_start import words_of
from harness.hosts.launcher import HostsLauncher
from harness.hosts.ray_launcher import RayLauncher
from harness.processes.control import give_up_all_after, interface_of
from harness.processes.leash import ORPHANED
from tests.own_time import own_time

DEAD_AFTER_S = 2.0
SOON_S = 20.0  # for a busy machine
ROOT = Path(__file__).resolve().parents[2]
WRONG = f"env PYTHONPATH={ROOT} {sys.executable} {ROOT}/tests/hosts/wrong_agents.py"


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


def test_a_template_is_a_command_with_the_agents_words() -> None:
    """Law: ``{command}`` alone is many words; within a word it is one text for a shell; ``{host}`` is the name."""
    command = words_of("{command}", "a")
    assert command[:2] == ["env", f"PYTHONPATH={ROOT}"]
    assert command[-2:] == ["-m", "harness.run.agent"]
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
    assert message == f"cluster.start_agent: the agent of host b {words}"
    assert not Path(f"/proc/{note.read_text().strip()}").exists()


def test_a_start_that_fails_leaves_no_descriptor(tmp_path: Path) -> None:
    """Law: who starts runs from Python may try many."""

    def num_notices() -> int:
        files = [*Path("/proc/self/fd").iterdir()]
        return sum("eventfd" in str(file.readlink()) for file in files if file.is_symlink())

    before = num_notices()
    refusal(tmp_path, start_agent="/nowhere {command}")
    assert num_notices() == before


def test_a_stranger_without_the_key_is_refused(tmp_path: Path) -> None:
    """Law: it is no agent, though it knows the address; nor is one whose versions and code are not the supervisor's."""
    message = refusal(tmp_path, start_agent=f"{WRONG} stranger {{command}}")
    assert "the supervisor cannot be reached at 127.0.0.1:" in message
    assert message.endswith("digest sent was rejected")
    message = refusal(tmp_path, hosts=("a",), start_agent=f"{WRONG} other {{command}}")
    assert message.startswith("cluster.hosts: a: expected the supervisor's code and versions, got others: python ")
    assert re.search(r", torch \S+ -> 1\.0", message)


def test_an_agent_that_is_started_by_hand_says_so() -> None:
    """Law: a line that is none of settings is one line of error."""
    for line in ("", "hello\n", "{}\n", "[]\n"):
        with pytest.raises(ConfigError, match=r"^standard input: expected the settings of an agent in one line"):
            AgentSettings.of_line(line)


# --- the connection ---------------------------------------------------------------------------------------------------


def linked(dead_after_s: float = DEAD_AFTER_S) -> tuple[AgentLink, Any]:
    """The supervisor's link to the agent of host b, and the agent's end of it."""
    ours, theirs = Pipe()
    return AgentLink("b", 7, cast(Connection, ours), dead_after_s, lambda: None), theirs


def test_a_silent_host_is_lost_at_the_deadline_with_all_its_processes() -> None:
    """Law: who waits for a process of it waits for that; the process counts as ended, nobody knows how."""
    link, theirs = linked()
    began_s = time.monotonic()
    theirs.send(("answer", 42, None))
    with own_time() as clock:
        assert link.spawn(None, None) == (0, 42)
        while not link.is_silent and link.lost is None:
            time.sleep(0.01)
        link.await_end(0, 0.0)
        assert clock.read() < DEAD_AFTER_S + 0.5
    assert time.monotonic() - began_s >= DEAD_AFTER_S
    assert link.exitcode(0) == ORPHANED
    assert link.lost == "its agent gave no sign of life for 2 s (cluster.dead_after_s)"
    with pytest.raises(HostLost):
        link.ask("probe")
    theirs.close()


def test_beats_come_back_and_keep_a_host() -> None:
    """Law: as long as it is heard it is not lost; who waits for its processes waits no longer than asked.

    Waiting longer would last until the host is lost.
    """
    link, theirs = linked()
    theirs.send(("answer", 42, None))
    link.spawn(None, None)
    assert theirs.recv()[0] == "spawn"
    for number in range(12):
        theirs.send(("beat", number))
        assert theirs.recv() == ("beat", number)
        time.sleep(0.1 * DEAD_AFTER_S)
    theirs.send(("beat", 12))
    assert theirs.recv() == ("beat", 12)
    link.await_end(0, 0.0)
    assert (link.lost, link.exitcode(0), link.num_running) == (None, None, 1)
    theirs.send(("ended", 0, -9))
    link.await_end(0, 5.0)
    assert (link.exitcode(0), link.num_running) == (-9, 0)
    theirs.send(("answer", None, "ps1 could not be started: no memory"))
    with pytest.raises(RunFailed, match=r"^host b: ps1 could not be started: no memory$"):
        link.spawn(None, None)
    assert link.num_running == 0
    theirs.close()


def test_an_agent_that_ended_is_lost_at_once_and_says_why_if_it_can() -> None:
    """Law: long before the deadline, in its own words; what it had told of its processes stays."""
    link, theirs = linked(4 * SOON_S)
    theirs.send(("ended", 0, -9))
    theirs.send(("dying", "the fork server was ended"))
    theirs.close()
    began_s = time.monotonic()
    link.await_end(1, 5.0)
    assert time.monotonic() - began_s < SOON_S
    assert link.lost == "the fork server was ended"
    assert (link.exitcode(0), link.exitcode(1)) == (-9, ORPHANED)


def test_an_agent_that_ended_in_the_middle_of_a_message_is_lost() -> None:
    """Law: the reason is in words."""
    link, theirs = linked(0.5)
    os.write(theirs.fileno(), struct.pack("!i", 100) + b"half")
    theirs.close()
    link.await_end(0, 5.0)
    assert link.lost == "its connection failed: got end of file during message"


def test_a_host_that_ends_after_the_run_says_nothing(tmp_path: Path) -> None:
    """Law: its notice is for nobody; the descriptor may be another file's by then."""
    ours, theirs = Pipe()
    notice = Notice()
    link = AgentLink("b", 7, cast(Connection, ours), DEAD_AFTER_S, notice.give)
    number = notice.fileno()
    notice.close()
    with (tmp_path / "record").open("wb") as file:  # it may have the number already
        os.dup2(file.fileno(), number)
        theirs.close()
        link.close(SOON_S)  # a thread that ends by an exception fails the test
        assert link.lost is not None
        if file.fileno() != number:
            os.close(number)
    assert (tmp_path / "record").read_bytes() == b""


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
        give_up_all_after(1.5)
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as later:
            for sock in (open_one, later):
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1500
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
