"""Run folders as one frame, a row for each run. Each record is audited: its totals must follow from its events."""

# ruff: noqa: F401 - the names that other rooms use

from analysis.load.contents import CONTENTS, Frame, content_notes
from analysis.load.evaluations import NUM_LAST
from analysis.load.frame import (
    COLUMNS,
    STATUSES,
    damage_of,
    identity,
    load,
    lost_dense_samples,
    plain,
    swept_keys,
)
