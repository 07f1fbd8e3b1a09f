"""Figures of a grid, and their common style. Those of a user's own: front, against, over_hours, timeline."""

# ruff: noqa: F401 - the names that other rooms use

from analysis.figures.axes import against, front, over_hours, timeline
from analysis.figures.curves import curves
from analysis.figures.data import Data, frame_of, legend, look
from analysis.figures.kinds import KINDS, TRADEOFF, Kind, figures
from analysis.figures.look import FIGURE_FORMATS, colour, log_scale, style, theme, to_svg, write_figure
from analysis.figures.sweep import CAPTION, SWEEP, sweep_figure
