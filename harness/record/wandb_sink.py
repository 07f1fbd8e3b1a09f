"""One wandb run per cell: a view of the event log, owned by the process that records it."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Literal

from harness.config.model import Config
from harness.core.errors import StoreError
from harness.core.events import Event, Started
from harness.record.rundir import RunDir, read_env
from harness.record.sink import EventSink, NullSink
from harness.record.wandb_facts import RunFacts, facts_of
from harness.record.wandb_history import History, Row
from harness.record.wandb_session import Session, WandbError, require_key, server_problem, server_url
from harness.record.wandb_view import RunView, mark_sent
from harness.record.wandb_worker import Worker

_log = logging.getLogger(__name__)

START_S = 13.0
"""Within which wandb starts, whatever is tried; a call that was given up then has two seconds to end."""


def wandb_sink(run: RunDir, config: Config) -> EventSink:
    """The sink for ``config.wandb.mode``: a null sink if it is ``disabled``. The folder's name becomes the run's.

    Raises ConfigError if the mode is ``online`` and there is no API key.
    """
    if config.wandb.mode == "disabled":
        return NullSink()
    if config.wandb.mode == "online":
        require_key()
    return WandbSink(run, config)


class WandbSink:
    """Logs events to wandb. Whatever happens to wandb, the run goes on, and one line is logged.

    Rows are logged by a thread: no step waits for wandb. Its start and its end are waited for, within deadlines.
    If an online session does not start, an offline one does. ``run.py sync`` sends what the server has not got.
    """

    def __init__(self, run: RunDir, config: Config) -> None:
        self._run = run
        self._config = config
        self._history = History(config.emulated.job_h)
        self._session: Session | None = None
        self._worker: Worker | None = None
        self._view: RunView | None = None
        self._is_online = config.wandb.mode == "online"
        self.error: str | None = None

    def record(self, event: Event) -> None:
        """Log the values of ``event`` that the dashboard shows."""
        if isinstance(event, Started):
            self._start(event)
        self._send(self._history.rows(event), self._history.summary(event))

    def close(self, ok: bool, reason: str | None = None) -> None:
        """Flush and end the wandb run, and end wandb-core with the last open run of this process."""
        self._send([], {} if reason is None else {"failure": reason})
        state = "the run is complete" if ok else "the record is kept"
        session, self._session = self._session, None
        worker, self._worker = self._worker, None
        if worker is None or session is None or self._view is None:
            return
        self._view.is_ok = ok
        is_finished = self._tries(partial(worker.call, partial(session.finish, ok=ok)), state)
        if is_finished and self._tries(worker.check, state) and self._is_online:
            with suppress(StoreError):  # it is sent again, to the same place
                mark_sent(self._run, self._view, server=server_url(), url=session.url)
        worker.close()

    def _start(self, started: Started) -> None:
        facts = facts_of(self._config, started, read_env(self._run.path), self._run.path.name)
        self._view = RunView(facts=facts)
        ends_s = time.monotonic() + START_S
        problem = self._open_online(facts, ends_s) if self._is_online else None
        if self._session is not None:
            _log.info("wandb: %s", self._session.url)
            return
        self._is_online = False
        is_open = self._tries(partial(self._open, facts, "offline", "its process, wandb-core", ends_s), before=problem)
        if is_open and problem is not None:
            _log.warning("wandb: %s; the run goes on offline, `run.py sync %s` sends it", problem, self._run.path)

    def _open_online(self, facts: RunFacts, ends_s: float) -> str | None:
        """Open an online session; in words why there is none, None if there is one."""
        problem = server_problem()
        if problem is not None:
            return problem.removeprefix("wandb: ")
        try:
            self._open(facts, "online", server_url(), ends_s)
        except WandbError as error:
            return str(error)
        return None

    def _open(self, facts: RunFacts, mode: Literal["online", "offline"], waits_for: str, ends_s: float) -> None:
        if (left_s := ends_s - time.monotonic()) <= 0:
            raise WandbError(f"{mode}: no time left of {START_S:g} s")
        worker = Worker(waits_for)
        try:
            self._session = worker.call(partial(Session, facts, mode=mode, folder=self._run.path), left_s)
        except BaseException:
            worker.close()
            raise
        self._worker = worker

    def _send(self, rows: list[Row], summary: Row) -> None:
        worker, session, view = self._worker, self._session, self._view
        if worker is None or session is None or view is None or self.error is not None:
            return
        view.rows += rows
        view.summary |= summary
        calls = [partial(session.log, row) for row in rows] + ([partial(session.summarise, summary)] if summary else [])
        for call in calls:
            self._tries(partial(worker.submit, call))

    def _tries(self, call: Callable[[], None], state: str = "the run goes on", *, before: str | None = None) -> bool:
        """Whether ``call`` succeeds, and all calls before have. The first failure is logged, with the run's state.

        ``before``: what had failed before, and was not logged.
        """
        try:
            call()
        except WandbError as error:
            if self.error is None:
                self.error = "; ".join(filter(None, [before, str(error)]))
                path = self._run.path
                _log.warning("note: wandb: %s; %s; send it later by `run.py sync %s`", self.error, state, path)
        return self.error is None
