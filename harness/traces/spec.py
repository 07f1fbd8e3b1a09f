"""The parameters of generated traces, validated: the options of ``run.py trace generate``."""

import math
from dataclasses import dataclass, fields
from typing import Literal

from harness.config.profiles import MAX_PS
from harness.core.errors import TraceError
from harness.traces.laws import Law, law_of
from harness.traces.trace import MAX_HOURS

MAX_DEATHS = 1_000_000
"""The largest expected number of deaths of one trace; a larger one suggests a wrong unit."""

Sizes = tuple[tuple[int, float], ...]


@dataclass(frozen=True, kw_only=True)
class GeneratorSpec:
    """A job of ``ranks`` ranks watched for ``length_h`` hours, and the law of its failures.

    An **instant** is a moment at which one rank dies, or a group of them. Either one renewal process makes all instants
    and each hits a random rank (``per`` system), or each rank has its own process (``per`` rank). All hours are those
    of the source, until ``stretch_h`` scales the finished trace to so many hours, repair times in proportion.

    Raises:
        TraceError: invalid values, named by their option.
    """

    model: str = "exponential"
    """Law of the gaps: one of ``laws.MODELS``."""
    shape: float | None = None
    """Shape of gamma or Weibull, sigma of lognormal. The mean is the MTBF whatever the shape."""
    gaps_h: tuple[float, ...] = ()
    """Gaps that model ``empirical`` draws from, in hours; scaled to the MTBF."""
    like: str | None = None
    """The trace from which the model was learned."""
    ranks: int = 8
    length_h: float = 56.0
    mtbf_h: float | None = None
    """Mean hours between instants of a system of ``nodes`` nodes."""
    nodes: int | None = None
    """Nodes of the system with MTBF ``mtbf_h``: the job's is mtbf_h · nodes / ranks. None: ``mtbf_h`` is the job's."""
    node_mtbf_h: float | None = None
    """Instead of ``mtbf_h``: mean hours between deaths of one node, also of those in a group."""
    per: Literal["system", "rank"] = "system"
    start: Literal["equilibrium", "fresh"] = "equilibrium"
    """``equilibrium``: the process has long been running at hour 0, and the rate is 1 / MTBF throughout. ``fresh``: it
    starts at hour 0; a falling hazard then gives more early instants than that, a rising one fewer."""
    group_probability: float = 0.0
    """Probability that a group of ranks dies at an instant."""
    group_sizes: Sizes = ()
    """Sizes of groups: (ranks, weight) each; not scaled with the number of ranks."""
    rack_size: int | None = None
    """Groups stay within racks of so many consecutive ranks; None: any ranks."""
    early_factor: float = 1.0
    """The hazard is so many times higher before hour ``early_h``; the MTBF is that of the time after."""
    early_h: float = 0.0
    repair_median_h: float | None = None
    """Median and mean of lognormal repair times; None: the trace has none."""
    repair_mean_h: float | None = None
    repairs_h: tuple[float, ...] = ()
    """Repair times to draw from, instead of a lognormal."""
    stretch_h: float | None = None
    """Hours to which the trace is scaled from ``length_h``."""

    def __post_init__(self) -> None:
        for name in ("length_h", "mtbf_h", "node_mtbf_h", "stretch_h", "repair_median_h", "repair_mean_h"):
            value = getattr(self, name)
            _require(
                value is None or 0 < value <= MAX_HOURS,
                f"{_option(name)}: expected hours > 0 and <= {MAX_HOURS:g}, got {value}",
            )
        _require(1 <= self.ranks <= MAX_PS, f"--ranks: expected 1 to {MAX_PS}, got {self.ranks}")
        _require(
            (self.mtbf_h is None) != (self.node_mtbf_h is None),
            "--mtbf-h, --node-mtbf-h: expected exactly one of them, got both or none",
        )
        _require(self.nodes is None or self.nodes >= 1, f"--nodes: expected at least 1, got {self.nodes}")
        _require(
            self.nodes is None or self.mtbf_h is not None,
            "--nodes: expected --mtbf-h, the MTBF of a system of so many nodes, got none",
        )
        _require(self.per in ("system", "rank"), f"--per: expected system or rank, got {self.per!r}")
        _require(self.start in ("equilibrium", "fresh"), f"--start: expected equilibrium or fresh, got {self.start!r}")
        self._check_groups()
        _require(
            0 < self.early_factor < math.inf, f"--early-factor: expected a finite number > 0, got {self.early_factor}"
        )
        _require(0 <= self.early_h < math.inf, f"--early-h: expected hours >= 0, got {self.early_h}")
        self._check_repairs()
        _ = self.law
        num_deaths = self.expected_instants * self.ranks_per_instant
        _require(
            num_deaths <= MAX_DEATHS,
            f"--length-h: expected at most {MAX_DEATHS} deaths, got {num_deaths:.3g}; shorten it or raise the MTBF",
        )

    def _check_groups(self) -> None:
        probability, room = self.group_probability, self.rack_size or self.ranks
        _require(0 <= probability <= 1, f"--group-probability: expected 0 to 1, got {probability}")
        _require(
            bool(self.group_sizes) == (probability > 0),
            "--group-probability, --group-sizes: expected both or none, got one",
        )
        _require(
            self.rack_size is None or (self.rack_size >= 1 and self.ranks % self.rack_size == 0),
            f"--rack-size: expected a divisor of the {self.ranks} ranks, got {self.rack_size}",
        )
        for size, weight in self.group_sizes:
            _require(2 <= size <= room, f"--group-sizes: expected groups of 2 to {room} ranks, got {size}")
            _require(0 < weight < math.inf, f"--group-sizes: expected a finite weight > 0 of size {size}, got {weight}")

    def _check_repairs(self) -> None:
        median_h, mean_h = self.repair_median_h, self.repair_mean_h
        _require(
            (median_h is None) == (mean_h is None), "--repair-median-h, --repair-mean-h: expected both or none, got one"
        )
        if median_h is not None and mean_h is not None:
            _require(mean_h >= median_h, f"--repair-mean-h: expected at least the median ({median_h} h), got {mean_h}")
            _require(
                not self.repairs_h,
                "--repair-median-h: expected none, since repair times are drawn from the trace; leave it out",
            )
        _require(
            all(0 <= hours < math.inf for hours in self.repairs_h),
            "repair times: expected finite hours >= 0, got others; correct repair_h in the trace",
        )

    @property
    def law(self) -> Law:
        """The law of the gaps, with mean 1."""
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
        """The length, its early hours counted ``early_factor`` times: the time scale in which gaps follow the law."""
        return self.length_h + (self.early_factor - 1) * min(self.early_h, self.length_h)

    @property
    def expected_instants(self) -> float:
        """The expected number of instants: exact in equilibrium, the long-run rate of a fresh start."""
        return self.busy_h / self.instant_mtbf_h

    @property
    def has_repairs(self) -> bool:
        """Whether the trace has repair times."""
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
        parts.append(f"{_option(field.name)} {text}")
    return " ".join(parts)


def _number(value: float) -> str:
    """``value`` as the shortest text that reads back exactly."""
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
            raise TraceError(f"--group-sizes: expected SIZE:WEIGHT,… such as 2:3,4:1, got {text!r}") from None
    return tuple(sizes)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _require(is_right: bool, message: str) -> None:
    if not is_right:
        raise TraceError(message)
