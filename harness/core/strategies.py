"""The table of strategies: when to save, what, and how to recover (docs/CPR.md).

A new strategy is one class, in ``core.whole_strategies`` or ``core.priority_strategies``, and one entry in
``STRATEGIES``; its ``Options`` are its keys under ``strategy:`` in a configuration.
"""

from typing import Any

from harness.core import choices
from harness.core.choices import CHOICES, enter
from harness.core.plans import Costs
from harness.core.priority_strategies import CprMass, CprMfu, CprMirror, CprRandom, CprScar, CprSsu
from harness.core.strategy import Strategy, StrategyOptions
from harness.core.whole_strategies import Buddy, CprVanilla, Differential, Full, NeverSave, Partial, Reference

STRATEGIES: dict[str, type[Strategy]] = {
    "none": Reference,
    "never_save": NeverSave,
    "full": Full,
    "partial": Partial,
    "cpr_vanilla": CprVanilla,
    "cpr_random": CprRandom,
    "cpr_mfu": CprMfu,
    "cpr_ssu": CprSsu,
    "cpr_mass": CprMass,
    "cpr_scar": CprScar,
    "cpr_mirror": CprMirror,
    "differential": Differential,
    "buddy": Buddy,
}

BUILT_IN = tuple(STRATEGIES)
"""Names of the package's own strategies."""


OPTIONS = CHOICES["strategy"]
"""The model of the ``strategy`` group by the strategy's name."""


def name_options() -> None:
    """Complete the table ``OPTIONS`` after entries were added to ``STRATEGIES``."""
    for name, strategy in STRATEGIES.items():
        if name not in OPTIONS:
            enter(name, strategy.Options, strategy.__doc__)


name_options()


def options_of(name: str, /, **values: Any) -> StrategyOptions:
    """The options of strategy ``name``: ``values``, and defaults for the rest. Raises pydantic's ValidationError."""
    options = choices.options_of("strategy", name, **values)
    assert isinstance(options, StrategyOptions)
    return options


def make_strategy(options: StrategyOptions, costs: Costs) -> Strategy:
    """The strategy named in ``options``, for a run with these costs."""
    return STRATEGIES[options.name](options, costs)
