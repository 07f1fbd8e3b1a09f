"""A stand-in of the wandb server on loopback, for tests: it records what it receives, and knows few operations."""

import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from harness.record import wandb_session, wandb_sink, wandb_worker

ENTITY = "someone"
KEY = "0123456789abcdef" * 2 + "01234567"


def be_patient(patch: pytest.MonkeyPatch) -> None:
    """Give wandb time to start and to end on a busy machine."""
    patch.setattr(wandb_worker, "DEADLINE_S", 60.0)
    patch.setattr(wandb_sink, "START_S", 60.0)
    for name in ("init_timeout", "finish_timeout"):
        patch.setitem(wandb_session._SETTINGS, name, 60.0)


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
        if self.path == "/graphql":
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
