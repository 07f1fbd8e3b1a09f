"""A stand-in of the wandb server on loopback, for tests: it records what it receives, and knows few operations."""

import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.wandb import exporter, server

ENTITY = "someone"
_ENDS_S = 20.0
KEY = "0123456789abcdef" * 2 + "01234567"


def be_patient(patch: pytest.MonkeyPatch) -> None:
    """Give wandb time to start and to end on a busy machine."""
    patch.setattr(exporter, "DEADLINE_S", 60.0)
    for name in ("init", "finish"):
        patch.setitem(server.LIMITS_S, name, 60.0)


def core_pids(pid: int) -> list[int]:
    """The wandb-core processes below a process."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread or a child has ended
            for child in map(int, children.read_text().split()):
                program = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[0]
                found += [child] if program.endswith(b"/wandb-core") else core_pids(child)
    return found


def started_core(pid: int) -> int:
    """The wandb-core process below a process, which is about to be started."""
    until_s = time.monotonic() + 60.0
    while not (found := core_pids(pid)):
        assert time.monotonic() < until_s, "no wandb-core"
        time.sleep(0.01)
    (core,) = found
    return core


def ends(pid: int) -> bool:
    """Whether a process has ended, or does so soon."""
    until_s = time.monotonic() + _ENDS_S
    while _stat(pid)[0] != "Z":
        if time.monotonic() > until_s:
            return False
        time.sleep(0.01)
    return True


def parent_of(pid: int) -> int:
    """Its parent's number."""
    return int(_stat(pid)[1])


def _stat(pid: int) -> list[str]:
    """State of a process ("Z": it has ended), its parent, and more (``man 5 proc``)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["Z"]


@dataclass
class WandbServer:
    """What the stand-in has received. ``unknown``: requests that it could not answer; a test fails on any.

    ``mute_after``: the operation after which no request is answered any more. ``mute_s``: when the first one was not
    (monotonic).
    """

    url: str = ""
    mute_after: str | None = None
    mute_s: float | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    operations: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)  # by id: variables of the upserts, the last counts
    history: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)  # by id and line
    summary: dict[str, dict[str, Any]] = field(default_factory=dict)
    complete: dict[str, int] = field(default_factory=dict)  # exit codes by id
    views: list[dict[str, Any]] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)  # names of runs that are refused, as runs that were deleted are

    def answer(self, query: dict[str, Any]) -> Any:
        """The data for a GraphQL query."""
        name = query.get("operationName") or query["query"].split("(")[0].split()[1]
        self.operations.append(name)
        variables = query.get("variables") or {}
        match name:
            case "Viewer" | "GetDefaultEntity":
                return {"viewer": {"id": "1", "entity": ENTITY, "username": ENTITY, "teams": {"edges": []}}}
            case "UpsertBucket":
                return {"upsertBucket": {"bucket": self._bucket(variables), "inserted": True}}
            case "OrganizationCoreWeaveOrganizationID":
                return {"entity": {"organization": {"coreWeaveOrganizationId": None}}}
            case "CreateRunFiles":
                files = [{"name": file, "uploadUrl": f"{self.url}/upload/{file}"} for file in variables["files"]]
                return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}
            case "UpsertView2":
                self.views.append(variables)
                return {"upsertView": {"view": {"id": "view1", "name": variables["name"]}, "inserted": True}}
        self.unknown.append(name)
        return {}

    def _bucket(self, variables: dict[str, Any]) -> dict[str, Any]:
        run = self.runs.setdefault(variables["name"], {})
        run |= {key: value for key, value in variables.items() if value is not None}
        owner = {"id": "2", "name": variables["entity"] or ENTITY}
        project = {"id": "3", "name": variables["project"], "entity": owner}
        empty = dict.fromkeys(("displayName", "description", "config", "sweepName"))
        return {**empty, "id": variables["name"], "name": variables["name"], "project": project, "historyLineCount": 0}

    def stream(self, run: str, body: dict[str, Any]) -> None:
        """Take a part of a run's history, summary and end."""
        for name, part in body.get("files", {}).items():
            lines = [json.loads(line) for line in part["content"]]
            if name == "wandb-history.jsonl":
                self.history.setdefault(run, {}).update(enumerate(lines, start=part["offset"]))
            elif name == "wandb-summary.json":
                self.summary[run] = lines[-1]
            else:
                self.unknown.append(f"file_stream {name}")
        if body.get("complete"):
            self.complete[run] = body["exitcode"]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that closes its connection is no error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    received: WandbServer

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the tests' output free of requests."""

    def do_POST(self) -> None:
        """GraphQL, or a part of a run's stream."""
        body = json.loads(self._body())
        self._hang_if_mute()
        if self.path == "/graphql" and (body.get("variables") or {}).get("displayName") in self.received.deleted:
            words = "run was previously created and deleted; try a new run name"
            self._reply({"errors": [{"message": words, "path": ["upsertBucket"]}]}, status=409)
        elif self.path == "/graphql":
            self._reply({"data": self.received.answer(body)})
        elif self.path.endswith("/file_stream"):
            self.received.stream(self.path.split("/")[-2], body)
            self._reply({})
        else:
            self._refuse()

    def do_PUT(self) -> None:
        """A run's file."""
        self._body()
        self._hang_if_mute()
        self._reply({}) if self.path.startswith("/upload/") else self._refuse()

    def do_GET(self) -> None:
        """Nothing is asked for by GET."""
        self._refuse()

    def _hang_if_mute(self) -> None:
        if self.received.mute_after in self.received.operations:
            self.received.mute_s = self.received.mute_s or time.monotonic()
            self.received.ended.wait()

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _refuse(self) -> None:
        self.received.unknown.append(f"{self.command} {self.path}")
        self._reply({}, status=404)

    def _reply(self, values: Any, status: int = 200) -> None:
        body = json.dumps(values).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serve() -> Iterator[WandbServer]:
    """A running stand-in. At the end, the test fails if it met an unknown operation."""
    received = WandbServer()
    handler = type("Handler", (_Handler,), {"received": received})
    with _Server(("127.0.0.1", 0), handler) as server:
        received.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield received
        finally:
            received.ended.set()
            server.shutdown()
            thread.join()
    if received.unknown:
        pytest.fail(f"the stand-in of the wandb server does not know {received.unknown}")
