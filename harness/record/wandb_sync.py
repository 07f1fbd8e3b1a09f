"""Sends recorded runs to the wandb server. What the server has got already is not sent again."""

import tempfile
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Literal

from harness.core.errors import RunFailed
from harness.core.events import Started
from harness.record.recorder import read_events
from harness.record.rundir import RunDir, read_env, read_whole_config
from harness.record.seal import verify
from harness.record.wandb_facts import facts_of
from harness.record.wandb_history import History
from harness.record.wandb_session import Session, WandbError, require_key, server_problem, server_url
from harness.record.wandb_view import RunView, mark_sent, sent_marker
from harness.record.wandb_worker import Worker

Outcome = Literal["sent", "sent before", "not ended"]


class Uploader:
    """Sends views of runs to one server. ``target``: values of the config's group ``wandb`` that replace the runs' own.

    Raises ConfigError without an API key, RunFailed if the server does not answer.
    """

    def __init__(self, target: Mapping[str, Any]) -> None:
        require_key()
        if problem := server_problem():
            raise RunFailed(f"{problem}; nothing was sent")
        self._server = server_url()
        self._target = target
        self._url: str | None = None

    @property
    def project_url(self) -> str | None:
        """Address of the project of the newest run that the server has; None before there is one."""
        return None if self._url is None else self._url.partition("/runs/")[0]

    def send(self, path: Path, figures: Mapping[str, Any]) -> Outcome:
        """Send the run directory ``path``, unless the server has it; ``figures`` are added to its summary.

        Raises StoreError if the record cannot be read, RunFailed if the server has not got all of it.
        """
        run = RunDir(path)
        view = view_of(run, figures, self._target) if run.status in ("done", "failed") else None
        if view is None:
            return "not ended"
        marker = sent_marker(run)
        if (marker.get("server"), marker.get("digest")) == (self._server, view.digest):
            self._url = marker.get("url")
            return "sent before"
        try:
            self._url = self._upload(view)
        except WandbError as error:
            raise RunFailed(f"{path}: wandb: {error}; the same command sends the rest") from error
        mark_sent(run, view, server=self._server, url=self._url)
        return "sent"

    def _upload(self, view: RunView) -> str | None:
        """Send ``view``; the address of its page. Raises WandbError, 15 s after the server has fallen mute."""
        with tempfile.TemporaryDirectory() as folder, _worker(self._server) as worker:
            session = worker.call(partial(Session, view.facts, mode="online", folder=Path(folder)))
            try:
                worker.call(partial(_log_all, session, view))
            finally:
                worker.call(partial(session.finish, ok=view.is_ok))
            return session.url


def _worker(server: str) -> closing[Worker]:
    return closing(Worker(server, has_one_deadline=True))


def view_of(run: RunDir, figures: Mapping[str, Any], target: Mapping[str, Any]) -> RunView | None:
    """The view of a run that has ended, made from its record; None if it has no event. Raises StoreError."""
    verify(run)
    events = read_events(run.events) if run.events.exists() else []
    if not events or not isinstance(started := events[0], Started):
        return None
    config, env = read_whole_config(run.path, {"wandb": target}), read_env(run.path)
    history = History(config.emulated.job_h)
    view = RunView(facts=facts_of(config, started, env, run.path.name), is_ok=run.status == "done")
    for event in events:
        view.rows += history.rows(event)
        view.summary |= history.summary(event)
    reason = run.reason()
    view.summary |= {**({} if reason is None else {"failure": reason}), **figures}
    return view


def _log_all(session: Session, view: RunView) -> None:
    for row in view.rows:
        session.log(row)
    session.summarise(view.summary)
