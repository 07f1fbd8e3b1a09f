"""Draw docs/failures.png, from the runs of ``make demo``: who died when, and what that cost the AUC.

PYTHONPATH=. .venv/bin/python docs/failures.py
"""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import analysis
from analysis import figures
from harness.core.events import Dropped
from harness.record.event_log import read_events

RUNS = Path("demo/quickstart")
PICTURE = Path(__file__).with_suffix(".png")
SEED = 500
SHOWN = ("never_save", "cpr_vanilla", "cpr_mfu")
JOB_H = 56


def drops() -> pd.DataFrame:
    """A row for each failure and rank of each shown strategy: its hour, and the drop of AUC in 10⁻³."""
    cells = analysis.load(RUNS)
    is_shown = (cells["engine"] == "local") & (cells["seed"] == SEED) & cells["strategy"].isin(SHOWN)
    rows = []
    for cell in cells[is_shown].to_dict("records"):
        events = read_events(RUNS / cell["path"] / "events.jsonl")
        for event in events:
            if isinstance(event, Dropped) and event.drop is not None:
                hour = event.samples / events[-1].samples * JOB_H
                row = {"strategy": cell["strategy"], "hour": hour, "drop": 1e3 * event.drop}
                rows += [{**row, "rank": rank} for rank in event.ranks]
    return pd.DataFrame(rows)


def draw() -> None:
    """Draw ranks above, drops below, over the hours of the job."""
    frame = drops()
    with figures.style():
        figure, (upper, lower) = plt.subplots(
            2, sharex=True, figsize=(8, 3.8), height_ratios=(1, 2), layout="constrained"
        )
    figures.timeline(frame[frame["strategy"] == SHOWN[0]], ax=upper)
    upper.set(xlabel="", ylabel="killed")
    for number, strategy in enumerate(SHOWN):
        own = frame[frame["strategy"] == strategy]
        left = own["hour"] + 0.8 * (number - 1)
        lower.bar(left, own["drop"], 0.8, color=figures.colour(strategy), label=strategy)
    lower.set(xlabel="hour of the job", ylabel="AUC lost\nat the failure, 10⁻³")
    figure.legend(*lower.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(PICTURE, dpi=100)


if __name__ == "__main__":
    draw()
