"""A plugin of tests: at step 20 strategy ``full`` waits for a file, or sends its job a signal and waits to be stopped.

It does so where it plans the save, after the place of a resume point: the point is that of step 21.

The folder is that of the variable GATE, or of this file: ``reached-NAME`` says that cell NAME is there. If there is
``signal-NAME``, the number in it is sent, once, to the job's process and to the cell's, as a scheduler does; otherwise
the cell waits for the file ``open``, or until it is asked to stop.
"""

import os
import signal
import sys
import time
from pathlib import Path

from harness.core.plans import Progress, SavePlan
from harness.core.strategies import Full

STEP = 20
_PATIENCE_S = 100.0
_plan_save = Full.plan_save


def _gated(self: Full, progress: Progress) -> SavePlan | None:
    if progress.step == STEP:
        _wait(Path(os.environ.get("GATE", Path(__file__).parent)), Path(sys.argv[2]).stem)  # run.py train NAME.yaml
    return _plan_save(self, progress)


def _wait(folder: Path, name: str) -> None:
    (folder / f"reached-{name}").touch()
    to_send = folder / f"signal-{name}"
    if to_send.exists():
        number = int(to_send.read_text())
        to_send.unlink()
        for pid in (os.getpid(), os.getppid()):
            os.kill(pid, number)
        _until(_is_asked_to_stop)
    else:
        _until(lambda: (folder / "open").exists() or _is_asked_to_stop())


def _is_asked_to_stop() -> bool:
    """Whether the seconds of --grace run."""
    return signal.getitimer(signal.ITIMER_REAL)[0] > 0


def _until(is_so) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


Full.plan_save = _gated
