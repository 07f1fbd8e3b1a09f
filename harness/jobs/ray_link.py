"""This process's side of harness.jobs.ray_cells, which speaks with Ray: it starts the program and asks it."""

import importlib.util
import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.core.errors import ConfigError, UserError

PROGRAM = "harness.jobs.ray_cells"
_ROOT = Path(__file__).resolve().parents[2]
_READY_S = 90.0  # for the program to connect; it gives up itself before


def require_ray() -> None:
    """Raise ConfigError if ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "--launcher ray: expected the package ray, which is missing; pip install -r requirements-ray.txt"
        )


def import_path() -> str:
    """PYTHONPATH of a process that imports this package, whatever its working directory is."""
    return os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))


class RayLink:
    """A connection to the Ray at ``address``, by a process that ends with this one.

    Raises ConfigError if there is no Ray.
    """

    def __init__(self, address: str) -> None:
        require_ray()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for the command
            env={**os.environ, "PYTHONPATH": import_path()},
        )
        self._rest = b""
        try:
            self._ask({"address": address}, _READY_S)
        except BaseException:
            self.close()
            raise

    def start(self, orders: list[dict[str, Any]], timeout_s: float) -> None:
        """Start cells: see harness.jobs.ray_cells. Raises UserError."""
        self._ask({"start": orders}, timeout_s)

    def alive(self, timeout_s: float) -> set[str]:
        """The names of cells that wait or run. Raises UserError."""
        return {*self._ask({"alive": True}, timeout_s)["names"]}

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):  # it had ended before it was asked
                stream.close()

    def _ask(self, order: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            answer = json.loads(self._line(timeout_s))
        except (OSError, ValueError) as error:
            raise UserError(f"jobs.ray_address: expected an answer of Ray, got none: {error}") from error
        if "error" in answer:
            raise ConfigError(" ".join(answer["error"].split()))
        return answer

    def _line(self, timeout_s: float) -> bytes:
        """The next line of the program. Raises OSError."""
        assert self._process.stdout is not None
        ends_s = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, ends_s - time.monotonic()))
            if not ready:
                raise TimeoutError(f"nothing came within {timeout_s:g} s")
            if not (part := os.read(self._process.stdout.fileno(), 1 << 16)):
                raise ConnectionError("the process that speaks with Ray has ended")
            self._rest += part
        line, self._rest = self._rest.split(b"\n", 1)
        return line
