"""The trace that a job meets: its hours, its constants, and what does not fit."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.config.derived import job_costs
from harness.config.model import Config, TraceConfig
from harness.core.errors import ConfigError, TraceError
from harness.traces.job_trace import job_trace, on_job, with_profile_of_trace
from harness.traces.mismatch import mismatches
from harness.traces.schedule import planned_faults_of
from harness.traces.trace import Trace, parse_trace

LOG = "# length_h: 40\n# ranks: 2\nhour,rank,repair_h\n1,ps0,2\n9,ps1,\n21,ps0,3\n22,ps1,\n23,ps1,4\n39,ps0,\n"
"""Six failures in 40 h; the densest 10 h are 20 to 30 (windows start every 0.625 h), the quietest have none."""


PHASED = (
    "# length_h: 40\n# ranks: 2\nhour,rank,repair_h,phase\n1,ps0,2,\n9,ps1,,apply\n21,ps0,3,\n22,ps1,,\n23,ps1,4,save\n"
    "39,ps0,,\n"
)
"""The same, two of them in a phase."""


def read(text: str = LOG) -> Trace:
    """Parse a text as ``log.csv``."""
    return parse_trace(text.splitlines(), "log.csv")


def config_of(folder: Path, text: str, **trace: object) -> Config:
    """A job of 10 h with a tiny MTBF and two PS ranks under a trace of this text."""
    (folder / "log.csv").write_text(text)
    profile = {"base": "busy", "job_h": 10, "num_ps": 2}
    return Config.model_validate({"profile": profile, "trace": {"path": str(folder / "log.csv"), **trace}})


def said(config: Config, *, total_samples: int = 128_000, is_planned: bool = False) -> list[str]:
    """What does not fit."""
    config = with_profile_of_trace(config)
    return list(mismatches(config, job_costs(config, total_samples), is_planned=is_planned))


@pytest.mark.parametrize(
    ("mapping", "lines", "hours", "repairs_h", "phases"),
    [
        ({"window": "densest"}, [6, 7, 8], [7.875, 8.875, 9.875], [3, None, 4], ["boundary", "boundary", "save"]),
        ({"window": "quietest"}, [], [], [], []),
        (
            *({"stretch": True}, [4, 5, 6, 7, 8, 9], [0.25, 2.25, 5.25, 5.5, 5.75, 9.75]),
            *([0.5, None, 0.75, None, 1, None], ["boundary", "apply", "boundary", "boundary", "save", "boundary"]),
        ),
    ],
)
def test_a_part_of_a_trace_is_as_long_as_the_job(
    mapping: Any, lines: list[int], hours: list[float], repairs_h: list[float | None], phases: list[str]
) -> None:
    """A window's first hour is hour 0; entries keep their lines, so that drawn ranks stay, phases and further columns.

    Repairs keep their length in a window, and scale with the hours where these are stretched.
    """
    whole = read(PHASED)
    trace = on_job(whole, TraceConfig(**mapping), job_h=10)
    assert [entry.line for entry in trace.entries] == lines
    assert [entry.hour for entry in trace.entries] == hours
    assert [(entry.repair_h, entry.phase) for entry in trace.entries] == [*zip(repairs_h, phases, strict=True)]
    assert [entry.extra for entry in trace.entries] == [e.extra for e in whole.entries if e.line in lines]
    assert trace.header["length_h"] == "10"
    assert on_job(whole, TraceConfig(), job_h=10) == whole


def test_what_cannot_be_mapped_is_refused() -> None:
    """A window longer than the trace, and two mappings at once: one line each."""
    with pytest.raises(TraceError, match=r"log.csv: trace.window=median: expected .* \(56 h\), got 40 h"):
        on_job(read(), TraceConfig(window="median"), job_h=56)
    with pytest.raises(ConfigError, match=r"trace.window, trace.stretch: expected one of them, got both"):
        on_job(read(), TraceConfig(window="median", stretch=True), job_h=10)


def test_kills_are_those_of_the_mapped_trace(tmp_path: Path) -> None:
    """A run under a window kills at the window's hours, and is refused without one."""
    config = config_of(tmp_path, LOG)
    with pytest.raises(TraceError, match=r"log.csv:6: expected an hour up to the end of the job .* trace.window"):
        planned_faults_of(config, total_samples=12_800, num_steps=100)
    config = config_of(tmp_path, LOG, stretch=True, repair="reschedule")
    kills = planned_faults_of(config, total_samples=12_800, num_steps=100)
    assert [(kill.step, kill.ranks, kill.repair_h) for kill in kills] == [
        (3, ("ps0",), 0.5), (23, ("ps1",), None), (53, ("ps0",), 0.75), (55, ("ps1",), None), (58, ("ps1",), 1),
        (98, ("ps0",), None),
    ]  # fmt: skip


def test_a_profile_takes_the_constants_of_the_trace_as_the_job_meets_it(tmp_path: Path) -> None:
    """MTBF and ranks per failure; the other constants are its base's, and the name says whose."""
    config = config_of(tmp_path, LOG.replace("9,ps1,", "9,ps0,\n9,ps1,"), stretch=True)
    config = config.model_copy(update={"profile": config.emulated.model_copy(update={"from_trace": True})})
    found = with_profile_of_trace(config).emulated
    assert (found.mtbf_h, found.ranks_per_failure) == (pytest.approx(10 / 6), pytest.approx(7 / 6))
    assert (found.name, found.from_trace) == ("busy*(log)", False)
    assert found.o_save_h == config.emulated.o_save_h
    with pytest.raises(ConfigError, match=r"profile.from_trace: expected a failure trace \(trace.path\), got none"):
        with_profile_of_trace(Config(profile="from_trace"))


@pytest.mark.parametrize("name", ["busy", "poster50", "cpr56"])
def test_a_shipped_trace_fits_its_profile(name: str) -> None:
    """Nothing is said of the traces that were made for a profile."""
    path = {"busy": "busy.csv", "poster50": "poster50.csv", "cpr56": "two_in_56h.csv"}[name]
    config = Config.model_validate({"profile": name, "trace": {"path": f"failure_traces/{path}"}})
    assert said(config) == []
    assert job_trace(config) is not None


MANY = " ".join(f"{k / 4},ps0," for k in range(40))


@pytest.mark.parametrize(
    ("length_h", "ranks", "rows", "sentence"),
    [
        (5, 2, "4,ps0,", "the trace lasts 5 h, the job 10 h: no failure after hour 4; "),
        (15, 2, "4,ps0,", "the trace lasts 15 h, the job 10 h: the rest is left out; "),
        (None, 2, "1,ps0, 2,ps1,", "the last failure of the trace is at 2 h, the job 10 h: no failure "),
        (
            10,
            2,
            MANY,
            "MTBF 0.25 h in the trace (40 failures in 10 h), 5.6 h in profile busy*, by which intervals",
        ),
        (
            10,
            2,
            "4,ps0, 4,ps1,",
            "2 ranks per failure in the trace, 1 in profile busy*; profile.from_trace=true",
        ),
        (10, 9, "4,ps0,", "9 ranks in the trace, 2 PS ranks in the job: failures of the others cannot happen; cluster"),
        (
            10,
            1,
            "4,ps0,",
            "1 ranks in the trace, 2 PS ranks in the job: ranks from ps1 on never fail; cluster",
        ),
        (10, 2, "4,ps0, 4.001,ps1, 4.002,ps0, 9,ps1,", "4 failure instants fall on 3 boundaries between steps, and "),
        (10, 2, "4,ps0,30", "repair times of the trace (30 h) are not charged: a failure costs O_res, 3 min, as if "),
    ],
)
def test_each_mismatch_is_said_in_one_sentence(
    tmp_path: Path, length_h: float | None, ranks: int, rows: str, sentence: str
) -> None:
    """What the trace has, what the job has, and what to do."""
    length = "" if length_h is None else f"# length_h: {length_h}\n"
    (found,) = said(config_of(tmp_path, f"{length}# ranks: {ranks}\nhour,rank,repair_h\n" + "\n".join(rows.split())))
    assert found.startswith(sentence)


def test_repairs_longer_than_the_job_are_said_where_they_are_charged(tmp_path: Path) -> None:
    """If they are asked for and fit in the job, nothing is said."""
    text = "# length_h: 10\n# ranks: 2\nhour,rank,repair_h\n4,ps0,{}\n"
    (found,) = said(config_of(tmp_path, text.format(30), repair="reschedule"))
    assert found.startswith("repair times of 30 h are charged to a job of 10 h, which waits for its nodes; ")
    assert said(config_of(tmp_path, text.format(3), repair="reschedule")) == []


def test_a_plan_says_nothing_of_steps(tmp_path: Path) -> None:
    """Closed forms have none; of hours they say what is assumed."""
    text = "# length_h: 5\n# ranks: 2\nhour,rank\n4,ps0\n4.001,ps1\n"
    (found,) = said(config_of(tmp_path, text), is_planned=True)
    assert found.startswith("the trace lasts 5 h, the job 10 h: the trace's MTBF is taken for the job; --stretch ")


def drawn(law: str, seed: int = 0, *, goes_on: bool = False, **profile: object) -> Trace:
    """The trace of a job of 100 h on four ranks."""
    config = Config.model_validate(
        {
            "seed": seed,
            "profile": {"base": "busy", "job_h": 100, "num_ps": 4, "mtbf_h": 10, **profile},
            "trace": {"law": law},
        }
    )
    trace = job_trace(config, goes_on=goes_on)
    assert trace is not None
    return trace


@pytest.mark.parametrize("law", ["exponential", "llama3", "spot_p3", "poster50"])
def test_a_law_gives_each_seed_a_trace_of_the_job(law: str) -> None:
    """As long as the job, of its ranks, the same again for the same seed; on the wall clock its beginning stays."""
    trace, other = drawn(law), drawn(law, seed=1)
    assert trace == drawn(law)
    assert trace.entries != other.entries
    assert trace.header["length_h"] == "100"
    assert {entry.who for entry in trace.entries} <= {f"ps{k}" for k in range(4)}
    longer = drawn(law, goes_on=True)
    assert [(e.hour, e.who) for e in longer.entries if e.hour < 100] == [(e.hour, e.who) for e in trace.entries]
    assert longer.entries[-1].hour > 100


def test_the_exponential_law_is_the_profiles() -> None:
    """Over 300 draws: a failure in ten hours, of 1.5 ranks on average."""
    traces = [drawn("exponential", seed, ranks_per_failure=1.5) for seed in range(300)]
    num_instants = sum(len({entry.hour for entry in trace.entries}) for trace in traces)
    num_deaths = sum(len(trace.entries) for trace in traces)
    assert num_instants == pytest.approx(3000, rel=0.05)  # 2.7 standard deviations
    assert num_deaths / num_instants == pytest.approx(1.5, rel=0.05)


def test_a_fixed_number_of_failures_comes_at_uniform_hours() -> None:
    """Each draw has exactly so many, of the profile's number of distinct ranks, anywhere in the job."""
    traces = [drawn("fixed:5", seed, ranks_per_failure=2) for seed in range(100)]
    for trace in traces:
        deaths = [(entry.hour, entry.who) for entry in trace.entries]
        assert len({hour for hour, _ in deaths}) == 5
        assert len(set(deaths)) == len(deaths) == 10
    hours = [entry.hour for trace in traces for entry in trace.entries]
    assert sum(hours) / len(hours) == pytest.approx(50, abs=4)  # 2.7 standard errors
    assert drawn("fixed:5", goes_on=True) == drawn("fixed:5")  # on the wall clock too


def test_failures_of_the_first_hours_are_the_same_ones_earlier() -> None:
    """Of a law with ``@H``: the same ranks, and hours in proportion to H."""
    early, uniform = drawn("fixed:5@10"), drawn("fixed:5")
    assert [entry.who for entry in early.entries] == [entry.who for entry in uniform.entries]
    assert [entry.hour for entry in early.entries] == pytest.approx([e.hour / 10 for e in uniform.entries], abs=1e-6)


def test_failures_at_given_hours_differ_in_their_ranks_alone() -> None:
    """Every draw has these hours; the first failure of a seed takes the same ranks at another hour."""
    traces = [drawn("at:7+14.5", seed, ranks_per_failure=2) for seed in range(20)]
    assert {tuple(entry.hour for entry in trace.entries) for trace in traces} == {(7, 7, 14.5, 14.5)}
    assert len({tuple(entry.who for entry in trace.entries[:2]) for trace in traces}) > 3
    for seed, trace in enumerate(traces):
        other = drawn("at:30", seed, ranks_per_failure=2)
        assert [entry.who for entry in other.entries] == [entry.who for entry in trace.entries[:2]]
    assert Config.model_validate({"seed": 7, "trace": {"law": "at:7+14.5"}}).trace_name == "at7+14.5-7"


def test_a_law_learned_from_a_trace_is_drawn_again(tmp_path: Path) -> None:
    """Gaps, as ``trace generate --model`` learns them; the trace's name has the law, the file and the draw."""
    (tmp_path / "log.csv").write_text(LOG.replace("# length_h: 40", "# length_h: 40\n# ranks: 4"))
    law = f"empirical:{tmp_path / 'log.csv'}"
    assert len(drawn(law).entries) > 5
    config = Config.model_validate({"seed": 7, "trace": {"law": law}})
    assert config.trace_name == "empirical_log-7"
    assert planned_faults_of(config, total_samples=128_000, num_steps=1000)


def test_a_random_window_is_drawn_by_the_traces_seed(tmp_path: Path) -> None:
    """Each draw begins at another hour; ``trace.seed`` says which."""
    firsts = set()
    for seed in range(20):
        trace = job_trace(config_of(tmp_path, LOG, window="random", seed=seed))
        assert trace is not None
        first_h, last_h = map(float, trace.header["window_h"].split("-"))
        assert last_h - first_h == pytest.approx(10)
        assert 0 <= first_h <= 30
        assert [entry.line for entry in trace.entries] == [
            line for line, hour in enumerate((1, 9, 21, 22, 23, 39), start=4) if first_h <= hour < last_h
        ]
        firsts.add(first_h)
    assert len(firsts) == 20
    assert config_of(tmp_path, LOG, window="random", seed=3).trace_name == "log-3"


def test_a_law_that_does_not_exist_or_is_not_alone_is_refused() -> None:
    """One line each."""
    expected = r"trace.law: expected one of exponential, fixed:N, fixed:N@H, at:H\+H, cpr56, .*, got 'poisson'"
    with pytest.raises(ConfigError, match=expected):
        drawn("poisson")
    with pytest.raises(TraceError, match=r"fits:log.csv; expected fit:TRACE.csv or empirical:TRACE.csv"):
        drawn("fits:log.csv")
    with pytest.raises(TraceError, match=r"trace.law=fixed:0: expected fixed:N with 1 to 10000 failures, got '0'"):
        drawn("fixed:0")
    with pytest.raises(TraceError, match="expected fixed:N with 1 to 10000 failures, got '9999"):
        drawn(f"fixed:{'9' * 5000}")  # more digits than Python makes a number of
    for hours in ("0", "101", "early"):
        with pytest.raises(
            TraceError, match=rf"expected fixed:N@H with H above 0 and at most 100 hours, got '{hours}'"
        ):
            drawn(f"fixed:5@{hours}")
    for text in ("", "seven", "7+", "14+7", "7+7", "-1", "7+101", "nan"):
        with pytest.raises(TraceError, match=rf"ascending hours from 0 to 100, got {text!r}".replace("+", r"\+")):
            drawn(f"at:{text}")
    with pytest.raises(TraceError, match=r"profile.ranks_per_failure: expected at most 4 ranks, got 5"):
        drawn("fixed:1", ranks_per_failure=5)
    for key, value in (("path", "a.csv"), ("window", "densest"), ("stretch", True)):
        with pytest.raises(ValidationError, match=f"{key}: expected none with trace.law=exponential, got {value}"):
            Config.model_validate({"trace": {"law": "exponential", key: value}})
