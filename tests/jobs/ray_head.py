"""A Ray of this machine alone, and its processes."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.ray_nodes import end

_PATIENCE_S = 90.0
_MARK = "CPR_TEST_RAY"


@dataclass(frozen=True)
class Head:
    """A Ray with 4 processors. ``mark``: a variable that the environments of all its processes have."""

    address: str
    mark: bytes

    def processes(self, *parts: bytes) -> list[int]:
        """Its processes whose command lines have one of ``parts``; all of them without."""
        found: list[int] = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                line = (folder / "cmdline").read_bytes()
                if self.mark in (folder / "environ").read_bytes() and any(part in line for part in parts or (b"",)):
                    found.append(int(folder.name))
        return found


@contextmanager
def ray_head() -> Iterator[Head]:
    """A Ray that has ended, with all that it has started, when the block has."""
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # short: paths of sockets are
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    mark = f"{_MARK}={folder}"
    head = Head(f"127.0.0.1:{port}", mark.encode())
    options = ["--head", "--block", "--disable-usage-stats", "--include-dashboard=false", "--num-cpus=4"]
    where = ["--node-ip-address=127.0.0.1", f"--port={port}", f"--temp-dir={folder}"]
    null = subprocess.DEVNULL
    process = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", "start", *options, *where, "--object-store-memory=80000000"],
        stdin=null,
        stdout=null,
        stderr=null,
        env=os.environ | {_MARK: str(folder), "RAY_health_check_timeout_ms": "60000"},  # of a busy machine
    )
    try:
        _await_raylet(process, head)
        yield head
    finally:
        process.terminate()
        end(process)
        for pid in head.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def _await_raylet(process: "subprocess.Popen[bytes]", head: Head) -> None:
    """Wait until a worker can be started: the raylet listens where Ray's own programs look for it."""
    code = f"import ray; ray.init(address={head.address!r}, log_to_driver=False, logging_level='error')"
    ends_s = time.monotonic() + _PATIENCE_S
    while subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode:
        assert process.poll() is None, "Ray has ended"
        assert time.monotonic() < ends_s, "Ray did not start"
        time.sleep(0.2)
