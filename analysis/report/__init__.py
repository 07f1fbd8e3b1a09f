"""The report of a grid: one HTML page, and its figures and tables as files."""

# ruff: noqa: F401 - the names that other rooms use

from analysis.report.build import heading, report, slug, write_files
