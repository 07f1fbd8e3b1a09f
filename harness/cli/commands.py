"""The commands of run.py by name. Each takes the parsed options and returns an exit code, or None for success.

torch, pandas and matplotlib are imported by the commands that need them, so that a wrong key is reported at once.
"""

# ruff: noqa: PLC0415

import argparse
import errno
import json
import shlex
from collections.abc import Callable, Sequence

from harness.cli import console, interrupts, record_commands, run_commands, wandb_commands
from harness.cli.record_commands import BAD_INPUT, FAILED, OK
from harness.config.keys import explained, schema
from harness.core.errors import HarnessError, RunStopped, UserError
from harness.grid.worker import one_line

_RERUN_HINTS = {
    **dict.fromkeys(("grid", "reproduce"), "the same command continues with the cells that are not done"),
    **dict.fromkeys(("train", "replay"), "this command goes on"),
}


def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Carry out the command in ``options`` and return its exit code; errors become lines on stderr."""
    console.open_streams()
    console.show_log()
    options.command_line = f"run.py {shlex.join(arguments)}"
    hint = _RERUN_HINTS.get(options.command)
    rerun = _rerun(arguments)
    interrupts.begin(f"{hint}: {rerun}" if hint else "")
    try:
        return COMMANDS[options.command](options) or OK
    except UserError as error:
        console.print_error("error", str(error))
        return BAD_INPUT
    except (RunStopped, KeyboardInterrupt) as end:
        line, exit_code = _ending(end, rerun)
        console.note(line)
        return exit_code
    except HarnessError as error:
        console.print_error("failed", one_line(error))
        return FAILED
    except BrokenPipeError:  # the reader of stdout, e.g. `head`, has ended
        console.discard_stdout()
        return FAILED
    except OSError as error:  # a folder without write permission, a full disk
        has_no_descriptor = error.errno in (errno.EMFILE, errno.ENFILE)
        if error.filename is None and not has_no_descriptor:
            raise
        where = "a limit of the system (ulimit -n)" if has_no_descriptor else error.filename
        console.print_error("error", f"{where}: {error.strerror}")
        return BAD_INPUT
    finally:
        interrupts.end()


def _ending(end: RunStopped | KeyboardInterrupt, rerun: str) -> tuple[str, int]:
    """The line that says what has ended the command and how to go on, and the exit code."""
    if isinstance(end, KeyboardInterrupt):
        return interrupts.line(end)
    return interrupts.stopped_line(None if end.step is None else f"{rerun} goes on from step {end.step}")


def _rerun(arguments: Sequence[str]) -> str:
    """The command line that goes on where this one ends."""
    return f"run.py {shlex.join(word for word in arguments if word != '--afresh')}"


def data(options: argparse.Namespace) -> None:
    """Write, pack or describe click logs."""
    from harness.cli.data_commands import DATA_COMMANDS

    DATA_COMMANDS[options.data_command](options)


def trace(options: argparse.Namespace) -> int:
    """Import, describe or generate failure traces."""
    from harness.cli.trace_commands import TRACE_COMMANDS

    return TRACE_COMMANDS[options.trace_command](options)


def plan(options: argparse.Namespace) -> None:
    """Show the save interval and the recovery that CPR's closed forms recommend."""
    from harness.cli.plan import plan as show_plan

    show_plan(options)


def reproduce(options: argparse.Namespace) -> int:
    """Run the experiments of claims, and say what they show."""
    from harness.cli.reproduce import reproduce as run_claims

    return run_claims(options)


def print_schema(options: argparse.Namespace) -> None:
    """Print the JSON schema of a configuration, or what one key takes, as text."""
    console.say(json.dumps(schema(), indent=2) if options.key is None else "\n".join(explained(options.key)))


COMMANDS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "train": run_commands.train,
    "grid": run_commands.grid,
    "replay": run_commands.replay,
    "show": record_commands.show,
    "compare": record_commands.compare,
    "table": record_commands.table,
    "report": record_commands.report,
    "verify": run_commands.verify,
    "data": data,
    "plan": plan,
    "reproduce": reproduce,
    "trace": trace,
    "schema": print_schema,
    **wandb_commands.WANDB_COMMANDS,
}
