"""A research harness for failures in recommendation-model training."""

import os

# GNU OpenMP reads this when torch is loaded, and whatever loads torch for a run has passed here first, ranks included:
# they are forked from a process that has. By default threads that wait for each other spin for milliseconds. Where
# other processes take the cores, a thread spins away the very time slice that the one it waits for needs, and a step
# takes a hundred times as long. So many turns bridge what lies between two products and no more
# (docs/log/dense.md). What the user set stands.
if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
    os.environ["GOMP_SPINCOUNT"] = "5000"

# Read when torch is loaded, too: a rank that is killed makes every peer complain.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
