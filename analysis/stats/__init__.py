"""Statistics of the finished runs of a frame: blocks of one setting, paired differences, verdicts."""

# ruff: noqa: F401 - the names that other rooms use

from analysis.stats.blocks import (
    STRATEGIES,
    Block,
    Line,
    blocks_of,
    regimes_of,
    sample_equivalent,
    setting_text,
    strategy_order,
)
from analysis.stats.estimates import (
    BASELINE,
    DRAWN,
    SETTING,
    Components,
    Estimate,
    components,
    conditions,
    draws,
    estimate,
    estimate_pairs,
    own_options,
    relevant_to_none,
    setting_keys,
)
from analysis.stats.inference import (
    ALPHA,
    POWER,
    claims_of,
    holm,
    more_seeds,
    p_above,
    p_below,
    pairs_for_power,
    pairs_for_width,
)
from analysis.stats.measure import AUC, DEFAULT_MARGIN, MEASURES, Measure
from analysis.stats.partners import (
    REPLICATE_KEYS,
    Rounding,
    cells_text,
    paired,
    replicates,
    rounding_of,
    rounding_text,
    seeds_text,
    without_replicates,
)
from analysis.stats.skew import interquartile_mean, is_skewed
from analysis.stats.verdict import Verdict, in_thousandths, verdicts
