"""A child process that runs another program: its start, its input and output, and its end within a deadline.

Ranks are no such children: they are forked (``harness/processes/forked.py``).
"""

import errno
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO, Any

from harness.processes.pidfd import Pidfd

ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds the package ``harness``."""


def search_path() -> str:
    """A value of ``PYTHONPATH``, the present one included, with which a program finds ``harness`` from any folder."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


_BECOME = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
for number in (signal.SIGINT, signal.SIGPIPE):
    signal.signal(number, signal.SIG_DFL)
for number in sys.argv[2].split():
    signal.signal(int(number), signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""A program that becomes the command in its arguments. No code of ours runs between fork and exec: threads may live."""


class Child:
    """A running command in a session of its own, where a Ctrl-C at the terminal does not reach it.

    The kernel kills it when the thread that made this object ends. No signal is blocked in it. Without a log its
    standard input is a pipe (:meth:`send`), as is its standard output (:meth:`answer` or :meth:`lines`). :meth:`wait`
    and :meth:`end` may be called from a signal handler or another thread, where ``Popen.wait`` could deadlock.

    Args:
        command: the program and its arguments.
        folder: its working folder; by default this process's.
        log: a file to which its standard output and standard error are appended. Its input is then empty.
        errors: a constant of ``subprocess``: where its standard error goes if there is no log. By default into its
            output.
        ignored: the signals that it ignores.
        environment: all its environment variables; by default this process's.

    Raises:
        OSError: there is no such program, or it could not be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: str | None = None,
        log: Path | None = None,
        errors: int = subprocess.STDOUT,
        ignored: Iterable[signal.Signals] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if shutil.which(command[0]) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
        become = [sys.executable, "-ISc", _BECOME, str(os.getpid()), " ".join(str(int(number)) for number in ignored)]
        with nullcontext() if log is None else log.open("ab") as file:
            self._process = subprocess.Popen(
                [*become, *command],
                bufsize=0,  # a line that has arrived is not hidden in a buffer
                cwd=folder,
                stdin=subprocess.PIPE if file is None else subprocess.DEVNULL,
                stdout=file or subprocess.PIPE,
                stderr=file or errors,
                start_new_session=True,
                env=environment,
            )
        self.pid = self._process.pid
        try:
            self._handle = Pidfd(self.pid)
        except OSError:  # no descriptor is left
            with self._process:  # closes its pipes and waits for it
                self._process.kill()
            raise
        self._code: int | None = None

    def send(self, *values: Any) -> None:
        """Write JSON values to its input, a line each; a no-op if the input is closed."""
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # a pipe that is broken, or closed
            self._process.stdin.write(b"".join(json.dumps(value).encode() + b"\n" for value in values))

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def answer(self, within_s: float | None = None) -> Any:
        """The JSON value in its next line of output; None at the end of the output.

        Raises TimeoutError if nothing comes within ``within_s`` (None: no limit), ValueError if the line is no JSON.
        """
        assert self._process.stdout is not None
        if not select.select([self], [], [], within_s)[0]:
            raise TimeoutError(f"no answer within {within_s:g} s")
        line = self._process.stdout.readline()
        return json.loads(line) if line else None

    def lines(self) -> IO[str]:
        """A text stream of its output, for any thread. The caller closes the stream."""
        return os.fdopen(os.dup(self.fileno()), errors="replace")

    def wait(self, within_s: float | None = None) -> int | None:
        """The exit code, or minus the number of the signal that ended it; None if it runs longer than ``within_s``."""
        if self._code is None and self._handle.has_ended(within_s):
            code = self._handle.exit_code
            self._code = self._code if code is None else code  # None: :meth:`end`, which keeps it first, has reaped it
        return self._code

    def signal(self, number: signal.Signals) -> None:
        self._handle.send(number)

    def end(self, within_s: float = 0.0) -> int:
        """Wait for its end; after ``within_s`` kill it and its own children. Returns the exit code as :meth:`wait`."""
        if self.wait(within_s) is None:
            pids: list[int] = []
            for file in [*Path(f"/proc/{self.pid}/task").glob("*/children")]:
                with suppress(OSError):  # the thread has ended meanwhile
                    pids += map(int, file.read_text().split())
            self.signal(signal.SIGKILL)
            for pid in pids:
                with suppress(OSError):  # so has the child, or it is another user's
                    os.kill(pid, signal.SIGKILL)
        code = self.wait()
        assert code is not None
        self._process.poll()  # reaps it, and waits for no lock
        return code

    def close(self, within_s: float = 0.0) -> int:
        """Close its input, wait for its end, kill it after ``within_s``, close its output; returns the exit code."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        code = self.end(within_s)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code


def output_of(command: Sequence[str], within_s: float) -> str | None:
    """The standard output of a command; None if it fails, is missing or takes longer than ``within_s``."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=within_s, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
