"""The report of a grid: one HTML page, and its figures and tables as files."""

# ruff: noqa: F401 - the names that other rooms use

from analysis.report.build import heading, page, report, slug, write_files
from analysis.tables import figure_html
