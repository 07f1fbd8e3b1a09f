"""A Ray on emulated hosts: its head where the supervisor runs, a node on each host. It ends with who started it."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.config.model import Config
from tests.hosts.emulated import SUPERVISOR, Emulation, address_of, give_own_folder, processes

_PORT = 26379
_PATIENCE_S = 90.0
_START = ["start", "--block", "--disable-usage-stats", "--object-store-memory=80000000", "--num-cpus=0"]
OURS = (b"harness.run.agent", b"ray::agent", b"from multiprocessing")
"""Parts of the command lines of agents, ranks, tasks and fork servers."""


@contextmanager
def ray_on(hosts: Emulation) -> Iterator[None]:
    """While it is entered, a Ray runs on all hosts."""
    folder = Path(tempfile.mkdtemp(prefix="ray"))  # short: paths of sockets are
    head = ["--head", f"--port={_PORT}", "--include-dashboard=false", f"--temp-dir={folder}"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(_start(["--net"], hosts.bridge, [*head, f"--node-ip-address={SUPERVISOR}"]))
        for host in hosts.hosts:
            give_own_folder(host, folder)
            where = [f"--address={SUPERVISOR}:{_PORT}", f"--node-ip-address={address_of(hosts, host)}"]
            started.append(_start(["--net", "--pid", "--mount"], host, where))
        _await_nodes(hosts, started, 1 + len(hosts.hosts))
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            end(process)
        shutil.rmtree(folder, ignore_errors=True)


def end(process: "subprocess.Popen[bytes]") -> None:
    """Wait until a process that was asked to end has ended; with patience for a busy machine, then it is killed."""
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _start(namespaces: list[str], holder: int | str, options: list[str]) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "ray.scripts.scripts", *_START, *options]
    return subprocess.Popen(
        ["nsenter", "--target", str(holder), *namespaces, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"RAY_health_check_timeout_ms": "60000"},  # of a busy machine
    )


_COUNT = (
    "import ray; ray.init(address={address!r}, log_to_driver=False, logging_level='error'); "
    "print('nodes', sum(node['Alive'] for node in ray.nodes()))"
)


def _await_nodes(hosts: Emulation, started: list["subprocess.Popen[bytes]"], num: int) -> None:
    """Wait until so many nodes live."""
    code = _COUNT.format(address=f"{SUPERVISOR}:{_PORT}")
    command = ["nsenter", "--target", str(hosts.bridge), "--net", sys.executable, "-c", code]
    ends_s = time.monotonic() + _PATIENCE_S
    while f"nodes {num}" not in (said := subprocess.run(command, capture_output=True, text=True, check=False)).stdout:
        assert all(process.poll() is None for process in started), "a node of Ray has ended"
        assert time.monotonic() < ends_s, said
        time.sleep(0.5)


def by_ray(hosts: Emulation, config: Config, num: int | None = None) -> Config:
    """``config`` with ranks on the first ``num`` hosts, or all, whose agents Ray starts."""
    addresses = tuple(address_of(hosts, host) for host in hosts.hosts[:num])
    return hosts.config(config, launcher="ray", hosts=addresses, ray_address=f"{SUPERVISOR}:{_PORT}")


def ours(host: str, *parts: bytes) -> list[int]:
    """Processes of a host whose command lines have one of ``parts``; of :data:`OURS` by default. Process ids here."""
    found = []
    for pid in processes(host).values():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if any(part in line for part in parts or OURS):
            found.append(pid)
    return sorted(found)
