"""A program that runs commands as plain tasks of a running Ray cluster. The only file that imports ray.

    ray_tasks.py nodes ADDRESS HOST ...       prints {"nodes": the addresses of HOST ..., or of all that live}
    ray_tasks.py run ADDRESS HOST COMMAND     runs COMMAND on a node, as ``ssh HOST COMMAND`` does: it gets the first
                                              line of the standard input, and its output and exit code come back
    ray_tasks.py cells ADDRESS                trains cells on nodes that Ray chooses (:func:`train_cells`)

A task ends when this program ends, and its command ends with the task: the kernel kills it with Ray's worker, which
ends with the node's raylet. An error is printed as {"problem": one line}, by ``run`` as the line alone with exit
code 2.
"""

# ruff: noqa: PLC0415 - functions of tasks travel by value, and ray is optional

import json
import math
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

_READY_S = 60.0  # within which Ray answers
_LISTENS_S = 5.0  # within which something accepts a connection
_TICK_S = 0.1
_END_S = 5.0  # between the end of a command's output and its own
_AGAIN_S = 2.0  # between two requests to Ray to cancel a task: it does not promise that one arrives
_ROOT = Path(__file__).resolve().parents[2]


def run_there(command: list[str], settings: dict[str, Any]) -> Iterator[str | int]:
    """The Ray task that runs a command: yields each line that the command prints, and last its exit code.

    ``settings``: the first line of its standard input, as JSON.
    """
    child = start(command)
    child.send(settings)
    with child.lines() as printed:
        yield from printed
    yield child.close(_END_S)


def cell(command: list[str], folder: str, log: str, grace_s: float) -> int:
    """The Ray task that trains a cell by a command; returns the command's exit code, minus a signal's number.

    Ray cancels the task by KeyboardInterrupt: the command then gets SIGINT, and is killed if it runs on for
    ``grace_s``.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a Ray that a script started with `&` ignores it
    child = start(command, folder=folder, log=Path(log))
    try:
        while child.wait(_TICK_S) is None:  # Ray interrupts between two calls only
            pass
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is cancelled again; the worker ends with the command
        child.signal(signal.SIGINT)
    return child.end(grace_s)


def start(command: list[str], **options: Any) -> Any:
    """Start a command, a ``Child``, within a task. Its environment lacks ``OMP_NUM_THREADS``, which Ray sets."""
    sys.path.append(str(_ROOT))
    from harness.processes.child import Child

    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    return Child(command, environment=environment, **options)


def connect(address: str, key: str) -> Any:
    """Connect to the Ray cluster at ``address`` and return the module ray. Without an answer, exit with an error.

    The error begins with ``key``. The port is tried first, since Ray retries for minutes where nothing listens.
    """
    host, colon, port = address.rpartition(":")
    timer = threading.Timer(_READY_S, _give_up, (f"{key}: no Ray at {address} answered within {_READY_S:g} s",))
    timer.daemon = True
    try:
        if colon and port.isdigit():
            socket.create_connection((host, int(port)), timeout=_LISTENS_S).close()
        timer.start()
        import ray  # pyright: ignore[reportMissingImports]

        ray.init(address=address, log_to_driver=False, logging_level="error")
    except Exception as error:  # noqa: BLE001 - whatever Ray raises is one line to the user
        _give_up(f"{key}: no Ray at {address}: {error}")
    timer.cancel()
    return ray


def nodes_of(ray: Any, hosts: Sequence[str]) -> dict[str, str]:
    """Ray's node ids by address: of ``hosts``, or of all living nodes if it is empty.

    Exits with an error if one of ``hosts`` is no living node.
    """
    found = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
    nodes = sorted(found, key=lambda address: [part.zfill(5) for part in address.split(".")])
    if unknown := [host for host in hosts if host not in found]:
        _give_up(
            f"cluster.hosts: expected addresses of living Ray nodes ({', '.join(nodes)}), got {', '.join(unknown)}"
        )
    return {host: found[host] for host in hosts or nodes}


def run_on(ray: Any, host: str, command: list[str], settings: dict[str, Any]) -> int:
    """Run a command on the node ``host`` as a task and print its output. Returns its exit code.

    That is 128 + number of the signal if a signal ended it. Exits with an error if the task is lost.
    """
    from ray.util.scheduling_strategies import (  # pyright: ignore[reportMissingImports]
        NodeAffinitySchedulingStrategy,
    )

    where = NodeAffinitySchedulingStrategy(node_id=nodes_of(ray, [host])[host], soft=False)
    task = ray.remote(num_cpus=0, max_retries=0, num_returns="streaming", scheduling_strategy=where)(run_there)
    code = 1
    try:
        for reference in task.remote(command, settings):
            match ray.get(reference):
                case str(printed):
                    os.write(_out, printed.encode())
                case code:
                    pass
    except ray.exceptions.RayError as error:
        _give_up(f"Ray lost the task: {error}")
    return code if code >= 0 else 128 - code


def train_cells(ray: Any, request: dict[str, Any]) -> None:
    """Train cells as tasks; print a line ``{"name", "code", "error"}`` when a cell has ended.

    ``request``: ``cells``, each with its ``name``, ``arguments`` of :func:`cell` and Ray's ``options`` (``num_cpus``,
    ``memory`` in bytes, ``max_retries``); ``most``: how many run at once. ``code``: None if Ray lost the task or
    cancelled it before it began. Any line on the standard input stops all cells; the running ones write resume points.
    """
    stop = threading.Event()
    threading.Thread(target=_listen, args=(stop,), daemon=True).start()
    task, waiting, running = ray.remote(cell), deque(request["cells"]), dict[Any, str]()
    asked_s = -math.inf
    while waiting or running:
        if stop.is_set() and time.monotonic() - asked_s > _AGAIN_S:
            asked_s = time.monotonic()
            waiting.clear()
            for reference in running:
                ray.cancel(reference)
        while waiting and len(running) < request["most"]:
            one = waiting.popleft()
            running[task.options(**one["options"]).remote(*one["arguments"])] = one["name"]
        ended, _ = ray.wait([*running], timeout=_TICK_S) if running else ([], [])
        for reference in ended:
            _say({"name": running.pop(reference), **_end_of(ray, reference)})


def _listen(stop: threading.Event) -> None:
    for _ in sys.stdin:
        stop.set()
    os._exit(0)  # the command has ended; Ray ends the tasks


def _end_of(ray: Any, reference: Any) -> dict[str, Any]:
    try:
        return {"code": ray.get(reference), "error": None}
    except ray.exceptions.TaskCancelledError:
        return {"code": None, "error": None}
    except ray.exceptions.RayError as error:
        return {"code": None, "error": _line(error)}


def check_room(ray: Any, request: dict[str, Any]) -> None:
    """Exit with a one-line error if a cell needs more processors or memory than any living node has."""
    for key, resource, option, unit in (("processors", "CPU", "num_cpus", 1), ("memory_gb", "memory", "memory", 2**30)):
        most = max(node["Resources"].get(resource, 0.0) for node in ray.nodes() if node["Alive"]) / unit
        needed = max(one["options"].get(option, 0) for one in request["cells"]) / unit
        if needed > most:
            _give_up(f"jobs.{key}: expected at most {most:g}, what the largest node of Ray has, got {needed:g}")


_out = 1  # file descriptor of what the caller reads
_is_asked_for_text = sys.argv[1:2] == ["run"]


def _say(values: dict[str, Any]) -> None:
    os.write(_out, json.dumps(values).encode() + b"\n")


def _line(error: object) -> str:
    return " ".join(str(error).split())


def _give_up(words: str) -> NoReturn:
    if _is_asked_for_text:
        os.write(_out, f"{_line(words)}\n".encode())
    else:
        _say({"problem": _line(words)})
    os._exit(2)


def main(mode: str, address: str, *words: str) -> int:
    """Run the mode ``nodes``, ``run`` or ``cells`` (see the module). Returns the exit code."""
    global _out  # noqa: PLW0603 - Ray prints to the standard streams
    request: Any = None if mode == "nodes" else json.loads(sys.stdin.readline())
    _out = os.dup(1)
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), 1)
        os.dup2(null.fileno(), 2)
    ray = connect(address, "jobs.ray_address" if mode == "cells" else "cluster.ray_address")
    if mode == "nodes":
        _say({"nodes": [*nodes_of(ray, words)]})
        return 0
    if mode == "run":
        return run_on(ray, words[0], [*words[1:]], request)
    check_room(ray, request)
    train_cells(ray, request)
    return 0


if __name__ == "__main__":
    os._exit(main(*sys.argv[1:]))  # Ray's own end takes a second
