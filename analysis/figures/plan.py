"""Figure of the overhead against the save interval: full and partial recovery, their optima, and the decision."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from analysis.figures.look import colour, style
from harness.core.errors import ConfigError
from harness.core.plans import Costs
from harness.files import store_errors

if TYPE_CHECKING:
    from harness.planning.advisor import Advice, Spread

_SHOWN = ("full", "partial", "cpr_mfu")


def check_plan_figure(path: Path, costs: Costs) -> None:
    """Raises ConfigError if saves cost nothing, the suffix is not svg or png, or the folder of ``path`` is missing."""
    if path.suffix not in (".svg", ".png"):
        raise ConfigError(f"--figure: {path}: expected .svg or .png, got {path.suffix or 'no suffix'}")
    if not path.parent.is_dir():
        raise ConfigError(f"--figure: {path.parent}: no such folder")
    if not costs.o_save_h:
        raise ConfigError(
            "--figure: expected profile.o_save_h > 0, got 0; without a cost of saves there is no best interval"
        )


def write_plan_figure(path: Path, advice: "Advice", spreads: Sequence["Spread"] = ()) -> None:
    """Write the figure as SVG or PNG, by the suffix of ``path``. Call ``check_plan_figure`` first.

    ``spreads``: of these, the 5 to 95 % range of overhead over simulated traces is added for full, partial and cpr_mfu.
    Raises StoreError if the file cannot be written.
    """
    from harness.planning.advisor import full_buckets, part_buckets  # noqa: PLC0415 - torch, which tables do without

    costs = advice.costs
    hours = np.geomspace(advice.full.interval_h / 20, 20 * max(advice.partial.interval_h, advice.full.interval_h), 400)
    with style():
        from matplotlib.figure import Figure  # noqa: PLC0415 - takes half a second to import

        figure = Figure(figsize=(7.2, 4.4), layout="constrained")
        axes = figure.add_subplot()
        for option, buckets in ((advice.full, full_buckets), (advice.partial, part_buckets)):
            percent = [100 * buckets(costs, hour).total_h / costs.job_h for hour in hours]
            shade = colour("full" if option.name == "full" else "cpr_vanilla")
            axes.plot(hours, percent, color=shade, label=f"{option.name} recovery")
            best = 100 * option.overhead.total_h / costs.job_h
            is_chosen = option.name == advice.decision
            axes.plot(option.interval_h, best, "o", color=shade, markersize=9 if is_chosen else 6)
            axes.annotate(
                f"{option.interval_h:.3g} h, {best:.3g} %" + (", chosen" if is_chosen else ""),
                (option.interval_h, best),
                xytext=(10, -14 if option is advice.full else 8),  # off its curve
                textcoords="offset points",
            )
        for each in spreads:
            if each.name in _SHOWN and each.interval_h:
                low, high = 100 * each.overhead.low, 100 * each.overhead.high
                axes.vlines(each.interval_h, low, high, color=colour(each.name), linewidth=5, alpha=0.4)
        axes.set(xscale="log", yscale="log", xlabel="interval between saves (h)", ylabel="overhead (% of the job)")
        axes.legend(frameon=False)
        with store_errors(path, "written"):
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
