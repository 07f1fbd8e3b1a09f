"""Cells as actors of a Ray that runs: ``python -m harness.jobs.ray_cells``, the only file of this room with ray.

An actor trains one cell, in a fresh interpreter (harness.jobs.ray_job), and ends with it. It is detached, so it
outlives who has started it; it has a name, so it is found again. Ray chooses its node, and starts it again, elsewhere
if need be, when its node or its worker is lost.

Lines of JSON, to the program and from it; it ends with its standard input:

    {"address"}                        first
    {"ready": true} or {"error"}
    {"start": [...]}                   one object of :func:`start` each; a cell whose actor lives gets no second one
    {"alive": true}                    which actors wait or run
    {"names": [...]} or {"error"}      the answer to either

``python -m harness.jobs.ray_cells end ADDRESS NAME ...`` asks actors to stop; their runs write resume points.
"""

# ruff: noqa: PLC0415 - the class of the actor travels by value, and ray is optional

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from harness.hosts.ray_relay import connect

NAMESPACE = "cpr-harness"
_KNOWN_S = 30.0  # within which Ray's head knows an actor for good
_RETRY_S = 0.02


class Cell:
    """The actor of a cell."""

    def __init__(self, command: list[str], request: str, path: str) -> None:
        import ray  # pyright: ignore[reportMissingImports]

        self._actor = ray.get_runtime_context().current_actor
        self._process: subprocess.Popen[bytes] | None = None
        self._has_begun = threading.Event()
        threading.Thread(target=self._run, args=(command, request, path), daemon=True).start()

    def _run(self, command: list[str], request: str, path: str) -> None:
        """Train the cell, and end the actor for good. This thread lasts as long: the program ends with it."""
        import ray  # pyright: ignore[reportMissingImports]

        environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}  # it is Ray's
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [path, environment.get("PYTHONPATH")]))
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env=environment)
            self._has_begun.set()
            self._process.communicate(request.encode() + b"\n")
        finally:
            ray.kill(self._actor, no_restart=True)

    def stop(self) -> None:
        """Ask the run to stop; the actor ends when it has."""
        self._has_begun.wait()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)


class Cells:
    """The actors of cells of the Ray at ``address``."""

    def __init__(self, address: str) -> None:
        self._ray = connect(address, NAMESPACE, lambda words: _end_mute(f"jobs.ray_address: {words}"))

    def start(self, orders: list[dict[str, Any]]) -> list[str]:
        """Start the actor of each order, or find it; returns when Ray's head has all of them, running or waiting.

        An order has ``name``; ``command``, ``request`` and ``path``: the program, its line of standard input, and what
        it imports from; ``processors``, ``memory`` (bytes, or null) and ``max_restarts``.

        Raises LookupError, before any is started, for one that is too large for each node.
        """
        self._check("processors", "CPU", max(order["processors"] for order in orders))
        self._check("memory_gb", "memory", max(order["memory"] or 0 for order in orders))
        actors = [self._start(order) for order in orders]
        deadline_s = time.monotonic() + _KNOWN_S
        while any(self._state(actor) in (None, "DEPENDENCIES_UNREADY") for actor in actors):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"Ray did not take the cells within {_KNOWN_S:g} s")
            time.sleep(_RETRY_S)
        return [order["name"] for order in orders]

    def _check(self, key: str, resource: str, needed: float) -> None:
        most = max(node["Resources"].get(resource, 0.0) for node in self._ray.nodes() if node["Alive"])
        if needed > most:
            unit = 2**30 if resource == "memory" else 1
            raise LookupError(
                f"jobs.{key}: expected at most {most / unit:g}, what the largest node of Ray has, got {needed / unit:g}"
            )

    def _start(self, order: dict[str, Any]) -> Any:
        options = {"name": order["name"], "lifetime": "detached", "get_if_exists": True, "max_concurrency": 1}
        needs = {"num_cpus": order["processors"], "max_restarts": order["max_restarts"], "max_task_retries": 0}
        memory = {} if order["memory"] is None else {"memory": order["memory"]}
        actor = self._ray.remote(Cell).options(**options, **needs, **memory)
        return actor.remote(order["command"], order["request"], order["path"])

    def alive(self) -> list[str]:
        """The names of all actors of cells that wait or run."""
        return self._ray.util.list_named_actors()

    def end(self, names: list[str]) -> None:
        """End actors for good. Those whose cells run let them write a resume point, and have ended on return."""
        actors = {name: self._ray.get_actor(name) for name in {*names} & {*self.alive()}}
        asked: set[str] = set()
        while left := actors.keys() & {*self.alive()}:
            for name in left:
                if self._state(actors[name]) != "ALIVE":
                    self._ray.kill(actors[name], no_restart=True)
                elif name not in asked:
                    actors[name].stop.remote()
                    asked.add(name)
            time.sleep(10 * _RETRY_S)

    def _state(self, actor: Any) -> str | None:
        """The state that Ray's head has; ray has no public function for it that needs no dashboard."""
        from ray._private.state import actors  # pyright: ignore[reportMissingImports]

        return actors(actor._actor_id.hex()).get("State")


_out = 1  # file descriptor of what the client reads


def _say(message: dict[str, Any]) -> None:
    os.write(_out, json.dumps(message).encode() + b"\n")


def _end_mute(words: str) -> None:
    _say({"error": words})
    os._exit(1)


def _answer(cells: Cells, order: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"names": cells.start(order["start"]) if "start" in order else cells.alive()}
    except LookupError as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever Ray raises is one line to the user
        return {"error": f"{type(error).__name__}: {error}"}


def _connect(address: str) -> Cells:
    try:
        return Cells(address)
    except Exception as error:
        words = " ".join(f"jobs.ray_address: no Ray at {address}: {error}".split())
        _say({"error": words})
        raise SystemExit(2) from error


def main(words: list[str]) -> None:
    """Serve the client until it closes the standard input, or end cells."""
    global _out  # noqa: PLW0603 - Ray prints to the standard output
    _out = os.dup(1)
    os.dup2(2, 1)
    if words[:1] == ["end"]:
        _connect(words[1]).end(words[2:])
        return
    cells = _connect(json.loads(sys.stdin.readline())["address"])
    _say({"ready": True})
    for line in sys.stdin:
        _say(_answer(cells, json.loads(line)))
    os._exit(0)  # actors are detached; Ray's own end takes a second


if __name__ == "__main__":
    main(sys.argv[1:])
