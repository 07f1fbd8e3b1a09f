"""Importing this module puts the process on a leash of its parent: the first thing that a fork server preloads.

Otherwise a fork server detects the death of its parent only after all its imports, seconds later.
"""

import os

from harness.cluster.leash import hold_leash

hold_leash(os.getppid())
