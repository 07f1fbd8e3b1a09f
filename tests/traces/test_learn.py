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


def read(*rows: str, header: str = "") -> Trace:
    """A trace of these lines."""
    return parse_trace([*header.splitlines(), "hour,rank", *rows], "some.csv")


@pytest.mark.parametrize("per", ["system", "rank"])
def test_a_fit_finds_the_parameters_again(per: str) -> None:
    """Family, shape, MTBF, share and sizes of groups, and repairs, of 1,000 failures."""
    trace = generate(BURSTS.changed(per=per), 1)
    found = spec_like(trace, "fit", {"per": per})
    assert found.ranks == 8
    assert found.length_h == 10_000
    assert found.instant_mtbf_h == pytest.approx(10, rel=0.2)
    assert found.ranks_per_instant == pytest.approx(1.5, rel=0.1)
    assert found.repair_median_h == pytest.approx(2, rel=0.1)
    assert found.repair_mean_h == pytest.approx(5, rel=0.3)
    if per == "system":  # a rank's gaps are cut by the groups that others drag it into
        assert found.model == "weibull"
        assert found.shape == pytest.approx(0.5, rel=0.1)


def test_a_law_is_not_claimed_where_the_exponential_will_do() -> None:
    """Of 20 exponential failures of most seeds, the exponential is learned; of 1,000 bursts never."""
    models = [
        spec_like(generate(GeneratorSpec(mtbf_h=5.0, length_h=100.0), seed, is_typical=True), "fit", {}).model
        for seed in range(20)
    ]
    assert models.count("exponential") >= 14


def test_an_empirical_model_draws_the_gaps_and_repairs_of_the_trace() -> None:
    """Scaled to the MTBF asked for, if one is."""
    rows = ("0,ps0,0.5", "1,ps1,0.5", "3,ps0,7")
    trace = parse_trace(["# length_h: 9", "# ranks: 2", "hour,rank,repair_h", *rows], "some.csv")
    found = spec_like(trace, "empirical", {"start": "fresh"})
    assert (found.gaps_h, found.repairs_h, found.instant_mtbf_h) == ((1.0, 2.0), (0.5, 0.5, 7.0), 3.0)
    hours, _ = generate_many(found, 0, 1).of(0)
    assert set(np.diff(hours, prepend=0.0).round(6).tolist()) <= {2.0, 4.0}  # a mean of 3 h, in proportion 1 : 2
    assert spec_like(trace, "empirical", {"mtbf_h": 30.0}).instant_mtbf_h == 30
    assert "model=empirical:some.csv" in found.words


def test_what_is_asked_for_is_not_learned() -> None:
    """No groups if none are wanted, other repairs, another law's length."""
    trace = generate(BURSTS, 1)
    found = spec_like(trace, "empirical", {"group_probability": 0.0, "repair_median_h": 1.0, "repair_mean_h": 1.0})
    assert (found.group_sizes, found.repairs_h, found.repair_mean_h) == ((), (), 1.0)
    assert spec_like(trace, "fit", {"mtbf_h": 30.0, "ranks": 4}).instant_mtbf_h == 30


def test_a_smaller_job_of_the_same_nodes_fails_in_proportion_to_its_size() -> None:
    """8 of 32 ranks have a quarter of the failures, and no group beyond 8."""
    trace = generate(GeneratorSpec(mtbf_h=1.0, ranks=32, group_probability=0.5, group_sizes=((16, 1.0),)), 1)
    whole, part = spec_like(trace, "fit", {}), spec_like(trace, "fit", {"ranks": 8})
    assert part.instant_mtbf_h == pytest.approx(4 * whole.instant_mtbf_h)
    assert {size for size, _ in part.group_sizes} == {8}


def test_traces_that_give_counts_teach_a_system_but_no_rank() -> None:
    """Two of three failures take 4 ranks; which, is not told."""
    trace = read("1,4", "2,1", "4,4", header="# job_h: 50")
    found = spec_like(trace, "fit", {})
    assert (found.ranks, found.length_h, found.ranks_per_instant) == (4, 50, 3)
    with pytest.raises(TraceError, match=r"some\.csv: it does not say which ranks died"):
        spec_like(trace, "fit", {"per": "rank"})


@pytest.mark.parametrize(
    ("rows", "asked", "message"),
    [
        (("1,ps0", "1,ps1", "2,ps0"), {}, "some.csv: 2 failures; at least 3 are needed to learn from"),
        (("1,ps0", "2,ps1", "3,ps2"), {"per": "rank"}, "some.csv: no rank failed twice"),
    ],
)
def test_what_nothing_can_be_learned_from_is_said(rows: tuple[str, ...], asked: dict[str, str], message: str) -> None:
    """In one line."""
    with pytest.raises(TraceError) as caught:
        spec_like(read(*rows), "fit", asked)
    assert str(caught.value).startswith(message)
