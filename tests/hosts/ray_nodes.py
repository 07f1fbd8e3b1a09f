"""A Ray on emulated hosts: its head where the supervisor runs, a node on each host. It ends with who started it."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.config.model import Config
from tests.hosts.emulated import SUPERVISOR, Emulation, address_of, give_own_folder, processes

_ADDRESS = f"{SUPERVISOR}:26379"
_PATIENCE_S = 180.0  # of a busy machine, for all nodes
OURS = (b"harness.run.fork_server", b"ray::run_there")
"""Parts of the command lines of fork servers, of the ranks that they fork, and of tasks."""


@contextmanager
def ray_on(hosts: Emulation) -> Iterator[None]:
    """While it is entered, a Ray runs on all hosts."""
    folder = Path(tempfile.mkdtemp(prefix="ray"))  # short: paths of sockets are
    inside = ["nsenter", "--target", str(hosts.bridge), "--net"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(start_head(inside, _ADDRESS, folder, "--num-cpus=0"))
        for host in hosts.hosts:
            give_own_folder(host, folder)
            where = [f"--address={_ADDRESS}", f"--node-ip-address={address_of(hosts, host)}", "--num-cpus=0"]
            started.append(_start(["nsenter", "--target", host, "--net", "--pid", "--mount"], where))
        await_nodes(inside, _ADDRESS, started)
        yield
    finally:
        end(started, folder)


def start_head(
    prefix: Sequence[str], address: str, folder: Path, *options: str, **variables: str
) -> "subprocess.Popen[bytes]":
    """Start the head of a Ray at ``address``, with its files in ``folder``, by a command after ``prefix``."""
    host, port = address.split(":")
    where = [f"--node-ip-address={host}", f"--port={port}", f"--temp-dir={folder}"]
    return _start(prefix, ["--head", "--include-dashboard=false", *where, *options], **variables)


def _start(prefix: Sequence[str], options: Sequence[str], **variables: str) -> "subprocess.Popen[bytes]":
    in_background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]  # SIGINT is ignored, as a script's `&` has it
    command = [
        *prefix,
        *in_background,
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--block",
        "--disable-usage-stats",
    ]
    null = subprocess.DEVNULL
    patient = {"RAY_health_check_timeout_ms": "60000"}  # of a busy machine
    return subprocess.Popen(
        [*command, "--object-store-memory=80000000", *options],
        stdin=null,
        stdout=null,
        stderr=null,
        env=os.environ | patient | variables,
    )


def await_nodes(prefix: Sequence[str], address: str, started: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Wait until each of ``started`` is a living node, where Ray's own programs look for it."""
    code = (
        f"import ray; ray.init(address={address!r}, log_to_driver=False, logging_level='error'); "
        "print('nodes', sum(node['Alive'] for node in ray.nodes()))"
    )
    command, ends_s = [*prefix, sys.executable, "-c", code], time.monotonic() + _PATIENCE_S
    while True:
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if f"nodes {len(started)}" in said.stdout:
            return
        assert all(process.poll() is None for process in started), "a node of Ray has ended"
        assert time.monotonic() < ends_s, said
        time.sleep(0.2)


def end(started: Sequence["subprocess.Popen[bytes]"], folder: Path) -> None:
    """Ask the nodes of a Ray to end, kill those that do not on a busy machine, and remove its files."""
    for process in started:
        process.terminate()
    for process in started:
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def by_ray(hosts: Emulation, config: Config, num: int | None = None) -> Config:
    """``config`` with ranks on the first ``num`` hosts, or all, whose fork servers Ray starts."""
    addresses = tuple(address_of(hosts, host) for host in hosts.hosts[:num])
    return hosts.config(config, launcher="ray", hosts=addresses, ray_address=_ADDRESS)


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
