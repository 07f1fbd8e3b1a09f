"""Run folders as one frame, a row for each run. Their totals are derived again from their events."""

# ruff: noqa: F401 - the names that other rooms use

from analysis.load.contents import CONTENTS, Frame, content_notes, contents_agree
from analysis.load.frame import (
    COLUMNS,
    STATUSES,
    Cell,
    cells_of,
    damage_of,
    identity,
    load,
    lost_dense_samples,
    swept_keys,
)
