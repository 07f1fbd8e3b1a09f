"""Tables, statistics, figures and a report from run directories. Reads the event logs; runs nothing."""

from typing import TYPE_CHECKING, Any

from analysis.load import load
from analysis.report import report, write_files
from analysis.stats import DEFAULT_MARGIN, Verdict, blocks_of, regimes_of, verdicts
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

if TYPE_CHECKING:
    from analysis.trace_figures import draw_trace
    from analysis.trace_show import show_trace

__all__ = [
    "DEFAULT_MARGIN",
    "FORMATS",
    "Verdict",
    "advice",
    "blocks_of",
    "check",
    "compare",
    "compare_to",
    "comparison_text",
    "comparisons",
    "comparisons_to",
    "damaged_cells",
    "draw_trace",
    "is_sound",
    "load",
    "regimes_of",
    "report",
    "show",
    "show_comparison",
    "show_comparison_to",
    "show_table",
    "show_trace",
    "table",
    "table_text",
    "verdicts",
    "write_files",
]


def __getattr__(name: str) -> Any:
    """What is shown of a trace, imported when it is first used: scipy.stats takes half a second."""
    if name == "draw_trace":
        from analysis.trace_figures import draw_trace  # noqa: PLC0415

        return draw_trace
    if name == "show_trace":
        from analysis.trace_show import show_trace  # noqa: PLC0415

        return show_trace
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
