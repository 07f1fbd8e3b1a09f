"""One wandb run per cell: a view of the event log, owned by the process that records it.

wandb is imported here and nowhere else, when a run starts. Offline it is silent: on the console, and on the network,
which it never touches. Verified for wandb 0.31: it is ``WANDB_ERROR_REPORTING=false`` that silences wandb-core's own
reports, and wandb-core ends within 0.1 s of a SIGKILL of its owner.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from harness.config.model import Config
from harness.core.errors import ConfigError
from harness.core.events import Evaluated, Event, Finished, Killed, Recovered, Saved, Started, Trained
from harness.record.rundir import RunDir
from harness.record.sink import EventSink, NullSink

_OPEN: set["WandbSink"] = set()  # they share one wandb-core, which ends with the last

BUCKETS = ("save", "load", "lost", "reschedule")


def wandb_sink(run: RunDir, config: Config) -> EventSink:
    """The view of ``run`` that ``wandb.mode`` asks for; the folder's name names the cell."""
    return NullSink() if config.wandb.mode == "disabled" else WandbSink(run, config)


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """wandb makes two temporary folders when it is imported, which a forked process would leave behind in /tmp."""
    folder.mkdir(parents=True, exist_ok=True)
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def tags_of(config: Config) -> list[str]:
    """Engine, trace (``no-trace`` if there is none) and profile; a trace and a profile may share a name."""
    trace = "no-trace" if config.trace.path is None else f"trace:{Path(config.trace.path).stem}"
    return [config.engine, trace, f"profile:{config.emulated.name}"]


class WandbSink:
    """Logs what events say, with ``samples`` as the clock. A sample position is seen once: reruns are not logged.

    wandb failing later must not cost the run: the sink then falls silent and ``error`` says why.

    Raises:
        ConfigError: wandb refused to start (online without a key, for one).
    """

    def __init__(self, run: RunDir, config: Config) -> None:
        self.error: str | None = None
        self._is_closed = False
        self._totals = _Totals()
        self._last_eval = -1
        self._position = 0  # samples, of the event before
        # Read by wandb-core when it is spawned; there is no setting for it.
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        with _temporary_files_in(run.wandb):
            import wandb  # noqa: PLC0415  0.3 s, and only here
            from wandb.errors import Error as WandbError  # noqa: PLC0415

        self._failures = (WandbError, OSError, RuntimeError)
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            save_code=False,
            disable_job_creation=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_disable_viewer=True,
            x_save_requirements=False,
            x_transaction_log_flush_interval=1.0,
            root_dir=str(run.path),
            program="run.py",
        )
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
                settings=settings,
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

    @property
    def url(self) -> str | None:
        """Where an online run is seen."""
        return self._run.url

    def record(self, event: Event) -> None:
        """Log what of ``event`` a dashboard shows."""
        values = self._values(event)
        # A save in the background is committed after later steps: it is seen where the curve is then.
        self._position = max(self._position, event.samples) if isinstance(event, Saved) else event.samples
        if values:
            self._guarded(partial(self._run.log, {"samples": self._position, **values}))
        if isinstance(event, Finished):
            self._guarded(partial(self._run.summary.update, summary_of(event)))

    def close(self, ok: bool, reason: str | None = None) -> None:
        """Flush the run's file and end the run."""
        if not self._is_closed:
            self._is_closed = True
            if reason is not None:
                self._guarded(partial(self._run.summary.update, {"failure": reason}))
            self._guarded(partial(self._run.finish, exit_code=0 if ok else 1))
            _OPEN.discard(self)
            if not _OPEN:
                self._end_service()

    def _end_service(self) -> None:
        """End this process's wandb-core, which otherwise waits for the next run until the process ends."""
        import wandb  # noqa: PLC0415

        with suppress(*self._failures):
            wandb.teardown()

    def _values(self, event: Event) -> dict[str, Any]:
        match event:
            case Started():
                return self._totals.as_values()
            case Trained(rerun=False):
                return {"train/loss": sum(event.losses) / len(event.losses)}
            case Evaluated() if event.samples > self._last_eval:
                self._last_eval = event.samples
                return {"eval/auc": event.auc, "eval/log_loss": event.log_loss, "eval/accuracy": event.accuracy}
            case _:
                return self._totals.as_values() if self._totals.add(event) else {}

    def _guarded(self, call: Callable[[], Any]) -> None:
        if self.error is None:
            try:
                call()
            except self._failures as error:
                self.error = f"wandb fell silent: {error}"


def summary_of(event: Finished) -> dict[str, Any]:
    """Final figures. Emulated overhead in hours, measured stall in seconds; unknown is null."""
    stalls: dict[str, float] = event.machine.get("overhead_seconds") or {}
    measured = {f"measured_{bucket}_s": stalls.get(bucket) for bucket in BUCKETS}
    names = ("auc", "log_loss", "accuracy", "train_loss", "pls", "update_pls", "update_pls_tracked")
    counts = ("num_failures", "num_lost_ranks", "num_unplanned", "num_saves", "payload_bytes", "generation")
    emulated = ("overhead_frac", *(f"{bucket}_h" for bucket in BUCKETS))
    return {name: getattr(event, name) for name in (*names, *emulated, *counts)} | {
        **{f"cache/{name}": value for name, value in (event.cache or {}).items()},
        **measured,
        "measured_stall_s": sum(stalls.values()) if stalls else None,
    }


class _Totals:
    """Running sums of what failures and saves cost; the marks on the dashboard's curves."""

    def __init__(self) -> None:
        self.num_kills = self.num_failures = self.num_saves = self.payload_bytes = 0
        self.lost_updates = self.persisted_updates = 0
        self.pls = 0.0
        self.hours = dict.fromkeys(BUCKETS, 0.0)

    def add(self, event: Event) -> bool:
        """Whether ``event`` changed what ``as_values`` shows."""
        match event:
            case Killed():
                self.num_kills += 1
            case Saved():
                self.persisted_updates += event.persisted_updates or 0
                if event.charged:
                    self.num_saves += 1
                    self.payload_bytes += event.payload_bytes
                    self.hours["save"] += event.save_h
            case Recovered():
                self.num_failures += 1
                self.pls += sum(event.pls.values())
                self.lost_updates += event.lost_updates or 0
                self.hours["load"] += event.load_h
                self.hours["lost"] += event.lost_h
                self.hours["reschedule"] += event.reschedule_h
            case _:
                return False
        return True

    def as_values(self) -> dict[str, Any]:
        """By wandb's key; the slash makes a panel group."""
        return {
            "failures/num_kills": self.num_kills,
            "failures/num_failures": self.num_failures,
            "failures/pls": self.pls,
            "failures/lost_updates": self.lost_updates,
            "saves/num_saves": self.num_saves,
            "saves/payload_bytes": self.payload_bytes,
            "saves/persisted_updates": self.persisted_updates,
            **{f"overhead/{bucket}_h": hours for bucket, hours in self.hours.items()},
        }
