"""Ctrl-Z with ranks on several hosts: the agents are told before the supervisor stops, so that they wait for it."""

import os
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType

from harness.hosts.agent_link import AgentLink


class CtrlZ:
    """Handler of SIGTSTP that suspends the leases of all agents, then stops this process; SIGCONT resumes the leases.

    A no-op outside of the main thread, and if the process ignores or handles the signal already. SIGSTOP cannot be
    handled: the agents treat a supervisor stopped by it as one that is cut off.

    Args:
        agents: returns the living agents.
    """

    def __init__(self, agents: Callable[[], Iterable[AgentLink]]) -> None:
        self._agents = agents
        self._asked = -1
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:
            return
        self._asked = os.eventfd(0, os.EFD_CLOEXEC)
        threading.Thread(target=self._serve, args=(self._asked,), name="ctrl-z", daemon=True).start()
        signal.signal(signal.SIGTSTP, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None, /) -> None:
        with suppress(OSError):
            os.eventfd_write(self._asked, 1)

    def _serve(self, asked: int) -> None:
        with suppress(OSError):
            while os.eventfd_read(asked) < _END:
                for agent in self._agents():
                    agent.suspend()
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # by this thread: it goes on after SIGCONT
                for agent in self._agents():
                    agent.go_on()
        os.close(asked)

    def close(self) -> None:
        """Restore the default action of SIGTSTP."""
        if self._asked >= 0:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.eventfd_write(self._asked, _END)
            self._asked = -1


_END = 1 << 32  # more than signals can have added
