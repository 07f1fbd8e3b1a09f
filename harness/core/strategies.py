"""The table of strategies: when to save, what, and how to recover (docs/CPR.md).

A new strategy is one class, in ``core.whole_strategies`` or ``core.priority_strategies``, and one entry in
``STRATEGIES``; its ``Options`` are its keys under ``strategy:`` in a configuration.
"""

from functools import partial
from typing import Any, Literal

from pydantic import Field, create_model

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

DEFAULT = "full"
"""The strategy used if a configuration does not name one."""


BUILT_IN = tuple(STRATEGIES)
"""Names of the package's own strategies."""


class _Named(StrategyOptions):
    """Options that can be pickled, although their class has no import path."""

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(options_of, self.name, **self.model_dump()), ()


def _named(name: str, strategy: type[Strategy]) -> type[StrategyOptions]:
    """Create the options model of ``strategy``, whose field ``name`` allows only ``name``, its default."""
    title = name.title().replace("_", "")
    named: Any = (Literal[name], Field(name, description=StrategyOptions.model_fields["name"].description))
    # Every field has its description; a search for docstrings would walk all modules, half a second for all models.
    no_search = {"use_attribute_docstrings": False}
    bases: tuple[type[StrategyOptions], ...] = (_Named, strategy.Options)
    return create_model(
        f"{title}Options", __base__=bases, __doc__=strategy.__doc__, __cls_kwargs__=no_search, name=named
    )


OPTIONS: dict[str, type[StrategyOptions]] = {}
"""The model of the ``strategy`` group by the strategy's name."""


def name_options() -> None:
    """Complete the table ``OPTIONS`` after entries were added to ``STRATEGIES``."""
    for name, strategy in STRATEGIES.items():
        if name not in OPTIONS:
            OPTIONS[name] = _named(name, strategy)


name_options()


def options_of(name: str, /, **values: Any) -> StrategyOptions:
    """The options of strategy ``name``: ``values``, and defaults for the rest. Raises pydantic's ValidationError."""
    return OPTIONS[name].model_validate(values)


def make_strategy(options: StrategyOptions, costs: Costs) -> Strategy:
    """The strategy named in ``options``, for a run with these costs."""
    return STRATEGIES[options.name](options, costs)
