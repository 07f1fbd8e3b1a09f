"""The process that trains a cell for its actor of Ray: ``python -m harness.jobs.ray_job``, a fresh interpreter.

Ray's worker has threads and handlers of signals; a run is not started from it. SIGINT and SIGTERM ask the run to stop.
"""

import json
import signal
import sys

from harness.core.errors import RunFailed
from harness.jobs.cell_job import CellJob
from harness.processes.leash import end_with_parent


def main() -> None:
    """Read the job from standard input, and train its cell. The exit code is 0 if it is done."""
    end_with_parent()
    text = sys.stdin.readline()
    if not text.endswith("\n"):
        raise SystemExit(1)  # the actor has ended before the line above
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray's processes have SIGINT blocked
    try:
        CellJob.of_values(json.loads(text))()
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    except RunFailed as error:
        raise SystemExit(1) from error  # the log and the cell's folder say why


if __name__ == "__main__":
    main()
