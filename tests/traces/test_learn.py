"""What is learned from a trace is what it was made with."""

import numpy as np
import pytest

from harness.core.errors import TraceError
from harness.traces.generate import generate, generate_many
from harness.traces.learn import spec_like
from harness.traces.spec import GeneratorSpec
from harness.traces.trace import Trace, parse_trace

BURSTS = GeneratorSpec(
    model="weibull",
    shape=0.5,
    mtbf_h=10.0,
    length_h=10_000.0,
    group_probability=0.25,
    group_sizes=((2, 1.0), (4, 1.0)),
    repair_median_h=2.0,
    repair_mean_h=5.0,
)


def read(*rows: str, header: str = "", columns: str = "") -> Trace:
    """A trace of these lines."""
    return parse_trace([*header.splitlines(), f"hour,rank{columns}", *rows], "some.csv")


@pytest.mark.parametrize("per", ["system", "rank"])
def test_a_fit_finds_the_parameters_again(per: str) -> None:
    """Family, shape, MTBF, share and sizes of groups, and repairs, of 1,000 failures."""
    found = spec_like(generate(BURSTS.changed(per=per), 1), "fit", {"per": per})
    assert (found.ranks, found.length_h) == (8, 10_000)
    assert found.instant_mtbf_h == pytest.approx(10, rel=0.2)
    assert found.ranks_per_instant == pytest.approx(1.5, rel=0.1)
    assert found.repair_median_h == pytest.approx(2, rel=0.1)
    assert found.repair_mean_h == pytest.approx(5, rel=0.3)
    if per == "system":  # a rank's gaps are cut by the groups that others drag it into
        assert (found.model, found.shape) == ("weibull", pytest.approx(0.5, rel=0.1))


def test_a_law_is_not_claimed_where_the_exponential_will_do() -> None:
    """Of 20 exponential failures of most seeds, the exponential is learned."""
    asked = GeneratorSpec(mtbf_h=5.0, length_h=100.0)
    models = [spec_like(generate(asked, seed, is_typical=True), "fit", {}).model for seed in range(10)]
    assert models.count("exponential") >= 7


def test_an_empirical_model_draws_the_gaps_and_repairs_of_the_trace() -> None:
    """Scaled to the MTBF asked for, if one is."""
    rows = ("0,ps0,0.5", "1,ps1,0.5", "3,ps0,7")
    trace = read(*rows, header="# length_h: 9\n# ranks: 2", columns=",repair_h")
    found = spec_like(trace, "empirical", {"start": "fresh"})
    assert (found.gaps_h, found.repairs_h, found.instant_mtbf_h) == ((1.0, 2.0), (0.5, 0.5, 7.0), 3.0)
    hours, _ = generate_many(found, 0, 1).of(0)
    assert set(np.diff(hours, prepend=0.0).round(6).tolist()) <= {2.0, 4.0}  # a mean of 3 h, in proportion 1 : 2
    assert "model=empirical:some.csv" in found.words


def test_what_is_asked_for_is_not_learned() -> None:
    """No groups if none are wanted, other repairs, another MTBF.

    8 of 32 ranks have a quarter of the failures, and no group beyond 8.
    """
    trace = generate(BURSTS, 1)
    found = spec_like(trace, "empirical", {"group_probability": 0.0, "repair_median_h": 1.0, "repair_mean_h": 1.0})
    assert (found.group_sizes, found.repairs_h, found.repair_mean_h) == ((), (), 1.0)
    assert spec_like(trace, "empirical", {"mtbf_h": 30.0, "ranks": 4}).instant_mtbf_h == 30
    trace = generate(GeneratorSpec(mtbf_h=1.0, ranks=32, group_probability=0.5, group_sizes=((16, 1.0),)), 1)
    whole, part = (spec_like(trace, "empirical", asked) for asked in ({}, {"ranks": 8}))
    assert part.instant_mtbf_h == pytest.approx(4 * whole.instant_mtbf_h)
    assert {size for size, _ in part.group_sizes} == {8}


def test_what_a_trace_does_not_say_is_not_learned() -> None:
    """Counts of ranks teach a system but no rank: two of three failures take 4 ranks; which, is not told."""
    counts = read("1,4", "2,1", "4,4", header="# job_h: 50")
    found = spec_like(counts, "fit", {})
    assert (found.ranks, found.length_h, found.ranks_per_instant) == (4, 50, 3)
    for trace, asked, message in (
        (counts, {"per": "rank"}, "some.csv: it does not say which ranks died"),
        (read("1,ps0", "1,ps1", "2,ps0"), {}, "some.csv: 2 failures; at least 3 are needed to learn from"),
        (read("1,ps0", "2,ps1", "3,ps2"), {"per": "rank"}, "some.csv: no rank failed twice"),
    ):
        with pytest.raises(TraceError, match=message):
            spec_like(trace, "fit", asked)
