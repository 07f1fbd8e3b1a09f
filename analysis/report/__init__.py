"""The report of a grid: one HTML page, and its figures and tables as files."""

# ruff: noqa: F401 - the names that other rooms use

from analysis.report.build import report
from analysis.report.files import write_files
from analysis.report.page import figure_html, notes, page
from analysis.report.sections import contents, heading, slug
