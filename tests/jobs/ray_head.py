"""A Ray of this machine alone, and its processes."""

import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.ray_nodes import await_nodes, end, start_head

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
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    head = Head(address, f"{_MARK}={folder}".encode())
    started = [start_head((), address, folder, "--num-cpus=4", **{_MARK: str(folder)})]
    try:
        await_nodes((), address, started)
        yield head
    finally:
        end(started, folder)
        for pid in head.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
