"""Tables, statistics, figures and a report from run directories. Reads the runs' records; trains nothing."""

# ruff: noqa: F401 - the names for notebooks and the command line

from analysis.figures import curves
from analysis.load import load
from analysis.report import report, write_files
from analysis.stats import MEASURES, Verdict, blocks_of, measure_of, regimes_of, verdicts
from analysis.tables import (
    advice,
    compare,
    comparison_text,
    comparisons,
    damaged_cells,
    is_sound,
    show,
    show_comparison,
    show_table,
    table,
    table_text,
)
from harness.record.audit import check
