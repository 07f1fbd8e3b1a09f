"""Importing this module puts the process on a leash of its parent: the first thing that a fork server preloads.

By itself a fork server notices that its parent has died only when it has imported everything else, seconds later.
"""

import os

from harness.cluster.leash import hold_leash

hold_leash(os.getppid())
