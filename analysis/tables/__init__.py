"""Tables: of strategies, of comparisons, of verdicts, and the story of one run."""

# ruff: noqa: F401 - the names that other rooms use

from analysis.tables.advice import advice, advice_html
from analysis.tables.builder import UNKNOWN, Heading, Html, html_table, rich_table, show_interval
from analysis.tables.comparisons import comparisons, comparisons_to, damaged_cells, show_comparison, show_comparison_to
from analysis.tables.frames import FORMATS, compare, compare_to, comparison_text, table, table_text
from analysis.tables.story import is_sound, show
from analysis.tables.strategies import CAPTION, footnotes, missing, show_table, table_html
