"""What a made-up trace is to be like: the parameters of ``run.py trace generate``, checked."""

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal

from harness.config.profiles import MAX_PS
from harness.core.errors import TraceError
from harness.traces.laws import Law, law_of
from harness.traces.trace import MAX_HOURS

MAX_DEATHS = 1_000_000
"""Deaths expected in one trace at most: beyond, a unit was mistaken."""

Sizes = tuple[tuple[int, float], ...]


@dataclass(frozen=True, kw_only=True)
class GeneratorSpec:
    """A job of ``ranks`` ranks watched for ``length_h`` hours, and the law by which its ranks die.

    An **instant** is a moment at which ranks die, one or, in a group, several. Either one renewal process makes all
    instants and each strikes a rank at random (``per`` system), or each rank has its own (``per`` rank). All hours are
    of the source, until ``stretch_h`` scales the finished trace to so many hours, repairs in proportion.

    Raises:
        TraceError: values that cannot be, each by the name of its option.
    """

    model: str = "exponential"
    """Law of the gaps: one of ``laws.MODELS``."""
    shape: float | None = None
    """Shape of gamma or Weibull, sigma of lognormal. The mean is the MTBF whatever the shape."""
    gaps_h: tuple[float, ...] = ()
    """Gaps that model empirical draws from, hours; scaled to the MTBF."""
    like: str | None = None
    """The trace that the model was taken from."""
    ranks: int = 8
    length_h: float = 56.0
    mtbf_h: float | None = None
    """Mean hours between instants of a system of ``nodes`` nodes."""
    nodes: int | None = None
    """Nodes of the system that ``mtbf_h`` was measured on: the job's MTBF is mtbf_h · nodes / ranks. None: mtbf_h is
    the job's own, each of its ranks stands for a share of the system."""
    node_mtbf_h: float | None = None
    """Instead of ``mtbf_h``: mean hours between deaths of one node, also of those in a group."""
    per: Literal["system", "rank"] = "system"
    start: Literal["equilibrium", "fresh"] = "equilibrium"
    """At hour 0 the process has been running for long, so that the rate is 1 / MTBF from the first hour on; or every
    clock starts at 0: with a falling hazard more instants early on than length / MTBF, with a rising one fewer."""
    group_probability: float = 0.0
    """Probability that an instant takes a group."""
    group_sizes: Sizes = ()
    """How many ranks die in a group: (size, weight) each. Sizes are not scaled with the number of ranks."""
    rack_size: int | None = None
    """Groups stay within racks of so many ranks, ps0 … in order; None: any ranks."""
    early_factor: float = 1.0
    """The hazard is so many times higher before ``early_h``; the MTBF is that of the time after."""
    early_h: float = 0.0
    repair_median_h: float | None = None
    """Median and mean of the hours down, which are lognormal; None: the trace does not say."""
    repair_mean_h: float | None = None
    repairs_h: tuple[float, ...] = ()
    """Instead: hours down to draw from."""
    stretch_h: float | None = None
    """Hours that ``length_h`` becomes in the trace."""

    def __post_init__(self) -> None:
        _require(1 <= self.ranks <= MAX_PS, f"--ranks: {self.ranks} is not between 1 and {MAX_PS}")
        _require_hours("--length-h", self.length_h)
        _require((self.mtbf_h is None) != (self.node_mtbf_h is None), "--mtbf-h or --node-mtbf-h: give one of them")
        _require_hours("--mtbf-h", self.mtbf_h)
        _require_hours("--node-mtbf-h", self.node_mtbf_h)
        _require_hours("--stretch-h", self.stretch_h)
        _require(self.nodes is None or self.nodes >= 1, f"--nodes: {self.nodes} is not at least 1")
        _require(
            self.nodes is None or self.mtbf_h is not None, "--nodes: says what --mtbf-h was measured on; not given"
        )
        _require(self.per in ("system", "rank"), f"--per: {self.per!r} is neither system nor rank")
        _require(self.start in ("equilibrium", "fresh"), f"--start: {self.start!r} is neither equilibrium nor fresh")
        self._check_groups()
        _require(0 < self.early_factor < math.inf, f"--early-factor: {self.early_factor} is not above 0")
        _require(0 <= self.early_h < math.inf, f"--early-h: {self.early_h} is not a number of hours from 0 on")
        self._check_repairs()
        _ = self.law
        _require(
            self.expected_instants * self.ranks_per_instant <= MAX_DEATHS,
            f"--length-h: {self.expected_instants * self.ranks_per_instant:.3g} deaths are to be expected, "
            f"{MAX_DEATHS} at most can be made: is the MTBF in hours?",
        )

    def _check_groups(self) -> None:
        probability, room = self.group_probability, self.rack_size or self.ranks
        _require(0 <= probability <= 1, f"--group-probability: {probability} is not between 0 and 1")
        _require(
            bool(self.group_sizes) == (probability > 0), "--group-probability, --group-sizes: one makes no sense alone"
        )
        _require(
            self.rack_size is None or (self.rack_size >= 1 and self.ranks % self.rack_size == 0),
            f"--rack-size: {self.ranks} ranks are no whole number of racks of {self.rack_size}",
        )
        for size, weight in self.group_sizes:
            _require(2 <= size <= room, f"--group-sizes: a group of {size}; there can be 2 to {room}")
            _require(0 < weight < math.inf, f"--group-sizes: weight {weight} of size {size} is not above 0")

    def _check_repairs(self) -> None:
        median_h, mean_h = self.repair_median_h, self.repair_mean_h
        _require_hours("--repair-median-h", median_h)
        _require_hours("--repair-mean-h", mean_h)
        _require((median_h is None) == (mean_h is None), "--repair-median-h, --repair-mean-h: both or none")
        if median_h is not None and mean_h is not None:
            _require(mean_h >= median_h, "--repair-mean-h: below the median; a lognormal's mean is above it")
            _require(not self.repairs_h, "--repair-median-h: the trace's own repair times are drawn from")
        _require(all(0 <= hours < math.inf for hours in self.repairs_h), "repair times are hours from 0 on")

    @cached_property
    def law(self) -> Law:
        """Of the gaps, with mean 1."""
        return law_of(self.model, self.shape, self.gaps_h)

    @property
    def ranks_per_instant(self) -> float:
        """Mean number of ranks that die at an instant, k."""
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
        """The trace's length, its early hours counted ``early_factor`` times: the clock by which clocks tick."""
        return self.length_h + (self.early_factor - 1) * min(self.early_h, self.length_h)

    @property
    def expected_instants(self) -> float:
        """Of a process in equilibrium, exactly; of a fresh one, in the long run."""
        return self.busy_h / self.instant_mtbf_h

    @property
    def has_repairs(self) -> bool:
        """Whether the trace says how long ranks were down."""
        return self.repair_median_h is not None or bool(self.repairs_h)


def options(spec: GeneratorSpec) -> str:
    """The options of ``run.py trace generate`` that make ``spec``, without the seed. Floats are exact."""
    parts: list[str] = []
    for field in fields(spec):
        value = getattr(spec, field.name)
        if field.name in ("gaps_h", "like", "repairs_h") or (value == field.default and field.name not in _ALWAYS):
            continue
        text = _number(value) if isinstance(value, float) else str(value)
        if field.name == "model" and value == "empirical":
            text = f"{value}:{spec.like}"
        elif field.name == "group_sizes":
            text = ",".join(f"{size}:{_number(weight)}" for size, weight in spec.group_sizes)
        parts.append(f"--{field.name.replace('_', '-')} {text}")
    return " ".join(parts)


def _number(value: float) -> str:
    """As short as it can be read back exactly."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


_ALWAYS = ("model", "ranks", "length_h", "per", "start")


def parse_sizes(text: str) -> Sizes:
    """``2:3,4:1``: groups of 2 and of 4, the former three times as often; ``4`` alone is ``4:1``.

    Raises:
        TraceError: anything else.
    """
    sizes: list[tuple[int, float]] = []
    for part in text.split(","):
        size, _, weight = part.partition(":")
        try:
            sizes.append((int(size), float(weight or "1")))
        except ValueError:
            raise TraceError(f"--group-sizes: {text!r}; expected SIZE:WEIGHT,… such as 2:3,4:1") from None
    return tuple(sizes)


def _require(is_right: bool, message: str) -> None:
    if not is_right:
        raise TraceError(message)


def _require_hours(option: str, value: float | None) -> None:
    right = f"a number of hours above 0, at most {MAX_HOURS:g}"
    _require(value is None or 0 < value <= MAX_HOURS, f"{option}: {value} is not {right}")
