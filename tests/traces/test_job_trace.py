"""The trace that a job meets: its hours, its constants, and what does not fit."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.config.derived import job_costs
from harness.config.model import Config, TraceConfig
from harness.config.profiles import PROFILES
from harness.core.errors import ConfigError, TraceError
from harness.traces.job_trace import job_trace, on_job, with_profile_of_trace
from harness.traces.mismatch import mismatches
from harness.traces.schedule import planned_faults_of
from harness.traces.trace import Trace, parse_trace
from tests.laws import law_of

LOG = (
    "# length_h: 40\n# ranks: 2\nhour,rank,repair_h,phase\n1,ps0,2,\n9,ps1,,apply\n21,ps0,3,\n22,ps1,,\n23,ps1,4,save\n"
    "39,ps0,,\n"
)
"""Six failures in 40 h, two in a phase; the densest 10 h are 20 to 30 (windows start every 0.625 h)."""


def read() -> Trace:
    return parse_trace(LOG.splitlines(), "log.csv")


def config_of(folder: Path, text: str = LOG, **trace: object) -> Config:
    """A job of 10 h with a tiny MTBF and two PS ranks under a trace of this text."""
    (folder / "log.csv").write_text(text)
    profile = {"base": "busy", "job_h": 10, "num_ps": 2}
    return Config.model_validate({"profile": profile, "trace": {"path": str(folder / "log.csv"), **trace}})


def said(config: Config, *, is_planned: bool = False) -> list[str]:
    config = with_profile_of_trace(config)
    return list(mismatches(config, job_costs(config, 128_000), is_planned=is_planned))


WINDOW = [(6, 7.875, 3, "boundary"), (7, 8.875, None, "boundary"), (8, 9.875, 4, "save")]
STRETCHED = [(4, 0.25, 0.5, "boundary"), (5, 2.25, None, "apply"), (6, 5.25, 0.75, "boundary")]
STRETCHED += [(7, 5.5, None, "boundary"), (8, 5.75, 1, "save"), (9, 9.75, None, "boundary")]


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [({"window": "densest"}, WINDOW), ({"window": "quietest"}, []), ({"stretch": True}, STRETCHED)],
)
def test_a_part_of_a_trace_is_as_long_as_the_job(mapping: Any, expected: list[tuple[Any, ...]]) -> None:
    """A window's first hour is hour 0; entries keep their lines, so that drawn ranks stay, phases and further columns.

    Repairs keep their length in a window, and scale with the hours where these are stretched.
    """
    whole = read()
    trace = on_job(whole, TraceConfig(**mapping), job_h=10)
    assert [(entry.line, entry.hour, entry.repair_h, entry.phase) for entry in trace.entries] == expected
    lines = {line for line, *_ in expected}
    assert [entry.extra for entry in trace.entries] == [e.extra for e in whole.entries if e.line in lines]
    assert trace.header["length_h"] == "10"
    assert on_job(whole, TraceConfig(), job_h=10) == whole


def test_kills_are_those_of_the_mapped_trace(tmp_path: Path) -> None:
    """Refused are a trace longer than the job without a mapping, two mappings, and a window longer than the trace."""
    text = LOG.replace("apply", "").replace("save", "")
    config = config_of(tmp_path, text, stretch=True, repair="reschedule")
    kills = planned_faults_of(config, total_samples=12_800, num_steps=100)
    assert [(kill.step, kill.ranks, kill.repair_h) for kill in kills] == [
        (3, ("ps0",), 0.5), (23, ("ps1",), None), (53, ("ps0",), 0.75), (55, ("ps1",), None), (58, ("ps1",), 1),
        (98, ("ps0",), None),
    ]  # fmt: skip
    with pytest.raises(TraceError, match=r"log.csv:6: expected an hour up to the end of the job .* trace.window"):
        planned_faults_of(config_of(tmp_path, text), total_samples=12_800, num_steps=100)
    with pytest.raises(TraceError, match=r"log.csv: trace.window=median: expected .* \(56 h\), got 40 h"):
        on_job(read(), TraceConfig(window="median"), job_h=56)
    with pytest.raises(ConfigError, match=r"trace.window, trace.stretch: expected one of them, got both"):
        on_job(read(), TraceConfig(window="median", stretch=True), job_h=10)


def test_a_profile_takes_the_constants_of_the_trace_as_the_job_meets_it(tmp_path: Path) -> None:
    """MTBF and ranks per failure; the other constants are its base's, and the name says whose."""
    config = config_of(tmp_path, LOG.replace("9,ps1,", "9,ps0,,\n9,ps1,"), stretch=True)
    config = config.model_copy(update={"profile": config.profile.model_copy(update={"from_trace": True})})
    found = with_profile_of_trace(config).profile
    assert (found.mtbf_h, found.ranks_per_failure) == (pytest.approx(10 / 6), pytest.approx(7 / 6))
    assert (found.name, found.from_trace, found.o_save_h) == ("busy*(log)", False, config.profile.o_save_h)
    with pytest.raises(ConfigError, match=r"profile.from_trace: expected a failure trace \(trace.path\), got none"):
        with_profile_of_trace(Config(profile=PROFILES["from_trace"]))


@pytest.mark.parametrize(("name", "trace"), [("busy", "busy"), ("poster50", "poster50"), ("cpr56", "two_in_56h")])
def test_a_shipped_trace_fits_its_profile(name: str, trace: str) -> None:
    assert said(Config.model_validate({"profile": name, "trace": {"path": f"failure_traces/{trace}.csv"}})) == []


MANY = " ".join(f"{k / 4},ps0," for k in range(40))
CHARGED, PLANNED = {"repair": "reschedule"}, {"is_planned": True}


@pytest.mark.parametrize(
    ("length_h", "ranks", "rows", "keys", "sentence"),
    [
        (5, 2, "4,ps0,", {}, "the trace lasts 5 h, the job 10 h: no failure after hour 4; "),
        (15, 2, "4,ps0,", {}, "the trace lasts 15 h, the job 10 h: the rest is left out; "),
        (10, 2, "4,ps0,", {"clock": "wall"}, "the trace lasts 10 h, and so does the job without overhead: on the wall"),
        (None, 2, "1,ps0, 2,ps1,", {}, "the last failure of the trace is at 2 h, the job 10 h: no failure "),
        (10, 2, MANY, {}, "MTBF 0.25 h in the trace (40 failures in 10 h), 5.6 h in profile busy*, by which intervals"),
        (10, 2, "4,ps0, 4,ps1,", {}, "2 ranks per failure in the trace, 1 in profile busy*; profile.from_trace=true"),
        (10, 9, "4,ps0,", {}, "9 ranks in the trace, 2 PS ranks in the job: failures of the others cannot happen; "),
        (10, 1, "4,ps0,", {}, "1 ranks in the trace, 2 PS ranks in the job: ranks from ps1 on never fail; cluster"),
        (10, 2, "4,ps0,30", {}, "repair times of the trace (30 h) are not charged: a failure costs O_res, 3 min, as "),
        (10, 2, "4,ps0,30", CHARGED, "repair times of 30 h are charged to a job of 10 h, which waits for its nodes; "),
        (10, 2, "4,ps0,3", CHARGED, None),
        # Closed forms have no steps; of hours they say what is assumed.
        (
            5,
            2,
            "4,ps0, 4.001,ps1,",
            PLANNED,
            "the trace lasts 5 h, the job 10 h: the trace's MTBF is taken for the job; ",
        ),
    ],
)
def test_each_mismatch_is_said_in_one_sentence(  # noqa: PLR0917
    tmp_path: Path, length_h: float | None, ranks: int, rows: str, keys: dict[str, Any], sentence: str | None
) -> None:
    length = "" if length_h is None else f"# length_h: {length_h}\n"
    text = f"{length}# ranks: {ranks}\nhour,rank,repair_h\n" + "\n".join(rows.split())
    is_planned = keys == PLANNED
    found = said(config_of(tmp_path, text, **({} if is_planned else keys)), is_planned=is_planned)
    assert [each[: len(sentence or "")] for each in found] == ([sentence] if sentence else [])


# --- laws -------------------------------------------------------------------------------------------------------------


def drawn(law: str | dict[str, Any], seed: int = 0, *, goes_on: bool = False, **profile: object) -> Trace:
    """The trace of a job of 100 h on four ranks."""
    emulated = {"base": "busy", "job_h": 100, "num_ps": 4, "mtbf_h": 10, **profile}
    config = Config.model_validate({"seed": seed, "profile": emulated, "trace": {"law": law}})
    trace = job_trace(config, goes_on=goes_on)
    assert trace is not None
    return trace


def deaths(trace: Trace) -> list[tuple[float, Any]]:
    return [(entry.hour, entry.who) for entry in trace.entries]


@pytest.mark.parametrize("law", ["exponential", "llama3", "spot_p3", "poster50"])
def test_a_law_gives_each_seed_a_trace_of_the_job(law: str) -> None:
    """As long as the job, of its ranks, the same again for the same seed; on the wall clock its beginning stays."""
    trace = drawn(law)
    assert trace == drawn(law)
    assert deaths(trace) != deaths(drawn(law, seed=1))
    assert trace.header["length_h"] == "100"
    assert {who for _, who in deaths(trace)} <= {f"ps{k}" for k in range(4)}
    longer = drawn(law, goes_on=True)
    assert [death for death in deaths(longer) if death[0] < 100] == deaths(trace)
    assert longer.entries[-1].hour > 100


def test_a_group_of_a_job_of_one_rank_is_that_rank() -> None:
    """Larger groups are all ranks of the job; one rank dies at the instants at which some of four ranks die."""
    instants = list(dict.fromkeys(hour for hour, _ in deaths(drawn("poster50"))))
    assert deaths(drawn("poster50", num_ps=1)) == [(hour, "ps0") for hour in instants]
    assert {who for _, who in deaths(drawn("spot_p3", num_ps=1))} == {"ps0"}


def test_the_exponential_law_is_the_profiles() -> None:
    """Over 120 draws: a failure in ten hours, of 1.5 ranks on average."""
    traces = [drawn("exponential", seed, ranks_per_failure=1.5) for seed in range(120)]
    num_instants = sum(len({hour for hour, _ in deaths(trace)}) for trace in traces)
    assert num_instants == pytest.approx(1200, rel=0.08)  # 2.8 standard deviations
    assert sum(len(trace.entries) for trace in traces) / num_instants == pytest.approx(1.5, rel=0.05)


def test_a_fixed_number_of_failures_comes_at_uniform_hours() -> None:
    """Each draw has exactly so many, of the profile's number of distinct ranks, anywhere in the job.

    With ``within_h`` it is the same ranks, and hours in proportion.
    """
    five = {"model": "fixed", "number": 5}
    traces = [deaths(drawn(five, seed, ranks_per_failure=2)) for seed in range(100)]
    for trace in traces:
        assert len({hour for hour, _ in trace}) == 5
        assert len(set(trace)) == len(trace) == 10
    hours = [hour for trace in traces for hour, _ in trace]
    assert sum(hours) / len(hours) == pytest.approx(50, abs=4)  # 2.7 standard errors
    uniform, early = drawn(five), drawn(five | {"within_h": 10})
    assert drawn(five, goes_on=True) == uniform  # on the wall clock too
    assert deaths(early) == [(pytest.approx(hour / 10, abs=1e-6), who) for hour, who in deaths(uniform)]


def test_failures_at_given_hours_differ_in_their_ranks_alone() -> None:
    """Every draw has these hours; the first failure of a seed takes the same ranks at another hour."""
    law = {"model": "at", "hours": [7, 14.5]}
    traces = [deaths(drawn(law, seed, ranks_per_failure=2)) for seed in range(20)]
    assert {tuple(hour for hour, _ in trace) for trace in traces} == {(7, 7, 14.5, 14.5)}
    assert len({tuple(trace[:2]) for trace in traces}) > 3
    for seed, trace in enumerate(traces):
        assert deaths(drawn({"model": "at", "hours": [30]}, seed, ranks_per_failure=2)) == [
            (30, who) for _, who in trace[:2]
        ]


@pytest.mark.parametrize(
    ("law", "name"),
    [
        ("llama3", "llama3"),
        ({"base": "llama3", "mtbf_h": 5}, "llama3_mtbf5"),
        ({"model": "exponential"}, "exponential"),
        ({"mtbf_h": 5.6, "nodes": 64}, "exponential_mtbf5.6_nodes64"),
        ({"model": "weibull", "shape": 0.7, "per": "rank"}, "weibull_shape0.7_per_rank"),
        ({"base": "lanl20", "model": "gamma", "shape": 2}, "lanl20_gamma_shape2"),
        ({"model": "fixed", "number": 5}, "fixed5"),
        ({"model": "fixed", "number": 5, "within_h": 5.6}, "fixed5_within5.6"),
        ({"model": "at", "hours": [7, 14.5]}, "at7_14.5"),
        ({"model": "fit", "trace": "logs/mine.csv"}, "fit_mine"),
        ({"model": "fixed", "number": 5, "name": "mine"}, "mine"),
    ],
)
def test_a_drawn_trace_is_named_by_its_law_and_seed(law: str | dict[str, Any], name: str) -> None:
    """A law has the name of a published one, or says what differs; the config of a run has all its keys."""
    config = Config.model_validate({"seed": 7, "trace": {"law": law}})
    assert config.trace_name == f"{name}-7"
    assert Config.model_validate(config.model_dump(mode="json")) == config


def test_keys_of_a_law_replace_those_of_its_base() -> None:
    """A key, and those that describe the same: an MTBF of a node that of the system, another model the shape."""
    spot = law_of(base="spot_p3", node_mtbf_h=7)
    assert (spot.mtbf_h, spot.nodes, spot.node_mtbf_h, len(spot.group_sizes)) == (None, None, 7, 5)
    assert law_of(base="spot_p3", group_probability=0).group_sizes == ()
    fixed = law_of(base="lanl20", model="fixed", number=5)
    assert (fixed.shape, fixed.mtbf_h, fixed.repair_mean_h) == (None, None, None)
    gamma = law_of(base="lanl20", model="gamma", shape=2)
    assert (gamma.shape, gamma.mtbf_h, gamma.repair_mean_h) == (2, 13.2, 3.5)


@pytest.mark.parametrize("model", ["exponential", "gamma"])
def test_a_law_without_rate_and_groups_has_those_of_the_profile(model: str) -> None:
    """Of every model, as ``exponential``; a law's own come first."""
    shape = {"shape": 1.0} if model == "gamma" else {}
    profile: dict[str, Any] = {"mtbf_h": 5, "ranks_per_failure": 2}
    hours = [hour for hour, _ in deaths(drawn({"model": model, **shape}, **profile))]
    assert hours[::2] == hours[1::2]
    assert hours == pytest.approx([hour for hour, _ in deaths(drawn("exponential", **profile))], rel=1e-6)
    own = drawn({"model": model, **shape, "mtbf_h": 5, "group_probability": 0.0})
    assert [hour for hour, _ in deaths(own)] == pytest.approx(sorted(set(hours)), rel=1e-6)


def test_a_law_learned_from_a_trace_is_drawn_again(tmp_path: Path) -> None:
    """A run has the failures of a law that has the gaps of a trace."""
    (tmp_path / "log.csv").write_text(LOG.replace("ranks: 2", "ranks: 4"))
    law = {"model": "empirical", "trace": str(tmp_path / "log.csv")}
    assert len(drawn(law).entries) > 5
    config = Config.model_validate({"seed": 7, "trace": {"law": law}})
    assert planned_faults_of(config, total_samples=128_000, num_steps=1000)


def test_a_random_window_is_drawn_by_the_traces_seed(tmp_path: Path) -> None:
    firsts: set[float] = set()
    for seed in range(20):
        trace = job_trace(config_of(tmp_path, window="random", seed=seed))
        assert trace is not None
        first_h, last_h = map(float, trace.header["window_h"].split("-"))
        assert last_h - first_h == pytest.approx(10)
        assert 0 <= first_h <= 30
        expected = [entry.line for entry in read().entries if first_h <= entry.hour < last_h]
        assert [entry.line for entry in trace.entries] == expected
        firsts.add(first_h)
    assert len(firsts) == 20
    assert config_of(tmp_path, window="random", seed=3).trace_name == "log-3"


def test_a_window_that_ends_with_the_log_has_its_last_failure() -> None:
    """Without a length in its header a log ends with a failure, which is the job's too where both end together."""
    log = parse_trace(["hour,rank", "4,ps0", "10,ps1", "40,ps0"], "log.csv")
    for kind in ("densest", "random"):
        assert deaths(on_job(log, TraceConfig(window=kind), job_h=40)) == deaths(log)
    assert deaths(on_job(log, TraceConfig(window="densest"), job_h=36)) == [(4, "ps0"), (10, "ps1")]
    for seed in range(200):
        part = on_job(log, TraceConfig(window="random"), job_h=39.994, seed=seed)
        first_h, last_h = map(float, part.header["window_h"].split("-"))
        assert 0 <= first_h < last_h <= 40


@pytest.mark.parametrize(("job_h", "length_h"), [(12.1, 13.6125), (0.7, 0.9625), (2 / 3, 0.875)])
def test_a_windows_last_failure_does_not_depend_on_rounding(job_h: float, length_h: float) -> None:
    """Law: it strikes at the job's end, and not after it, though the sum of two hours is not exact."""
    log = parse_trace(["hour,rank", f"{length_h - job_h / 40},ps0", f"{length_h},ps1"], "log.csv")
    (_, last) = on_job(log, TraceConfig(window="densest"), job_h=job_h).entries
    assert last.hour == pytest.approx(job_h)
    assert last.hour <= job_h


def test_a_law_that_does_not_fit_is_refused() -> None:
    with pytest.raises(TraceError, match=r"profile.ranks_per_failure: expected at most 4 ranks, got 5"):
        drawn({"model": "fixed", "number": 1}, ranks_per_failure=5)
    for key, keys, last in (
        ("within_h", {"model": "fixed", "number": 5, "within_h": 101}, 101),
        ("hours", {"model": "at", "hours": [7, 100.5]}, 100.5),
    ):
        with pytest.raises(TraceError, match=rf"trace.law.{key}: expected at most the job's 100 h, got {last}"):
            drawn(keys)
    for key, value in (("path", "a.csv"), ("window", "densest"), ("stretch", True)):
        with pytest.raises(
            ValidationError, match=rf"{key}: expected none with a trace.law \(exponential\), got {value}; trace\.{key}="
        ):
            Config.model_validate({"trace": {"law": "exponential", key: value}})
