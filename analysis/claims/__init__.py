"""Claims of papers, of this project and of users: their rows and verdicts, and the page of them."""

# ruff: noqa: F401 - the names for the judges beside claims

from analysis.claims.expect import values_of
from analysis.claims.measures import MEASURES, Measure, matching
from analysis.claims.rows import (
    Row,
    Verdict,
    confirms_nothing,
    joined,
    measured,
    middle,
    shown,
    signed,
    up_to,
    within,
    worst,
)
