"""One run in the folder that its config names: what is checked, claimed, resumed and replaced, whoever asks for it."""

# ruff: noqa: PLC0415 - torch takes a second to import

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.config.model import Config
from harness.core.errors import StoreError
from harness.core.events import Finished
from harness.grid.stale import Stale, to_run_anew
from harness.processes.stop import StopRequest
from harness.record import seal
from harness.record.folder import (
    OtherRun,
    State,
    Unfinished,
    claim_run,
    drop_resume_points,
    has_resume_point,
    reason_kept,
)
from harness.record.replacement import current_state, prepare_replacement, replace_run
from harness.record.rundir import RunDir, differing_keys, read_config

if TYPE_CHECKING:
    from harness.run.assemble import RunStatus

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenRun:
    """A run that was checked, and whose folder is claimed unless it is done. ``run_dir``: the folder it writes to."""

    config: Config
    run_dir: Path
    is_done: bool
    resumes: bool

    def carry_out(
        self, on_status: "Callable[[RunStatus], None] | None" = None, stop: StopRequest | None = None
    ) -> Finished:
        """Train; returns the last event. Raises as ``harness.run.assemble.run``."""
        from harness.run import assemble

        with reason_kept(self.run_dir, discards=True):
            return assemble.run(self.config, self.run_dir, on_status=on_status, resumes=self.resumes, stop=stop)


@contextmanager
def opened_run(config: Config, *, unfinished: Unfinished = "refuse", stale: Stale = "fail") -> Iterator[OpenRun]:
    """Check a run and claim its folder for the time of the block. A run that is done is verified instead.

    ``unfinished``: what to do with a run that was interrupted and left a resume point; ``resume`` refuses nothing, as a
    run without such a point starts. ``stale``: what to do with a result of other code; one that is run anew stands
    until the block has ended.

    Raises UserError if the config, the data, the trace or the folder cannot be used.
    """
    from harness.run import assemble
    from harness.run.spec import cell_hash, check

    for line in check(config):
        _log.info("note: %s", line)
    run_dir, digest = Path(config.out), cell_hash(config)
    is_done = _state(run_dir, config, digest) is State.DONE
    is_replaced = is_done and bool(to_run_anew([run_dir], stale))
    if is_done and not is_replaced:
        drop_resume_points(run_dir)
        seal.verify(RunDir(run_dir))  # or no results follow
        yield OpenRun(config, run_dir, is_done=True, resumes=False)
        return
    if assemble.starts_processes(config):
        assemble.prepare_fork_server()
    target = prepare_replacement(run_dir, digest) if is_replaced else run_dir
    resumes, failure = unfinished == "resume", RunDir(target).failure()
    with claim_run(target, digest, "refuse" if resumes and not has_resume_point(target) else unfinished) as found:
        if found is State.UNFINISHED and not has_resume_point(target):
            what = f"failed ({failure})" if failure else "was interrupted"
            _log.info("%s: this run %s; it starts afresh", target, what)
        yield OpenRun(config, target, is_done=False, resumes=resumes)
    if is_replaced:
        replace_run(run_dir)


def _state(run_dir: Path, config: Config, digest: str) -> State:
    """As :func:`current_state`; where the folder holds another run, the error names the keys that differ."""
    from harness.run.spec import RunSpec

    try:
        return current_state(run_dir, digest)
    except OtherRun as error:
        keys = differing_keys(read_config(run_dir), RunSpec(config).config.model_dump(mode="json"))
        what = ", ".join(keys) if keys else "the content of data or trace"
        raise StoreError(f"{error}; what differs: {what}") from error
