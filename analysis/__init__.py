"""Tables, statistics, figures and a report from run directories. Reads the runs' records; trains nothing."""

# ruff: noqa: F401 - the names for notebooks and the command line

from typing import Any

from analysis.figures import curves
from analysis.load import load
from analysis.report import report, write_files
from analysis.stats import DEFAULT_MARGIN, MEASURES, Verdict, blocks_of, regimes_of, verdicts
from analysis.tables import (
    FORMATS,
    advice,
    compare,
    compare_to,
    comparison_text,
    comparisons,
    comparisons_to,
    damaged_cells,
    is_sound,
    show,
    show_comparison,
    show_comparison_to,
    show_table,
    table,
    table_text,
)
from harness.record.audit import check


def __getattr__(name: str) -> Any:
    """``draw_trace`` or ``show_trace``, imported at its first use, since scipy.stats takes half a second to import."""
    if name == "draw_trace":
        from analysis.trace_figures import draw_trace as found  # noqa: PLC0415
    elif name == "show_trace":
        from analysis.trace_show import show_trace as found  # noqa: PLC0415
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
