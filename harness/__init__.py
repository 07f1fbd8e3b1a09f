"""A research harness for failures in recommendation-model training."""

import os

from harness import sources

# GNU OpenMP reads this variable when torch is loaded, which every process of a run does after this import. By default,
# threads that wait for each other spin for milliseconds. If other processes use the cores, a spinning thread uses up
# the time slice that the thread it waits for needs, and a step takes a hundred times as long. This number of turns
# lasts just from one matrix product to the next (docs/log/dense.md). A value that the user has set is kept.
if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
    os.environ["GOMP_SPINCOUNT"] = "5000"

# torch reads this when it is loaded, too. Without it, each peer of a killed rank logs warnings.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

sources.install()
