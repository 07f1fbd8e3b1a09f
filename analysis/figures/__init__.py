"""Figures of a grid, and their common style."""

# ruff: noqa: F401 - the names that other rooms use

from analysis.figures.kinds import (
    KINDS,
    MAX_POINTS,
    TRADEOFF,
    Curve,
    Data,
    Kind,
    curve,
    figures,
    legend,
    losses_of,
    mean_curve,
)
from analysis.figures.look import (
    FIGURE_FORMATS,
    INK,
    PAPER,
    THEMES,
    colour,
    log_scale,
    style,
    theme,
    to_svg,
    whole_ticks,
    write_figure,
)
from analysis.figures.plan import check_plan_figure, write_plan_figure
