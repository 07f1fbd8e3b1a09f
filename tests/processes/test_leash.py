"""Leashes: who finds its owner gone ends, and ends a parent that may be stopped."""

import os
import signal

from harness.processes.leash import Leash
from harness.processes.pidfd import Pidfd
from tests.forked import forked


def test_who_finds_its_owner_gone_ends_with_a_stopped_parent_and_else_goes_on() -> None:
    """Law: also without the thread of its leash, which may come too late where the main thread ends first."""
    owner = forked(signal.pause)
    child = forked(lambda: Leash(Pidfd(owner), None).follow(0.01))
    assert os.waitpid(child, 0)[1] == 0, "a living owner that has closed a connection ends nobody"

    def have_a_child() -> None:
        parent = os.getpid()
        leash = Leash(Pidfd(owner), Pidfd(parent))  # before the owner is killed
        forked(lambda: leash.follow(None))
        os.kill(parent, signal.SIGSTOP)

    parent = forked(have_a_child)
    assert os.WIFSTOPPED(os.waitpid(parent, os.WUNTRACED)[1])
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    assert os.WTERMSIG(os.waitpid(parent, 0)[1]) == signal.SIGKILL
