"""One run in the folder that its config names: checked, locked, then trained or resumed; for API and commands."""

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
from harness.processes.stop import StopRequest
from harness.record.code import difference_of
from harness.record.folder import (
    OtherRun,
    State,
    claim_run,
    discard_run,
    drop_leftovers,
    has_resume_point,
    inspect,
    is_same_config,
    reason_kept,
)
from harness.record.rundir import RunDir, differing_keys, read_config, verify

if TYPE_CHECKING:
    from harness.run.assemble import RunStatus

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenRun:
    """A checked run. Its folder ``run_dir`` is locked, unless the run is done already."""

    config: Config
    run_dir: Path
    is_done: bool

    def carry_out(
        self, on_status: "Callable[[RunStatus], None] | None" = None, stop: StopRequest | None = None
    ) -> Finished:
        """Train to the end; returns the event Finished. Raises as ``harness.run.assemble.run``."""
        from harness.run import assemble

        with reason_kept(self.run_dir, discards=True):
            return assemble.run(self.config, self.run_dir, on_status=on_status, resumes=True, stop=stop)


@contextmanager
def opened_run(config: Config, *, afresh: bool = False) -> Iterator[OpenRun]:
    """Check a run and lock its folder for the time of the block. Of a finished run the files are verified instead.

    An interrupted run goes on from its resume point; without one it starts from the beginning. ``afresh``: a run of
    this config in the folder, finished or not, by whatever code, is removed first.

    Raises UserError if the config, the data, the trace or the folder cannot be used, or if the folder holds a run of
    this config that other code computed.
    """
    from harness.run import assemble
    from harness.run.spec import cell_hash, check

    for line in check(config):
        _log.info("note: %s", line)
    run_dir, digest = Path(config.out), cell_hash(config)
    if afresh:
        discard_run(run_dir, digest)
    if _state(run_dir, config, digest) is State.DONE:
        drop_leftovers(run_dir)
        verify(RunDir(run_dir))  # or no results follow
        yield OpenRun(config, run_dir, is_done=True)
        return
    if assemble.starts_processes(config):
        assemble.prepare_fork_server()
    failure = RunDir(run_dir).failure()
    with claim_run(run_dir, digest, keeps_failed=not has_resume_point(run_dir)) as found:
        if found is State.UNFINISHED and not has_resume_point(run_dir) and not afresh:
            what = f"failed ({failure})" if failure else "was interrupted"
            _log.info("%s: this run %s; it starts afresh", run_dir, what)
        yield OpenRun(config, run_dir, is_done=False)


def _state(run_dir: Path, config: Config, digest: str) -> State:
    """As :func:`inspect`; if the folder holds another run, the error names the keys or the code that differ."""
    from harness.run.spec import RunSpec

    try:
        return inspect(run_dir, digest)
    except OtherRun as error:
        if is_same_config(digest, error.found):
            raise StoreError(
                f"{run_dir}: holds this run by other code ({difference_of(run_dir)}); --afresh starts it anew, "
                "out=FOLDER keeps both"
            ) from error
        keys = differing_keys(read_config(run_dir), RunSpec(config).config.model_dump(mode="json"))
        what = ", ".join(keys) if keys else "the content of data or trace"
        raise StoreError(f"{error}; what differs: {what}") from error
