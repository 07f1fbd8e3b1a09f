"""Statistics of the finished runs of a frame: blocks of one setting, paired differences, verdicts."""

# ruff: noqa: F401 - the names that other rooms use

from analysis.stats.blocks import (
    Block,
    Line,
    Verdict,
    blocks_of,
    dominates,
    equal_runs,
    in_thousandths,
    measures_of,
    natural,
    regimes_of,
    sample_equivalent,
    setting_text,
    strategy_order,
    verdicts,
    verdicts_of,
)
from analysis.stats.estimates import (
    AUC,
    BASELINE,
    DEFAULT_MARGIN,
    DRAWN,
    DROP,
    MEASURES,
    MOVEMENT,
    SETTING,
    Components,
    Estimate,
    Measure,
    conditions,
    draws,
    estimate,
    estimate_pairs,
    measure_of,
    numbers,
    own_options,
    relevant_to_none,
    setting_keys,
)
from analysis.stats.inference import ALPHA, POWER, is_skewed
from analysis.stats.partners import cells_text, paired, rounding_text, seeds_text
