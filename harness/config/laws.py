"""Laws of failures: the group ``trace.law`` of a configuration, and published ones by name.

No published law contains a record of a log. Every figure is marked with its certainty: [read] in the source, [log]
computed from the log published with it, [2nd] read in a secondary source, [recalled] from memory, [derived] from other
figures, [ours] a choice.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from harness.config.bases import Named
from harness.config.words import STRICT, PathText

Hours = Annotated[float, Field(gt=0, le=1e9)]
Sizes = tuple[tuple[Annotated[int, Field(ge=2)], Annotated[float, Field(gt=0)]], ...]
"""(ranks, weight) of each size of a group."""

SHAPES: Mapping[str, tuple[float, float]] = {"gamma": (0.1, 1_000), "weibull": (0.2, 100), "lognormal": (0.01, 4)}
"""The least and largest shape of models that have one: outside, gaps are all alike or lost in rounding."""
LEARNED = ("empirical", "fit")
"""Models that are learned from a trace."""
GIVEN = ("fixed", "at")
"""Models with a given number of failures, and not with gaps between them."""


class Law(BaseModel):
    """A law of failures. A trace of it is as long as its job, of the job's ranks, and drawn by ``trace.seed``.

    An **instant** is a moment at which one rank dies, or a group of ranks. Either one renewal process makes all
    instants, and each strikes a random rank (``per`` system), or each rank has its own process (``per`` rank).
    """

    model_config = STRICT

    name: Annotated[str, Field(min_length=1)] = "law"
    """Name of the law in tables; without it, `base`, and what differs."""
    model: Literal["exponential", "gamma", "weibull", "lognormal", "empirical", "fit", "fixed", "at"] = "exponential"
    """`exponential`, `gamma`, `weibull`, `lognormal`: law of the gaps between instants. `empirical`: the gaps and
    repair times of a `trace` are drawn again. `fit`: the law that fits a `trace` best. `fixed`: a `number` of failures
    at random hours. `at`: failures at given `hours`."""
    shape: float | None = None
    """Shape of gamma and weibull, sigma of lognormal. The mean is the MTBF whatever the shape."""
    trace: PathText | None = None
    """The trace that `empirical` and `fit` learn from. Learned are the gaps, and where the keys are null, the MTBF, the
    groups and the repair times."""
    number: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """`fixed`: number of failures."""
    within_h: Hours | None = None
    """`fixed`: they come in the first hours of the job, so many; null: in all of it. Another value changes no rank."""
    hours: tuple[Annotated[float, Field(ge=0)], ...] = ()
    """`at`: ascending hours of the failures. The ranks do not depend on them."""
    mtbf_h: Hours | None = None
    """Mean hours between instants of a system of `nodes` nodes; null: the profile's MTBF, of the job."""
    nodes: Annotated[int, Field(ge=1)] | None = None
    """Nodes of the system with that MTBF; the MTBF of the job is mtbf_h * nodes / ranks. null: mtbf_h is the job's."""
    node_mtbf_h: Hours | None = None
    """Instead of mtbf_h: mean hours between deaths of one node, also of those in a group."""
    per: Literal["system", "rank"] = "system"
    """Whose gaps follow the law. `system`: those between the instants of all ranks; `rank`: those of each rank."""
    start: Literal["equilibrium", "fresh"] = "equilibrium"
    """`equilibrium`: the process has long been running at hour 0, and the rate is 1 / MTBF throughout. `fresh`: it
    starts at hour 0; a falling hazard then gives more early instants than that, a rising one fewer."""
    group_probability: Annotated[float, Field(ge=0, le=1)] | None = None
    """Probability that a group of ranks dies at an instant; null: as many ranks as the profile loses per failure."""
    group_sizes: Sizes = ()
    """[ranks, weight] of each size of a group: [[2, 3], [4, 1]] are groups of 2, three times as often as of 4. Not
    scaled with the number of ranks; a group that is too large is all ranks, or the whole rack."""
    rack_size: Annotated[int, Field(ge=1)] | None = None
    """Groups stay within racks of so many consecutive ranks; null: any ranks."""
    lemon_frac: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Fraction of the ranks that are lemons: they fail more often than the others. `trace.seed` draws which. Rounded,
    at least one rank; null: all ranks fail equally often."""
    lemon_failures_frac: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Fraction of the failures that strike a lemon first, all lemons equally often, with `per: system`. Changes neither
    the number of failures nor their hours."""
    early_factor: Annotated[float, Field(gt=0)] = 1.0
    """The hazard is so many times as high before hour early_h; the MTBF is that of the time after."""
    early_h: Annotated[float, Field(ge=0)] = 0.0
    """Hours from the beginning for which early_factor holds."""
    repair_median_h: Hours | None = None
    """Median of lognormal repair times in hours; null: the trace has none."""
    repair_mean_h: Hours | None = None
    """Mean of the lognormal repair times in hours."""
    length_h: Hours | None = None
    """Hours that the law describes; the trace is scaled to the job, repair times in proportion. null: the job's."""
    notice_s: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    """Seconds before each failure at which its ranks are told of it. Spot instances: 120 on AWS, 30 on GCP, Azure."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if mistake := next(self._mistakes(), None):
            raise ValueError(mistake)
        return self

    def _mistakes(self) -> Iterator[str]:
        for key, models in _USED_BY.items():
            is_given = getattr(self, key) != Law.model_fields[key].default
            if is_given and self.model not in models:
                have = "has" if len(models) == 1 else "have"
                yield f"{key}: not a key of model {self.model}; {', '.join(models)} {have} it"
            elif key in _NEEDED and not is_given and self.model in models:
                yield f"{key}: expected a value with model {self.model}, got none"
        low, high = SHAPES.get(self.model, (0, 0))
        if self.shape is not None and not low <= self.shape <= high:
            yield f"shape: expected {low:g} to {high:g} with model {self.model}, got {self.shape:g}"
        if list(self.hours) != sorted(set(self.hours)):
            yield f"hours: expected ascending hours, got {', '.join(f'{hour:g}' for hour in self.hours)}"
        if self.mtbf_h is not None and self.node_mtbf_h is not None:
            yield "node_mtbf_h: expected none with mtbf_h, got both"
        if self.nodes is not None and self.mtbf_h is None:
            yield "nodes: expected mtbf_h, the MTBF of a system of so many nodes, got none"
        if bool(self.group_sizes) != bool(self.group_probability):
            yield "group_sizes: expected them with a group_probability above 0, and only then"
        if (self.lemon_frac is None) != (self.lemon_failures_frac is None):
            yield "lemon_failures_frac: expected it and lemon_frac, got one of them"
        if self.lemon_frac is not None and self.per == "rank":
            yield "lemon_frac: expected none with per rank, where all ranks have processes of one MTBF"
        if (self.repair_median_h is None) != (self.repair_mean_h is None):
            yield "repair_mean_h: expected it and repair_median_h, got one of them"
        elif (self.repair_mean_h or 0) < (self.repair_median_h or 0):
            yield f"repair_mean_h: expected at least the median ({self.repair_median_h} h), got {self.repair_mean_h}"


_USED_BY: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys([*Law.model_fields][2:], ("exponential", *SHAPES, *LEARNED)),  # all but name and model
    "notice_s": ("exponential", *SHAPES, *LEARNED, *GIVEN),
    "shape": tuple(SHAPES),
    "trace": LEARNED,
    **dict.fromkeys(("lemon_frac", "lemon_failures_frac"), ("exponential", *SHAPES, *LEARNED, *GIVEN)),
    **dict.fromkeys(("number", "within_h"), ("fixed",)),
    "hours": ("at",),
}
"""The models that use a key, by key."""
_NEEDED = ("shape", "trace", "number", "hours")  # by the models that use them
_OF_MTBF = ("mtbf_h", "nodes", "node_mtbf_h")


def _merged(base: str, changed: dict[str, Any]) -> dict[str, Any]:
    """All keys of a law: those of law ``base`` that the model of failures uses, replaced by ``changed``."""
    values = LAWS[base].model_dump()
    if changed.get("model", values["model"]) != values["model"]:
        values = {key: value for key, value in values.items() if changed["model"] in _USED_BY.get(key, ())}
        values.pop("shape", None)  # of another model
    if changed.keys() & {*_OF_MTBF}:
        values = {key: value for key, value in values.items() if key not in _OF_MTBF}
    if not changed.get("group_probability", True):
        values.pop("group_sizes", None)
    return {**values, "name": _name(base, changed), **changed}


def _name(base: str, changed: Mapping[str, Any]) -> str:
    """``base``, the model, and the other keys in short: ``fixed5``, ``weibull_shape0.7``, ``llama3_mtbf5``."""
    given = {key: value for key, value in changed.items() if value != getattr(LAWS[base], key, None)}
    words = [base] if base != _DEFAULT or "model" not in given else []
    for key in filter(given.__contains__, Law.model_fields):
        text = _text(given[key])
        if key in ("number", "hours"):
            words[-1:] = ["".join([*words[-1:], text])]
        else:
            label = f"{key.removesuffix('_h')}{'_' * isinstance(given[key], str)}"
            words.append({"model": text, "trace": Path(text).stem}.get(key, f"{label}{text}"))
    return "_".join(words)


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return "_".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


@dataclass(frozen=True, kw_only=True)
class Published:
    """A law of failures with the source of every number."""

    title: str
    law: Law
    source: str
    figures: tuple[str, ...]
    """A sentence for each figure that was taken, derived or chosen."""


PUBLISHED: Mapping[str, Published] = {
    "cpr56": Published(
        title="CPR's emulation: two failures of one rank in 56 h",
        law=Law(mtbf_h=28.0, group_probability=0.0),
        source="Maeng et al., CPR, MLSys 2021, arXiv 2011.02999",
        figures=(
            "56 h, 8 PS ranks, 2 failures [recalled], so an MTBF of 28 h [derived]; 14 to 30 h in production [2nd]",
            "exponential gaps [ours]: the gamma law of production, early failures and then a flat hazard [recalled]",
            "has parameters that are not known here, so none are made up [ours]",
        ),
    ),
    "poster50": Published(
        title="CPR's test at production scale: five failures of 4 of 18 ranks in 50 h",
        law=Law(mtbf_h=10.0, group_probability=1.0, group_sizes=((4, 1.0),)),
        source="Maeng et al., CPR, MLSys 2021, arXiv 2011.02999 and its poster",
        figures=(
            "50 h, 18 embedding PS, 5 failures, each of 4 randomly chosen PS [read], so an MTBF of 10 h [derived]",
            "exponential gaps [ours]",
        ),
    ),
    "llama3": Published(
        title="pre-training of Llama 3 405B: a failure every three hours",
        law=Law(mtbf_h=round(54 * 24 / 419, 2), group_probability=0.0),
        source="The Llama 3 Herd of Models, arXiv 2407.21783",
        figures=(
            "16,384 GPUs, 54 days, 466 interruptions, 419 of them unexpected [2nd]: one in 3.09 h [derived]",
            "exponential gaps, one rank each [ours]: no law was published",
            "each of 8 ranks stands for 2,048 GPUs; hours are not scaled [ours]",
        ),
    ),
    "infinitehbd": Published(
        title="an LLM cluster of 400 servers: bursts of failures",
        law=Law(model="weibull", shape=0.63, mtbf_h=14.2, group_probability=0.0),
        source="InfiniteHBD, arXiv 2502.03885, and its fault log (Apache-2.0)",
        figures=(
            "400 servers, 348 days, gaps of 14.2 h on average with a median of 5.6 h [log]",
            "the Weibull law with this mean and median has shape 0.63 [derived]; one rank each [ours]",
            "each of 8 ranks stands for 50 servers; hours are not scaled [ours]",
            "servers' repairs (median 20.4 h, mean 133 h [log]) are left out: no job waits that long [ours]",
        ),
    ),
    "lanl20": Published(
        title="LANL system 20: a job that waits for the repair",
        law=Law(
            model="weibull",
            shape=0.75,
            mtbf_h=13.2,
            group_probability=0.0,
            repair_median_h=1.25,
            repair_mean_h=3.5,
        ),
        source="Schroeder & Gibson, DSN 2006, and the log LA-UR-05-7318, released by Los Alamos National Laboratory",
        figures=(
            "512 nodes, a failure every 13.2 h, 75 min down in the median and 3.5 h on average [log]",
            "Weibull gaps with a falling hazard, lognormal repairs [read]; shapes 0.7 to 0.8 [2nd], 0.75 taken [ours]",
            "each of 8 ranks stands for 64 nodes, one rank dies at once; hours are not scaled [ours]",
        ),
    ),
    "spot_p3": Published(
        title="AWS spot p3 instances: frequent preemptions, half of them of several at once",
        law=Law(
            mtbf_h=0.144,
            nodes=32,
            length_h=11.37,
            group_probability=0.506,
            group_sizes=((2, 13.0), (3, 15.0), (4, 7.0), (5, 1.0), (6, 4.0)),
        ),
        source="Bamboo, NSDI 2023, and its trace of p3 (MIT)",
        figures=(
            "32 nodes, 11.37 h, 167 preemptions at 79 instants, 40 of them of 2 to 6 nodes [log]",
            "so 0.144 h between instants [derived]",
            "8 ranks have a quarter of the instants of 32 nodes, and groups as large [ours]; exponential gaps [ours]",
            "hours are scaled: 11.37 h become those of the job, so that they fill it [ours]",
        ),
    ),
    **{
        f"rsc{number}": Published(
            title=f"Meta's RSC-{number}: a job of 128 nodes",
            law=Law(mtbf_h=(mtbf_h := round(1000 * 24 / (rate * 128), 2)), group_probability=0.0),
            source="Kokolis et al., Revisiting Reliability, HPCA 2025, arXiv 2410.21680",
            figures=(
                f"{rate} failures per 1,000 node-days [2nd]; a job of 128 nodes [ours] has one in {mtbf_h} h [derived]",
                "exponential gaps, one rank each [ours]; each of 8 ranks stands for 16 nodes, hours not scaled [ours]",
                "which part of the failures lemons cause is not known here, so none are made up [ours]",
            ),
        )
        for number, rate in ((1, 6.5), (2, 2.3))
    },
    "lablup": Published(
        title="Lablup's B200 cluster: 3 of 63 nodes caused half of the exclusions",
        law=Law(group_probability=0.0, lemon_frac=round(3 / 63, 4), lemon_failures_frac=0.5),
        source="Lablup, From Detection to Recovery, arXiv 2605.09370",
        figures=(
            "3 of 63 nodes had over half of the exclusions of nodes [read]; half is taken [ours]",
            "each exclusion is taken as a failure, exponential gaps, one rank each [ours]",
            "no rate is taken from it: the MTBF is the profile's [ours]; of 8 ranks one is a lemon [derived]",
        ),
    ),
}

_DEFAULT = "exponential"
LAWS: Mapping[str, Law] = {
    _DEFAULT: Law(name=_DEFAULT),
    **{name: one.law.model_copy(update={"name": name}) for name, one in PUBLISHED.items()},
}
"""Laws by name. ``exponential`` has the MTBF and the ranks per failure of the profile."""
NAMED_LAW = Named(LAWS, _merged)
