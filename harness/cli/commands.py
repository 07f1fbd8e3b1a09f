"""Carries out a command of run.py: calls its function, and turns the result or an error into an exit code.

torch, pandas and matplotlib are imported by the commands that need them, so that a wrong key is reported at once.
"""

import argparse
import errno
import pkgutil
import shlex
import signal
from collections.abc import Sequence

from harness.cli import console, interrupts
from harness.cli.record_commands import BAD_INPUT, FAILED, OK
from harness.core.errors import HarnessError, RunStopped, UserError
from harness.grid.worker import one_line

_RERUN_HINTS = {
    **dict.fromkeys(("grid", "reproduce"), "the same command continues with the cells that are not done"),
    "train": "this command goes on",
    "prepare": "nothing is kept, and the same command begins anew",
}


def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Carry out the command in ``options`` and return its exit code.

    ``arguments``: the words of the command line, for messages. A HarnessError, an interrupt, the end of memory, or an
    OSError that names a file becomes lines on stderr. Any other exception is a bug, and is raised.
    """
    console.open_streams()
    console.show_log()
    options.command_line = f"run.py {shlex.join(arguments)}"
    hint = _RERUN_HINTS.get(options.call.partition(":")[2])
    rerun = f"run.py {shlex.join(word for word in arguments if word != '--afresh')}"
    interrupts.begin(f"{hint}: {rerun}" if hint else "")
    try:
        return pkgutil.resolve_name(f"harness.cli.{options.call}")(options) or OK
    except UserError as error:
        console.print_error("error", str(error))
        return BAD_INPUT
    except (RunStopped, KeyboardInterrupt) as end:
        step = end.step if isinstance(end, RunStopped) else None
        number = None if isinstance(end, RunStopped) else getattr(end, "number", signal.SIGINT)
        line, exit_code = interrupts.ending(number, None if step is None else f"{rerun} goes on from step {step}")
        console.note(line)
        return exit_code
    except HarnessError as error:
        console.print_error("failed", one_line(error))
        return FAILED
    except BrokenPipeError:  # the reader of stdout, e.g. `head`, has ended
        console.discard_stdout()
        return FAILED
    except Exception as error:
        if (line := _of_the_system(error)) is None:
            raise
        console.print_error("error", line)
        return BAD_INPUT
    finally:
        interrupts.end()


def _of_the_system(error: Exception) -> str | None:
    """What to say of the end of memory, the limit of open files, or an OSError that names a file (a full disk)."""
    if isinstance(error, MemoryError):
        return f"out of memory: {str(error) or 'MemoryError'}"
    if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
        return f"a limit of the system (ulimit -n): {error.strerror}"
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename is not None else None
