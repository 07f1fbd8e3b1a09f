"""Importing this module ends the process when its parent ends: the first module that a fork server preloads.

Without it a fork server notices the death of its parent only after all its imports, seconds later. The import also
makes the process skip torch's destructors at exit, which take seconds on a busy machine.
"""

import atexit
import gc
import os

from harness.processes.leash import (
    ENDS_WITH_PARENT_VARIABLE,
    end_quietly_without_orders,
    end_with_parent,
    hold_leash,
)

gc.set_threshold(50_000, 20, 20)  # as of run.py
if os.environ.get(ENDS_WITH_PARENT_VARIABLE):
    end_with_parent()  # also while it is stopped, when a leash would not
hold_leash(os.getppid())
end_quietly_without_orders()
atexit.register(os._exit, 0)  # after all handlers that are registered later; forked processes run no such handlers
