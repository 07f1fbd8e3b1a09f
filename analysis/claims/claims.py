"""All claims, each with its experiment and how finished cells are judged (docs/REPRODUCTION.md)."""

from analysis.claims.claim import Claim
from analysis.claims.of_caches import CACHES
from analysis.claims.of_cpr import CPR
from analysis.claims.of_own import OWN
from analysis.claims.of_settings import SETTINGS

GROUPS = {"CPR": CPR, "Settings of CPR": SETTINGS, "Caches": CACHES, "Past the papers": OWN}
"""Claims by name, under the heading of their part of the page."""

CLAIMS: dict[str, Claim] = {**CPR, **SETTINGS, **CACHES, **OWN}
"""By name, in the order of the page."""
