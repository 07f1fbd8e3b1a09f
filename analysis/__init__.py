"""From run directories to tables, statistics, figures and a report. Reads records, never logs."""

from analysis.cells import load
from analysis.compare import compare, compare_to
from analysis.fold import check
from analysis.report import report
from analysis.show import show
from analysis.table import table

__all__ = ["check", "compare", "compare_to", "load", "report", "show", "table"]
