"""Tables of strategies, of comparisons and of verdicts, and the timeline and results of one run."""

# ruff: noqa: F401 - the names that other rooms use

from analysis.tables.advice import advice, reading, verdict_tables
from analysis.tables.builder import (
    UNKNOWN,
    Fitted,
    Heading,
    counted,
    markdown_table,
    rich_table,
    show_interval,
)
from analysis.tables.columns import OPERATORS_NOTE, content, is_swept, operators_content
from analysis.tables.comparisons import compare, comparison_text, comparisons, show_comparison
from analysis.tables.notes import damaged_cells, footnotes, missing
from analysis.tables.story import is_sound, show
from analysis.tables.strategies import FORMATS, show_table, swept, table, table_text
