"""Tables, statistics, figures and a report from run directories. Reads the event logs; runs nothing."""

from analysis.advice import DEFAULT_MARGIN, Verdict, advice, verdicts
from analysis.audit import check
from analysis.blocks import blocks_of, regimes_of
from analysis.cells import load
from analysis.compare import compare, compare_to
from analysis.report import report
from analysis.show import is_damaged, show
from analysis.table import table
from analysis.trace_figures import draw_trace
from analysis.trace_show import show_trace

__all__ = [
    "DEFAULT_MARGIN",
    "Verdict",
    "advice",
    "blocks_of",
    "check",
    "compare",
    "compare_to",
    "draw_trace",
    "is_damaged",
    "load",
    "regimes_of",
    "report",
    "show",
    "show_trace",
    "table",
    "verdicts",
]
