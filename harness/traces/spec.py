"""Laws of the time between failures, and the parameters of generated traces: the words of ``run.py trace generate``.

A law has mean 1; a generator multiplies its gaps by the MTBF. A draw is the quantile of a uniform number ``u``, an
array of any shape with values in (0, 1). So the same number under another MTBF or shape gives the corresponding gap:
settings are compared on common random numbers.

The formulas use ``scipy.special`` and not the distributions of ``scipy.stats``, so that generated traces keep their
bits, and that drawing a trace does not import the latter.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from scipy import special

from harness.config.profiles import MAX_PS
from harness.config.words import Parameters, keys_of
from harness.core.errors import TraceError
from harness.traces.trace import MAX_HOURS

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Law:
    """The distribution of a gap X with E[X] = 1, given by two quantile functions of ``u``.

    ``gap``: the quantile function of X. ``met``: that of the gap in which a random moment falls; its density is
    x f(x), since longer gaps hold more moments.
    """

    gap: Callable[[F64], F64]
    met: Callable[[F64], F64]


def _exponential() -> Law:
    """The exponential law, which has no memory; the gap around a random moment is gamma with shape 2."""
    return Law(gap=lambda u: -np.log1p(-u), met=lambda u: special.gammaincinv(2.0, u))


def _gamma(shape: float) -> Law:
    """Gamma(k, 1 / k): the hazard falls for k < 1, rises for k > 1; x f(x) is a gamma of shape k + 1, same scale."""
    return Law(
        gap=lambda u: special.gammaincinv(shape, u) / shape, met=lambda u: special.gammaincinv(shape + 1, u) / shape
    )


def _weibull(shape: float) -> Law:
    """Weibull with shape c: the hazard falls for c < 1, rises for c > 1; ``met`` by (X / scale)^c ~ Gamma(1 + 1/c)."""
    scale = 1 / float(special.gamma(1 + 1 / shape))
    return Law(
        gap=lambda u: (-np.log1p(-u)) ** (1 / shape) * scale,
        met=lambda u: special.gammaincinv(1 + 1 / shape, u) ** (1 / shape) * scale,
    )


def _lognormal(sigma: float) -> Law:
    """Lognormal; sigma is the standard deviation of the logarithm. x f(x) has a median exp(sigma²) times as large."""
    return Law(
        gap=lambda u: np.exp(sigma * special.ndtri(u) - sigma**2 / 2),
        met=lambda u: np.exp(sigma * special.ndtri(u) + sigma**2 / 2),
    )


def _empirical(gaps: tuple[float, ...]) -> Law:
    """Observed gaps, equally likely, scaled to mean 1; ``met`` draws them in proportion to their length."""
    gaps_G = np.sort(np.array(gaps))
    gaps_G = gaps_G / gaps_G.mean()
    shares_G = np.cumsum(gaps_G)
    shares_G = shares_G / shares_G[-1]
    return Law(
        gap=lambda u: gaps_G[(u * len(gaps_G)).astype(np.int64)], met=lambda u: gaps_G[np.searchsorted(shares_G, u)]
    )


SHAPED: dict[str, tuple[Callable[[float], Law], float, float]] = {
    "gamma": (_gamma, 0.1, 1_000),
    "weibull": (_weibull, 0.2, 100),
    "lognormal": (_lognormal, 0.01, 4),
}
"""Laws with a shape, and the least and largest shape accepted: outside, gaps are all alike or lost in rounding."""

MODELS = ("exponential", *SHAPED, "empirical")


def law_of(model: str, shape: float | None, gaps_h: tuple[float, ...]) -> Law:
    """The law with this name and this shape or these gaps.

    Raises TraceError: an unknown model; a shape or gaps that are missing, superfluous or out of range.
    """
    if model not in MODELS:
        raise TraceError(f"model: {model!r} is none of {', '.join(MODELS)}, fit:TRACE.csv")
    if model not in SHAPED and shape is not None:
        raise TraceError(f"shape: {model} has no shape")
    if model == "empirical" and not gaps_h:
        raise TraceError("model=empirical: expected a trace to take the gaps from, empirical:TRACE.csv, got none")
    if model != "empirical" and gaps_h:
        raise TraceError(
            f"model={model}: expected no list of gaps between failures; only the model 'empirical' takes one"
        )
    if model == "exponential":
        return _exponential()
    if model == "empirical":
        if not (all(0 <= gap < np.inf for gap in gaps_h) and any(gaps_h)):
            raise TraceError("model=empirical: expected finite gaps of 0 h or more, at least one of them above 0")
        return _empirical(gaps_h)
    law, least, largest = SHAPED[model]
    if shape is None or not least <= shape <= largest:
        raise TraceError(f"shape: {model} takes a shape from {least} to {largest}, not {shape}")
    return law(shape)


# --- parameters -------------------------------------------------------------------------------------------------------

MAX_DEATHS = 1_000_000
"""The largest expected number of deaths of one trace; a larger one suggests a wrong unit."""


def _parsed(sizes: Any) -> Any:
    """The pairs in a text such as ``2:3,4:1``; a size without a weight has weight 1. Any other value is returned."""
    if not isinstance(sizes, str):
        return sizes
    return tuple((size, weight or 1) for size, _, weight in (part.partition(":") for part in sizes.split(",")))


Hours = Annotated[float, Field(gt=0, le=MAX_HOURS)]
Size = tuple[Annotated[int, Field(ge=2)], Annotated[float, Field(gt=0)]]
Sizes = tuple[Size, ...]
"""(ranks, weight) of each size of a group."""
_SIZES_IN_WORDS = WithJsonSchema({"type": "SIZE:WEIGHT,… such as 2:3,4:1"})


class GeneratorSpec(Parameters):
    """A job of ``ranks`` ranks watched for ``length_h`` hours, and the law of its failures.

    An **instant** is a moment at which one rank dies, or a group of ranks. Either one renewal process makes all
    instants, and each strikes a random rank (``per`` system), or each rank has its own process (``per`` rank). All
    hours are those before stretching: ``stretch_h`` scales the finished trace, repair times included, to this length.
    """

    no_words: ClassVar = ("gaps_h", "like", "repairs_h")

    model: str = "exponential"
    """Law of the gaps: exponential, gamma, weibull, lognormal; empirical:TRACE.csv, the gaps of a trace, drawn again;
        fit:TRACE.csv, the law that fits a trace best."""
    shape: float | None = None
    """Shape of gamma and weibull, sigma of lognormal. The mean is the MTBF whatever the shape."""
    gaps_h: tuple[float, ...] = ()
    """Gaps that model ``empirical`` draws from, in hours; scaled to the MTBF."""
    like: str | None = None
    """The trace from which the model was learned."""
    ranks: Annotated[int, Field(ge=1, le=MAX_PS)] = 8
    """Ranks of the job."""
    length_h: Hours = 56.0
    """Hours of the trace."""
    mtbf_h: Hours | None = None
    """Mean hours between instants of failure of a system of `nodes` nodes."""
    nodes: Annotated[int, Field(ge=1)] | None = None
    """Nodes of the system with that MTBF; the MTBF of the job is mtbf_h * nodes / ranks. Without it, mtbf_h is the
        job's."""
    node_mtbf_h: Hours | None = None
    """Instead of mtbf_h: mean hours between deaths of one node, also of those in a group."""
    per: Literal["system", "rank"] = "system"
    """Whose gaps follow the law. `system`: those between the instants of all ranks; `rank`: those of each rank."""
    start: Literal["equilibrium", "fresh"] = "equilibrium"
    """`equilibrium`: the process has long been running at hour 0, and the rate is 1 / MTBF throughout. `fresh`: it
        starts at hour 0; a falling hazard then gives more early instants than that, a rising one fewer."""
    group_probability: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Probability that a group of ranks dies at an instant."""
    group_sizes: Annotated[Sizes, BeforeValidator(_parsed), _SIZES_IN_WORDS] = ()
    """Numbers of ranks in a group and how often: 2:3,4:1 are groups of 2, three times as often as of 4. Not scaled with
        the number of ranks."""
    rack_size: Annotated[int, Field(ge=1)] | None = None
    """Groups stay within racks of so many consecutive ranks; without it, any ranks."""
    early_factor: Annotated[float, Field(gt=0)] = 1.0
    """The hazard is so many times as high before hour early_h; the MTBF is that of the time after."""
    early_h: Annotated[float, Field(ge=0)] = 0.0
    """Hours from the beginning for which early_factor holds."""
    repair_median_h: Hours | None = None
    """Median of lognormal repair times in hours; without it, the trace has none."""
    repair_mean_h: Hours | None = None
    """Mean of the lognormal repair times in hours."""
    repairs_h: tuple[Annotated[float, Field(ge=0)], ...] = ()
    """Repair times to draw from, instead of a lognormal."""
    stretch_h: Hours | None = None
    """Hours to which the trace is scaled from length_h, repair times in proportion."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        def rule(holds: bool, message: str) -> None:
            if not holds:
                raise TraceError(message)

        _ = self.law
        one, both = "expected exactly one of them, got both or none", "expected both or none, got one"
        rule((self.mtbf_h is None) != (self.node_mtbf_h is None), f"mtbf_h, node_mtbf_h: {one}")
        rule(
            self.nodes is None or self.mtbf_h is not None,
            "nodes: expected mtbf_h, the MTBF of a system of so many nodes, got none",
        )
        rule(bool(self.group_sizes) == (self.group_probability > 0), f"group_probability, group_sizes: {both}")
        rule(
            self.rack_size is None or self.ranks % self.rack_size == 0,
            f"rack_size: expected a divisor of the {self.ranks} ranks, got {self.rack_size}",
        )
        room, largest = self.rack_size or self.ranks, max((size for size, _ in self.group_sizes), default=0)
        rule(largest <= room, f"group_sizes: expected groups of 2 to {room} ranks, got {largest}")
        median_h, mean_h = self.repair_median_h, self.repair_mean_h
        rule((median_h is None) == (mean_h is None), f"repair_median_h, repair_mean_h: {both}")
        rule(
            (mean_h or 0) >= (median_h or 0),
            f"repair_mean_h: expected at least the median ({median_h} h), got {mean_h}",
        )
        rule(
            median_h is None or not self.repairs_h,
            "repair_median_h: expected none, since repair times are drawn from the trace; leave it out",
        )
        num_deaths = self.expected_instants * self.ranks_per_instant
        rule(
            num_deaths <= MAX_DEATHS,
            f"length_h: expected at most {MAX_DEATHS} deaths, got {num_deaths:.3g}; shorten it or raise the MTBF",
        )
        return self

    @property
    def law(self) -> Law:
        return law_of(self.model, self.shape, self.gaps_h)

    @property
    def ranks_per_instant(self) -> float:
        """The mean number of ranks that die at an instant, k."""
        if not self.group_sizes:
            return 1.0
        mean = sum(size * weight for size, weight in self.group_sizes) / sum(weight for _, weight in self.group_sizes)
        return 1 + self.group_probability * (mean - 1)

    @property
    def instant_mtbf_h(self) -> float:
        """Mean hours between instants of the job, after its early hours. Scales as 1 / ranks."""
        if self.mtbf_h is not None:
            return self.mtbf_h * (self.nodes or self.ranks) / self.ranks
        assert self.node_mtbf_h is not None, "one of them is given"
        return self.node_mtbf_h * self.ranks_per_instant / self.ranks

    @property
    def busy_h(self) -> float:
        """The trace's length if early hours count ``early_factor`` times; gaps follow the law on this time scale."""
        return self.length_h + (self.early_factor - 1) * min(self.early_h, self.length_h)

    @property
    def expected_instants(self) -> float:
        """The expected number of instants; for ``fresh`` that of the long run, exact for exponential gaps only."""
        return self.busy_h / self.instant_mtbf_h

    @property
    def words(self) -> str:
        """The words of ``run.py trace generate`` that give these parameters, without the seed; floats are exact."""
        return shlex.join(
            f"{key}={self._text(name)}"
            for key, name in keys_of(GeneratorSpec).items()
            if name in _ALWAYS or getattr(self, name) != GeneratorSpec.model_fields[name].default
        )

    def _text(self, name: str) -> str:
        value = getattr(self, name)
        if name == "model" and value == "empirical":
            return f"{value}:{self.like}"
        if name == "group_sizes":
            return ",".join(f"{size}:{_number(weight)}" for size, weight in self.group_sizes)
        return _number(value) if isinstance(value, float) else str(value)


_ALWAYS = ("model", "ranks", "length_h", "per", "start")


def _number(value: float) -> str:
    """``value`` as the shortest text that reads back exactly."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)
