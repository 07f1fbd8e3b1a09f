"""Figure of a sweep: loss and overhead of each strategy against the settings."""

from typing import TYPE_CHECKING, Any

from analysis.figures.axes import against
from analysis.figures.data import Data, frame_of, legend, loss_label, others
from analysis.figures.look import THEMES
from analysis.stats import BASELINE, numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SWEEP = "Loss and overhead by setting"
CAPTION = (
    "Above: mean loss to none; the bar is the 95 % confidence interval over seeds (Student's t), without a bar there "
    "is one seed; the dotted line is the loss that the verdicts accept; a triangle at the edge is a mean outside the "
    "scale. Below: emulated overhead. Points of one setting are moved apart sideways. A dashed line is a strategy "
    "whose runs are the same under all settings, as it lacks the option."
)


def sweep_figure(data: Data) -> "Figure":
    """The loss, above, and the overhead, below, of each strategy against the settings of ``data.blocks``, in order.

    The axis is that of the option's values if they are numbers, else the settings have equal distances. Call it in the
    context ``style()``.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - takes half a second to import

    blocks = data.blocks
    figure = Figure(figsize=(min(16.0, max(5.6, 0.4 * len(blocks))), 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    values = [[block.setting[key] for key in block.axes] for block in blocks]
    is_one = all(len(own) == 1 and isinstance(own[0], int | float) for own in values)
    names = [", ".join(block.values) for block in blocks]
    frame = frame_of(
        {"strategy": line.label, "setting": values[place][0] if is_one else names[place], "cells": (*line.cells.index,)}
        | numbers({"loss": line.loss, "overhead_frac": line.estimate("overhead_frac")})
        for place, block in enumerate(blocks)
        for line in others(block)
    )
    of_each = frame.groupby("strategy")["cells"].agg(["nunique", "size"])
    is_same = (of_each["nunique"] == 1) & (of_each["size"] > 1)
    is_one_axis = len(blocks[0].axes) == 1
    dashed = {*of_each.index[is_same]} if is_one_axis else ()
    look: dict[str, Any] = {"x": "setting", "dashed": dashed, "has_lines": is_one_axis}
    against(frame, y="loss", limits=data.loss_range, ax=above, **look)
    against(frame, y="overhead_frac", ax=below, **look)
    above.axhline(0, color=THEMES[BASELINE][0], linewidth=1)
    above.axhline(1e3 * data.limit(blocks[0]), color=THEMES["muted"][0], linewidth=1, linestyle=":", label="margin")
    above.set_xlabel("")
    above.set_ylabel(loss_label(blocks[0]))
    below.set_ylabel("emulated overhead,\n% of job time")
    below.set_ylim(bottom=0)
    below.set_xlabel(", ".join(blocks[0].axes))
    legend(above)
    return figure
