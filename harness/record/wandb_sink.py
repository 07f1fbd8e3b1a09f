"""One wandb run per cell: a view of the event log, owned by the process that records it.

wandb is imported here only, and only when a run with a view starts. Offline it writes nothing to the console and makes
no network connection. Verified for wandb 0.31: ``WANDB_ERROR_REPORTING=false`` disables the reports of wandb-core
itself, and wandb-core ends within 0.1 s of a SIGKILL of its owner.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from harness.config.model import Config
from harness.core.errors import ConfigError
from harness.core.events import BUCKETS, Evaluated, Event, Finished, Killed, Recovered, Saved, Started, Trained
from harness.record.rundir import RunDir
from harness.record.sink import EventSink, NullSink

_OPEN: set["WandbSink"] = set()  # all share one wandb-core process, which ends with the last of them

_SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("silent", "disable_git", "disable_code", "disable_job_creation"), True),
    **{f"x_disable_{name}": True for name in ("stats", "meta", "machine_info", "viewer")},
    **dict.fromkeys(("save_code", "x_save_requirements"), False),
    "console": "off",
    "x_transaction_log_flush_interval": 1.0,  # seconds
    "program": "run.py",
}


def wandb_sink(run: RunDir, config: Config) -> EventSink:
    """The sink for ``config.wandb.mode``: a null sink if it is ``disabled``. The folder's name becomes the run's."""
    return NullSink() if config.wandb.mode == "disabled" else WandbSink(run, config)


def tags_of(config: Config) -> list[str]:
    """Engine, ``trace:NAME`` or ``no-trace``, and ``profile:NAME``; a trace and a profile may share a name."""
    trace = "no-trace" if config.trace.path is None else f"trace:{Path(config.trace.path).stem}"
    return [config.engine, trace, f"profile:{config.emulated.name}"]


class WandbSink:
    """Logs events to wandb with ``samples`` as the x axis. Steps run again after a rollback are not logged twice.

    If wandb fails later, the run goes on: the sink logs nothing more, and ``error`` holds the reason.

    Raises ConfigError if wandb does not start (for example online without a key).
    """

    def __init__(self, run: RunDir, config: Config) -> None:
        self.error: str | None = None
        self._is_closed = False
        self._totals = dict.fromkeys(_TOTALS, 0.0)
        self._last_eval_samples = -1
        self._samples = 0  # x position of the previous event
        os.environ["WANDB_ERROR_REPORTING"] = "false"  # read by wandb-core when it starts; there is no setting for it
        with _temporary_files_in(run.wandb):
            import wandb  # noqa: PLC0415 - 0.3 s
            from wandb.errors import Error as WandbError  # noqa: PLC0415

        self._wandb = wandb
        self._failures = (WandbError, OSError, RuntimeError)
        try:
            self._run = wandb.init(
                mode=config.wandb.mode,
                project=config.wandb.project,
                entity=config.wandb.entity,
                group=config.name,
                job_type=config.strategy.name,
                tags=tags_of(config),
                name=run.path.name,
                config=config.model_dump(mode="json"),
                dir=str(run.path),
                settings=wandb.Settings(root_dir=str(run.path), **_SETTINGS),
                reinit="create_new",
            )
        except self._failures as error:
            raise ConfigError(
                f"wandb.mode={config.wandb.mode}: wandb did not start: {' '.join(str(error).split())}; "
                "wandb.mode=offline needs no account and no network"
            ) from error
        _OPEN.add(self)
        self._run.define_metric("samples", hidden=True)
        self._run.define_metric("*", step_metric="samples")

    def record(self, event: Event) -> None:
        """Log the values of ``event`` that the dashboard shows."""
        values = self._values(event)
        # A save in the background is committed after later steps, and is shown at the newest position.
        self._samples = max(self._samples, event.samples) if isinstance(event, Saved) else event.samples
        if values:
            self._guarded(self._run.log, {"samples": self._samples, **values})
        if isinstance(event, Finished):
            self._guarded(self._run.summary.update, summary_of(event))

    def close(self, ok: bool, reason: str | None = None) -> None:
        """Flush and end the wandb run, and end wandb-core with the last open run of this process."""
        if self._is_closed:
            return
        self._is_closed = True
        if reason is not None:
            self._guarded(self._run.summary.update, {"failure": reason})
        self._guarded(self._run.finish, exit_code=0 if ok else 1)
        _OPEN.discard(self)
        if not _OPEN:
            with suppress(*self._failures):
                self._wandb.teardown()

    def _values(self, event: Event) -> dict[str, Any]:
        match event:
            case Started():
                return self._totals
            case Trained(rerun=False):
                return {"train/loss": sum(event.losses) / len(event.losses)}
            case Evaluated() if event.samples > self._last_eval_samples:
                self._last_eval_samples = event.samples
                return {"eval/auc": event.auc, "eval/log_loss": event.log_loss, "eval/accuracy": event.accuracy}
        increments = _increments(event)
        for key, value in increments.items():
            self._totals[key] += value
        return self._totals if increments else {}

    def _guarded(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        if self.error is None:
            try:
                call(*arguments, **options)
            except self._failures as error:
                self.error = f"wandb stopped logging: {error}"


_TOTALS = (
    *(f"failures/{name}" for name in ("num_kills", "num_failures", "pls", "lost_updates")),
    *(f"saves/{name}" for name in ("num_saves", "payload_bytes", "persisted_updates")),
    *(f"overhead/{bucket}_h" for bucket in BUCKETS),
)
"""Running sums by wandb's key; the part before the slash names a panel group."""


def _increments(event: Event) -> dict[str, float]:
    """What ``event`` adds to the running sums; empty if it is no kill, save or recovery."""
    match event:
        case Killed():
            return {"failures/num_kills": 1}
        case Saved():
            cost = {"num_saves": 1, "payload_bytes": event.payload_bytes} if event.charged else {}
            return {
                "saves/persisted_updates": event.persisted_updates or 0,
                **{f"saves/{name}": value for name, value in cost.items()},
                "overhead/save_h": event.save_h if event.charged else 0.0,
            }
        case Recovered():
            return {
                "failures/num_failures": 1,
                "failures/pls": sum(event.pls.values()),
                "failures/lost_updates": event.lost_updates or 0,
                **{f"overhead/{bucket}_h": getattr(event, f"{bucket}_h") for bucket in BUCKETS[1:]},
            }
        case _:
            return {}


def summary_of(event: Finished) -> dict[str, Any]:
    """Final figures by wandb's key: ``*_h`` emulated hours, ``measured_*_s`` measured seconds; unknown is null."""
    stalls: dict[str, float] = event.machine.get("overhead_seconds") or {}
    quality = ("auc", "log_loss", "accuracy", "train_loss", "pls", "update_pls", "update_pls_tracked")
    counts = ("num_failures", "num_lost_ranks", "num_unplanned", "num_saves", "payload_bytes", "generation")
    emulated = ("overhead_frac", *(f"{bucket}_h" for bucket in BUCKETS))
    return {
        **{name: getattr(event, name) for name in (*quality, *emulated, *counts)},
        **{f"cache/{name}": value for name, value in (event.cache or {}).items()},
        **{f"measured_{bucket}_s": stalls.get(bucket) for bucket in BUCKETS},
        "measured_stall_s": sum(stalls.values()) if stalls else None,
    }


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Temporary files of the block go to ``folder``: wandb's import makes two, which a forked process leaves behind."""
    folder.mkdir(parents=True, exist_ok=True)
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
