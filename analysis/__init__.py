"""From run directories to tables, statistics, figures and a report. Reads records, never logs."""

from analysis.cells import load
from analysis.compare import compare, compare_to
from analysis.fold import check
from analysis.report import report
from analysis.show import is_damaged, show
from analysis.table import table

__all__ = ["check", "compare", "compare_to", "is_damaged", "load", "report", "show", "table"]
