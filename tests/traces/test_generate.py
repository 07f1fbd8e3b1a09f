"""Made-up traces have the parameters that were asked for, and what is learned from a trace is what made it."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy import stats

from harness.config.laws import LAWS, PUBLISHED, Law
from harness.config.profiles import PROFILES
from harness.core.errors import TraceError
from harness.core.plans import ps_index
from harness.traces.draw import draw, spec_of
from harness.traces.generate import generate, generate_many, order_of_ranks
from harness.traces.spec import GeneratorSpec
from harness.traces.statistics import describe
from harness.traces.trace import Trace, parse_trace, to_text
from tests.known_jobs import CPR56, planned_under
from tests.laws import law_of

F64 = NDArray[np.float64]

SHAPES = {"exponential": None, "gamma": 0.6, "weibull": 0.7, "lognormal": 1.2, "empirical": None}
GAPS_H = (0.5, 1.0, 1.0, 2.0, 9.5)
LEMONS: dict[str, Any] = {"lemon_frac": 0.25, "lemon_failures_frac": 0.7}
GROUPS = {"group_probability": 0.4, "group_sizes": ((2, 3.0), (4, 1.0))}


def spec(
    model: Any = "exponential",
    *,
    ranks: int = 8,
    job_h: float = 56.0,
    repairs_h: tuple[float, ...] = (),
    **keys: Any,
) -> GeneratorSpec:
    """A system of 8 ranks with an MTBF of 4 h, 56 h long."""
    learned = {"trace": "some.csv"} if model == "empirical" else {}
    mtbf_h = None if "node_mtbf_h" in keys else 4.0
    law = Law(model=model, **{"mtbf_h": mtbf_h, "shape": SHAPES[model], **learned, **keys})
    return GeneratorSpec(
        law=law, ranks=ranks, job_h=job_h, gaps_h=GAPS_H if model == "empirical" else (), repairs_h=repairs_h
    )


def assert_mean(values: NDArray[Any], expected: float) -> None:
    """The mean lies within 4.5 standard errors of what is expected: one in 150,000 seeds would fail."""
    error = values.std(ddof=1) / len(values) ** 0.5
    assert abs(values.mean() - expected) <= 4.5 * error, f"{values.mean()} ± {error}, expected {expected}"


# --- laws -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", SHAPES)
def test_a_law_has_mean_one_and_its_met_gap_is_biased_by_length(model: str) -> None:
    """E[gap] = 1 and E[met] = E[gap²] / E[gap], by the midpoint rule over the quantiles."""
    law = spec(model).gaps
    u = (np.arange(50_000) + 0.5) / 50_000
    gap = law.gap(u)
    assert gap.mean() == pytest.approx(1, rel=1e-3)
    assert law.met(u).mean() == pytest.approx((gap**2).mean(), rel=2e-2)


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("exponential", stats.expon()),
        ("gamma", stats.gamma(0.6, scale=1 / 0.6)),
        ("weibull", stats.weibull_min(0.7, scale=1 / 1.2658235)),
        ("lognormal", stats.lognorm(1.2, scale=np.exp(-0.72))),
    ],
)
def test_a_law_has_the_quantiles_that_scipy_gives(model: str, known: Any) -> None:
    """At a few places, far tails too; and so have the first gaps of 1,000 fresh processes, in units of the MTBF."""
    u = np.array([1e-6, 0.1, 0.5, 0.9, 1 - 1e-6])
    np.testing.assert_allclose(spec(model).gaps.gap(u), known.ppf(u), rtol=1e-5)
    fresh = generate_many(spec(model, start="fresh", job_h=500.0), 6, 1000)
    assert stats.kstest(fresh.hours_E[fresh.starts_K1[:-1]] / 4, known.cdf).pvalue > 1e-4


# --- counts and rates -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per", ["system", "rank"])
@pytest.mark.parametrize("model", SHAPES)
def test_in_equilibrium_the_rate_is_one_in_mtbf_from_the_first_hour_on(model: str, per: str) -> None:
    """Whatever the law: instants of the whole length, and of its first tenth."""
    deaths = generate_many(spec(model, per=per), 2, 4000)
    assert_mean(np.diff(deaths.starts_K1), 14)
    early_K = np.bincount(deaths.traces_E[deaths.hours_E < 5.6], minlength=4000)
    assert_mean(early_K, 1.4)


@pytest.mark.parametrize("per", ["system", "rank"])
def test_a_nodes_mtbf_counts_its_deaths_in_groups(per: str) -> None:
    """8 ranks of an MTBF of 20 h die 8 · 56 / 20 times in 56 h, alone or dragged along; MTBFs scale as 1 / N."""
    assert (spec(nodes=32).instant_mtbf_h, spec(node_mtbf_h=100.0, ranks=4).instant_mtbf_h) == (16, 25)
    deaths = generate_many(spec(node_mtbf_h=20.0, per=per, **GROUPS), 4, 2000)
    assert_mean(np.diff(deaths.starts_K1), 8 * 56 / 20)


def test_the_hazard_is_higher_early_and_then_flat() -> None:
    deaths = generate_many(spec(early_factor=3.0, early_h=7.0), 5, 4000)
    is_early_E = deaths.hours_E < 7
    assert_mean(np.bincount(deaths.traces_E[is_early_E], minlength=4000), 3 * 7 / 4)
    assert_mean(np.bincount(deaths.traces_E[~is_early_E], minlength=4000), 49 / 4)


# --- ranks, groups, repairs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per", ["system", "rank"])
def test_ranks_and_hours_are_in_range_and_in_order(per: str) -> None:
    """Order of (trace, hour, rank); hours from 0 to the length; a rank dies once at an instant, all alike often.

    A group dies in 0.4 of the instants, three of 2 for one of 4 ranks, all of one rack of 4, at one hour exactly.
    """
    deaths = generate_many(spec(per=per, rack_size=4, early_factor=2.0, early_h=3.0, **GROUPS), 7, 1000)
    assert 0 <= deaths.hours_E.min() <= deaths.hours_E.max() <= 56
    keys = list(zip(deaths.traces_E.tolist(), deaths.hours_E.tolist(), deaths.ranks_E.tolist(), strict=True))
    assert keys == sorted(set(keys))
    counts_C = np.bincount(deaths.ranks_E, minlength=8)
    assert len(counts_C) == 8
    assert abs(counts_C / counts_C.mean() - 1).max() < 0.1
    instants = np.stack([deaths.traces_E, deaths.hours_E])
    _, first_I, sizes_I = np.unique(instants, axis=1, return_index=True, return_counts=True)
    assert set(sizes_I.tolist()) == {1, 2, 4}
    assert_mean(sizes_I > 1, 0.4)
    assert_mean(sizes_I[sizes_I > 1] == 2, 0.75)
    assert all(len(set((part // 4).tolist())) == 1 for part in np.split(deaths.ranks_E, first_I[1:]))


@pytest.mark.parametrize("model", SHAPES)
def test_lemons_cause_their_part_of_the_failures(model: str) -> None:
    """2 of 8 ranks 0.7 of them, and both alike; each trace has its own; the hours of failures stay."""
    deaths = generate_many(spec(model, **LEMONS), 3, 3000)
    order_KR = order_of_ranks(8, 3, np.arange(3000))
    place_E = np.argsort(order_KR, axis=1)[deaths.traces_E, deaths.ranks_E]
    counts_KP = np.zeros((3000, 8))
    np.add.at(counts_KP, (deaths.traces_E, place_E), 1)
    for place, expected in enumerate([0.7 / 2] * 2 + [0.3 / 6] * 6):
        assert_mean(counts_KP[:, place], 14 * expected)
    assert_mean(order_KR[:, 0], 3.5)
    np.testing.assert_array_equal(deaths.hours_E, generate_many(spec(model), 3, 3000).hours_E)


def test_given_failures_strike_lemons_at_the_hours_of_even_ones() -> None:
    """As many ranks at each; over seeds 0.7 of the failures of one rank strike the two that the header names."""
    profile = PROFILES["cpr56"]
    for keys in ({"model": "fixed", "number": 20}, {"model": "at", "hours": [float(hour) for hour in range(20)]}):
        shares: list[float] = []
        for seed in range(100):
            even, lemons = draw(law_of(**keys), profile, 8, seed), draw(law_of(**keys, **LEMONS), profile, 8, seed)
            assert [entry.hour for entry in even.entries] == [entry.hour for entry in lemons.entries]
            named = lemons.header["lemons"].split(", ")
            shares.append(sum(str(entry.who) in named for entry in lemons.entries) / 20)
        assert_mean(np.array(shares), 0.7)
    groups = profile.model_copy(update={"ranks_per_failure": 2.5})
    two = [draw(law_of(**keys, **more), groups, 8, 1).entries for more in ({}, LEMONS)]
    assert [entry.hour for entry in two[0]] == [entry.hour for entry in two[1]]


def test_lemons_are_found_by_the_statistics_of_their_trace() -> None:
    """The ranks that fail again and again are those that the header names; ranks without lemons may be alike."""
    for seed in range(5):
        trace = generate(spec(ranks=40, mtbf_h=1.0, lemon_frac=0.05, lemon_failures_frac=0.5, job_h=400.0), seed)
        found = describe(trace)
        assert found.num_R is not None
        worst = sorted(np.argsort(-found.num_R, kind="stable")[:2].tolist())
        assert ", ".join(f"ps{rank}" for rank in worst) == trace.header["lemons"]
        assert found.p_alike is not None
        assert found.p_alike < 1e-9


def test_repair_times_are_lognormal_with_the_median_and_mean_asked_for() -> None:
    deaths = generate_many(spec(repair_median_h=1.0, repair_mean_h=2.0), 9, 2000)
    assert deaths.repairs_E is not None
    assert_mean(deaths.repairs_E > 1, 0.5)
    assert_mean(deaths.repairs_E, 2)
    absurd = generate_many(spec(repair_median_h=1e-9, repair_mean_h=1e9), 9, 2000).repairs_E
    assert absurd is not None
    assert absurd.max() <= 1e9
    seen = generate_many(spec(repairs_h=(0.0, 3.0)), 9, 100).repairs_E
    assert seen is not None
    assert set(seen.tolist()) == {0.0, 3.0}


def test_stretching_scales_hours_and_repairs_alike() -> None:
    """Ten times as long, nothing else changes; so at twice the MTBF and twice the length (common random numbers)."""
    twice = generate_many(spec("weibull", mtbf_h=8.0, job_h=112.0), 1, 20).hours_E
    np.testing.assert_allclose(2 * generate_many(spec("weibull"), 1, 20).hours_E, twice)
    asked: dict[str, Any] = {"repair_median_h": 1.0, "repair_mean_h": 2.0}
    plain = generate_many(spec(**asked), 9, 10)
    longer = generate_many(spec(length_h=56.0, job_h=560.0, **asked), 9, 10)
    assert plain.repairs_E is not None
    assert longer.repairs_E is not None
    np.testing.assert_allclose(longer.hours_E, 10 * plain.hours_E)
    np.testing.assert_allclose(longer.repairs_E, 10 * plain.repairs_E)


# --- seeds ------------------------------------------------------------------------------------------------------------


OF_RANKS = {"per": "rank"}


@pytest.mark.parametrize("keys", [{}, LEMONS, OF_RANKS], ids=len)
def test_a_trace_does_not_depend_on_how_many_are_made(keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace 7 alone, among ten, and in other blocks is the same to the bit; another seed gives others."""
    asked = spec("gamma", repair_median_h=1.0, repair_mean_h=2.0, **GROUPS, **keys)
    among, alone = generate_many(asked, 1, 10), generate_many(asked, 1, 1, first=7)
    monkeypatch.setattr("harness.traces.generate._STREAMS_AT_ONCE", 16)
    monkeypatch.setattr("harness.traces.generate._DRAWS_AT_ONCE", 8)
    in_blocks = generate_many(asked, 1, 10)
    for name in ("traces_E", "hours_E", "ranks_E", "repairs_E"):
        np.testing.assert_array_equal(getattr(among, name), getattr(in_blocks, name))
    np.testing.assert_array_equal(np.stack(among.of(7)), np.stack(alone.of(0)))
    assert not np.array_equal(among.hours_E, generate_many(asked, 2, 10).hours_E)


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [LEMONS, OF_RANKS], ids=len)
def test_a_trace_is_number_zero_of_its_seed_or_a_typical_one(keys: dict[str, Any]) -> None:
    """Hours to a millionth. A typical one has the expected number of failures, whatever the seed."""
    asked = spec("weibull", rack_size=4, **GROUPS, **keys)
    for seed in range(3):
        trace = generate(asked, seed, is_typical=seed == 2)
        number = int(trace.header.get("number", "0").partition(",")[0])
        hours, ranks = generate_many(asked, seed, 1, first=number).of(0)
        np.testing.assert_allclose([entry.hour for entry in trace.entries], hours, atol=1e-6)
        assert [ps_index(str(entry.who)) for entry in trace.entries] == ranks.tolist()
        assert [trace.header[key] for key in ("length_h", "ranks", "seed")] == ["56", "8", str(seed)]
        assert len({entry.hour for entry in trace.entries}) == 14 or seed < 2


def test_all_draws_of_a_law_have_its_digest() -> None:
    """Typical ones too; another key of the law, or another job, has another."""
    law, profile = law_of(model="weibull", shape=0.7), PROFILES["busy"]
    plain, other, typical = (draw(law, profile, 4, seed, is_typical=seed == 2).law for seed in range(3))
    assert plain == other == typical != draw(law_of(model="weibull", shape=0.8), profile, 4, 0).law
    assert plain != draw(law, PROFILES["cpr56"], 4, 0).law
    assert len({draw(LAWS["lablup"], profile, 4, seed).law for seed in range(4)}) == 1


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_law_names_its_sources(name: str) -> None:
    """The failures of the job are as many as expected, every figure says how sure it is."""
    profile = PROFILES["poster50" if name == "poster50" else "cpr56"]
    trace, published = draw(LAWS[name], profile, profile.num_ps, 3, is_typical=True), PUBLISHED[name]
    costs = replace(CPR56, job_h=profile.job_h, num_ps=profile.num_ps, total_samples=10**7)
    kills = planned_under(to_text(trace).splitlines(), costs, 1)
    assert len(kills) == round(spec_of_job(LAWS[name]).expected_instants)
    assert all("[" in figure for figure in published.figures)
    assert trace.header["source"].endswith(published.source)


def test_published_laws_have_the_published_figures() -> None:
    """Two single failures, five of four ranks, an MTBF of three hours; bursts whose median gap is 5.6 of 14.2 h; 167
    preemptions of 32 nodes in 11.4 h.
    """
    num_deaths = [
        len(draw(LAWS[name], PROFILES[name], 18, 0, is_typical=True).entries) for name in ("cpr56", "poster50")
    ]
    assert num_deaths == [2, 5 * 4]
    assert spec_of_job(LAWS["llama3"]).instant_mtbf_h == pytest.approx(3.1, abs=0.02)
    assert spec_of_job(LAWS["infinitehbd"]).gaps.gap(np.array([0.5]))[0] * 14.2 == pytest.approx(5.6, abs=0.05)
    spot = spec_of_job(LAWS["spot_p3"])
    assert spot.expected_instants * spot.ranks_per_instant / 8 == pytest.approx(167 / 32, rel=0.01)


def spec_of_job(law: Law, *, ranks: int = 8, job_h: float | None = None) -> GeneratorSpec:
    """``law`` for a job of 56 h (poster50: 50 h) that has a failure of one rank every 28 h."""
    return spec_of(law, 28.0, 1.0, ranks=ranks, job_h=job_h or (50.0 if law.name == "poster50" else 56.0))


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"shape": 2.0}, "shape: not a key of model exponential; gamma, weibull, lognormal have it"),
        ({"number": 2}, "number: not a key of model exponential; fixed has it"),
        (
            {"model": "fixed", "number": 2, "mtbf_h": 3},
            "mtbf_h: not a key of model fixed; exponential, gamma, weibull, ",
        ),
        ({"model": "at", "hours": [3], "number": 1}, "number: not a key of model at; fixed has it"),
        ({"model": "gamma"}, "shape: expected a value with model gamma, got none"),
        ({"model": "fit"}, "trace: expected a value with model fit, got none"),
        ({"model": "fixed"}, "number: expected a value with model fixed, got none"),
        ({"model": "at"}, "hours: expected a value with model at, got none"),
        ({"model": "at", "hours": [7, 7]}, "hours: expected ascending hours, got 7, 7"),
        ({"model": "weibull", "shape": 0.1}, "shape: expected 0.2 to 100 with model weibull, got 0.1"),
        ({"mtbf_h": 3, "node_mtbf_h": 3}, "node_mtbf_h: expected none with mtbf_h, got both"),
        ({"nodes": 4}, "nodes: expected mtbf_h, the MTBF of a system of so many nodes, got none"),
        ({"group_probability": 0.5}, "group_sizes: expected them with a group_probability above 0, and only then"),
        ({"group_sizes": ((2, 1),)}, "group_sizes: expected them with a group_probability above 0, and only then"),
        ({"per": "rank", **LEMONS}, "lemon_frac: expected none with per rank"),
        ({"lemon_frac": 0.1}, "lemon_failures_frac: expected it and lemon_frac, got one of them"),
        ({"repair_median_h": 1.0}, "repair_mean_h: expected it and repair_median_h, got one of them"),
        (
            {"repair_median_h": 2.0, "repair_mean_h": 1.0},
            "repair_mean_h: expected at least the median (2.0 h), got 1.0",
        ),
        (
            {"base": "lama3"},
            "base: expected one of exponential, cpr56, poster50, llama3, infinitehbd, lanl20, spot_p3, ",
        ),
    ],
)
def test_keys_that_contradict_each_other_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        law_of(**keys)


def test_a_law_that_does_not_fit_the_job_is_refused() -> None:
    for law, message in (
        (
            {"mtbf_h": 1e-5},
            "trace.law: expected at most 1000000 deaths, got 5.6e+06; shorten the job or raise the MTBF",
        ),
        ({"rack_size": 3}, "trace.law.rack_size: expected a divisor of the 8 ranks, got 3"),
        (
            {"lemon_frac": 0.05, "lemon_failures_frac": 0.1},
            "trace.law.lemon_failures_frac: expected above 0.125, as 1 of 8 ranks are lemons, got 0.1",
        ),
    ):
        with pytest.raises(TraceError, match=re.escape(message)):
            spec_of_job(law_of(**law))


# --- learning ---------------------------------------------------------------------------------------------------------

BURSTS = spec(
    "weibull",
    shape=0.5,
    mtbf_h=10.0,
    job_h=10_000.0,
    group_probability=0.25,
    group_sizes=((2, 1.0), (4, 1.0)),
    repair_median_h=2.0,
    repair_mean_h=5.0,
)


def like(folder: Path, trace: Trace, model: str = "fit", **keys: Any) -> GeneratorSpec:
    """What is learned from ``trace``, for a job of its ranks (else of 8) and of 56 h."""
    path = folder / "some.csv"
    path.write_text(to_text(trace))
    law = law_of(model=model, trace=str(path), **keys)
    return spec_of_job(law, ranks=int(trace.header.get("ranks", 8)))


def read(*rows: str, header: str = "", columns: str = "") -> Trace:
    return parse_trace([*header.splitlines(), f"hour,rank{columns}", *rows], "some.csv")


@pytest.mark.parametrize("per", ["system", "rank"])
def test_a_fit_finds_the_parameters_again(tmp_path: Path, per: str) -> None:
    """Family, shape, MTBF, share and sizes of groups, and repairs, of 1,000 failures."""
    made = replace(BURSTS, law=BURSTS.law.model_copy(update={"per": per}))
    found = like(tmp_path, generate(made, 1), per=per)
    assert found.instant_mtbf_h == pytest.approx(10, rel=0.2)
    assert found.ranks_per_instant == pytest.approx(1.5, rel=0.1)
    assert found.law.repair_median_h == pytest.approx(2, rel=0.1)
    assert found.law.repair_mean_h == pytest.approx(5, rel=0.3)
    if per == "system":  # a rank's gaps are cut by the groups that others drag it into
        assert (found.law.model, found.law.shape) == ("weibull", pytest.approx(0.5, rel=0.1))


def test_a_law_is_not_claimed_where_the_exponential_will_do(tmp_path: Path) -> None:
    asked = spec(mtbf_h=5.0, job_h=100.0)
    models = [like(tmp_path, generate(asked, seed, is_typical=True)).law.model for seed in range(10)]
    assert models.count("exponential") >= 7


def test_an_empirical_model_draws_the_gaps_and_repairs_of_the_trace(tmp_path: Path) -> None:
    """Scaled to the MTBF asked for, if one is."""
    rows = ("0,ps0,0.5", "1,ps1,0.5", "3,ps0,7")
    trace = read(*rows, header="# length_h: 9\n# ranks: 2", columns=",repair_h")
    found = like(tmp_path, trace, "empirical", start="fresh")
    assert (found.gaps_h, found.repairs_h, found.instant_mtbf_h) == ((1.0, 2.0), (0.5, 0.5, 7.0), 3.0)
    hours, _ = generate_many(found, 0, 1).of(0)
    assert set(np.diff(hours, prepend=0.0).round(6).tolist()) <= {2.0, 4.0}  # a mean of 3 h, in proportion 1 : 2


def test_what_is_given_is_not_learned(tmp_path: Path) -> None:
    """No groups if none are wanted, other repairs, another MTBF.

    8 of 32 ranks have a quarter of the failures, and no group beyond 8.
    """
    trace = generate(BURSTS, 1)
    keys = {"group_probability": 0.0, "repair_median_h": 1.0, "repair_mean_h": 1.0}
    found = like(tmp_path, trace, "empirical", **keys)
    assert (found.law.group_sizes, found.repairs_h, found.law.repair_mean_h) == ((), (), 1.0)
    assert like(tmp_path, trace, "empirical", mtbf_h=30.0).instant_mtbf_h == 30
    law = like(tmp_path, generate(spec(ranks=32, mtbf_h=1.0, group_probability=0.5, group_sizes=((16, 1.0),)), 1)).law
    whole, part = (spec_of_job(law, ranks=ranks) for ranks in (32, 8))
    assert part.instant_mtbf_h == pytest.approx(4 * whole.instant_mtbf_h)
    assert [{size for size, _ in each.law.group_sizes} for each in (whole, part)] == [{16}, {8}]


def test_what_a_trace_does_not_say_is_not_learned(tmp_path: Path) -> None:
    """Counts of ranks teach a system but no rank: two of three failures take 4 ranks; which, is not told."""
    counts = read("1,4", "2,1", "4,4", header="# job_h: 50")
    assert like(tmp_path, counts).ranks_per_instant == 3
    for trace, per, message in (
        (counts, "rank", "some.csv: it does not say which ranks died"),
        (read("1,ps0", "1,ps1", "2,ps0"), "system", "some.csv: 2 failures; at least 3 are needed to learn from"),
        (read("1,ps0", "2,ps1", "3,ps2"), "rank", "some.csv: no rank failed twice"),
    ):
        with pytest.raises(TraceError, match=message):
            like(tmp_path, trace, per=per)
