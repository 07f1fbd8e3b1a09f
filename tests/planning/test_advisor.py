"""The advisor: closed forms, where the decision flips, and that chance agrees with both."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import run as command_line
from harness.config.laws import Law
from harness.core.criteo_sizes import KAGGLE_CARDINALITIES
from harness.core.overhead import expected_pls, o_full_h, o_part_h, t_save_full_h, t_save_part_h
from harness.core.plans import Costs
from harness.core.strategies import CprPriority, make_strategy, options_of
from harness.planning.advisor import advise, flips, full_buckets, outcomes, part_buckets, planned_kills_at
from harness.traces.generate import generate_many
from harness.traces.spec import GeneratorSpec
from tests.known_jobs import CPR56, planned_under, small_job

LONG = replace(CPR56, job_h=2000, mtbf_h=20, pls_target=0.01, total_samples=200_000_000)
"""A job of many failures, many saves and short steps, where the closed forms hold."""


def test_cpr56_gives_the_published_levels() -> None:
    """8.5 % against 0.53 % of the job; intervals of 2.29 h and 44.8 h."""
    options = CprPriority.Options(name="cpr_mfu")
    advice = advise(CPR56, options, KAGGLE_CARDINALITIES, embedding_dim=16, row_width=16, num_tracked=7)
    assert advice.decision == "partial"
    assert advice.full.interval_h == pytest.approx(2.286, abs=1e-3)
    assert advice.partial.interval_h == pytest.approx(44.8)
    assert advice.full.overhead.total_h / 56 == pytest.approx(0.0849, abs=1e-4)
    assert advice.partial.overhead.total_h / 56 == pytest.approx(0.00536, abs=1e-5)
    assert advice.partial.pls == pytest.approx(0.1)
    assert {each.name: round(each.frac, 4) for each in advice.trackers} == {
        "cpr_scar": 0.9958,
        "cpr_mfu": 0.0622,
        "cpr_mass": 0.0625,
        "cpr_ssu": 0.0097,  # r of 0.0622, and a bit for each row of 64 bytes
        "differential": 0.0645,
        "cpr_mirror, at the trainer": 0.0177,
        "buddy": 1.0625,  # the rows again, and their counters
    }


PRICED = replace(CPR56, load="by_bytes", o_save_fixed_h=0.01, snapshot_frac=0.3)


@pytest.mark.parametrize("costs", [CPR56, PRICED], ids=["default", "priced"])
def test_buckets_add_up_to_the_closed_forms(costs: Costs) -> None:
    for interval_h in (0.05, 3.0, 40.0):
        assert full_buckets(costs, interval_h).total_h == pytest.approx(o_full_h(costs, interval_h))
        assert part_buckets(costs, interval_h).total_h == pytest.approx(o_part_h(costs, interval_h))


def test_flips_are_those_of_the_closed_form() -> None:
    """Where loads cost the same in both: P N sqrt(F) / k = sqrt(O_save / 8)."""
    found = flips(CPR56)
    for value in (found.pls_target * 8 * 28**0.5, 0.1 * 8 * found.mtbf_h**0.5, 0.1 * found.num_ps * 28**0.5):
        assert value == pytest.approx((CPR56.o_save_h / 8) ** 0.5, rel=1e-10)
    assert found.num_ps_scaled == pytest.approx(CPR56.o_save_h / 8 / 0.1**2 / (8 * 28), rel=1e-10)


@pytest.mark.parametrize("prices", [{}, {"load": "by_bytes"}, {"o_save_fixed_h": 0.05, "snapshot_frac": 0.5}])
@pytest.mark.parametrize("counts_ranks", [True, False])
def test_the_strategy_turns_where_the_flips_say(*, counts_ranks: bool, prices: dict[str, Any]) -> None:
    """A hundredth below a flip cpr_vanilla falls back to full recovery, a hundredth above it does not."""
    # So that N flips at a number of ranks large enough to be changed by a hundredth.
    costs = replace(CPR56, num_ps=800, pls_target=1e-5, ranks_per_failure=4, total_samples=10**12, **prices)
    turns = flips(costs, counts_ranks=counts_ranks)
    settings = options_of("cpr_vanilla", interval_counts_ranks=counts_ranks)
    for factor, falls_back in ((0.99, True), (1.01, False)):
        num_ps, scaled = round(turns.num_ps * factor), round(turns.num_ps_scaled * factor)
        for changes in (
            {"pls_target": turns.pls_target * factor},
            {"mtbf_h": turns.mtbf_h * factor},
            {"num_ps": num_ps},
            {"num_ps": scaled, "mtbf_h": costs.mtbf_h * costs.num_ps / scaled},
        ):
            assert make_strategy(settings, replace(costs, **changes)).interval.fallback is falls_back, changes


def test_simulated_runs_agree_with_the_closed_forms() -> None:
    """Mean overhead of full and vanilla, and E[PLS], within four standard errors and the one save that an end costs."""
    job, num = small_job(LONG), 80
    spec = GeneratorSpec(law=Law(mtbf_h=LONG.mtbf_h), ranks=LONG.num_ps, job_h=LONG.job_h)
    deaths = generate_many(spec, 7, num)
    schedules = [planned_kills_at(*deaths.of(k), job) for k in range(num)]
    full, vanilla = (outcomes(options_of(name), job, schedules) for name in ("full", "cpr_vanilla"))
    part_h = t_save_part_h(LONG)
    one_save, pls = LONG.o_save_h / LONG.job_h, expected_pls(LONG, part_h)
    for found, formula, slack in (
        (full[:, 0], o_full_h(LONG, t_save_full_h(LONG)) / LONG.job_h, one_save),
        (vanilla[:, 0], o_part_h(LONG, part_h) / LONG.job_h, one_save),
        (vanilla[:, 1], pls, 0.02 * pls),  # a rank that dies twice between saves is charged once
    ):
        error = np.std(found, ddof=1) / np.sqrt(len(found))
        assert abs(found.mean() - formula) < 4 * error + slack


def test_drawn_strikes_are_those_of_the_same_trace() -> None:
    job = small_job(CPR56)
    hours, ranks = np.array([0.0, 3.3, 3.3, 3.30001, 56.0]), np.array([1, 2, 5, 2, 7])
    lines = [f"{hour!r},ps{rank}" for hour, rank in zip(hours.tolist(), ranks.tolist(), strict=True)]
    planned = planned_under(["hour,rank", *lines], CPR56, 100)
    of_drawn, of_planned = (
        [(each.step, [(rank, strike.hour) for rank, strike in each.strikes.items()]) for each in some]
        for some in (planned_kills_at(hours, ranks, job), planned)
    )
    assert of_drawn == of_planned


# --- run.py plan ------------------------------------------------------------------------------------------------------


def run_plan(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = command_line.main(["plan", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("cpr5", "expected a profile or a trace file (TRACE.csv); did you mean cpr56?"),
        ("cpr56 --figure plan.pdf", ".svg or .png"),
        ("cpr56 --simulate 10 trace.law.model=pareto", "trace.law.model: 'pareto' is not one of exponential, gamma, "),
        (
            "cpr56 --simulate 10 trace.law.model=fit trace.law.trace=failure_traces/empty.csv",
            "empty.csv: 0 failures; at least 3 are needed",
        ),
        ("cpr56 trace.law.model=fixed trace.law.number=2", "trace.law.model: expected a law of gaps, got"),
        ("cpr56 --simulate 1", "--simulate: expected 2 or more traces, got 1"),
        ("cpr56 --figure plan.svg profile.o_save_h=0", "--figure: expected profile.o_save_h > 0, got 0"),
        ("cpr56 cluster.num_ps=4 profile.ranks_per_failure=5", "expected at most cluster.num_ps = 4, got 5"),
        ("failure_traces/empty.csv", "expected at least one failure, got none"),
        ("# length_h: soon\nhour,rank\n1,ps0\n", "t.csv: length_h 'soon' in its header; expected a number above 0"),
        ("hour,rank\n0,ps0\n", "unknown length; add '# length_h: HOURS' to its header"),
        ("# ranks: 2\nhour,rank\n1,3\n", "profile.ranks_per_failure: expected at most cluster.num_ps = 2, got 3"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, words: str, message: str) -> None:
    if "\n" in words:
        (tmp_path / "t.csv").write_text(words)
        words = str(tmp_path / "t.csv")
    code, out, err = run_plan(capsys, *words.split())
    assert (code, out, len(err.strip().splitlines())) == (2, "", 1)
    assert message in err


def test_simulated_spread_does_not_hang_on_the_processes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The same seed prints the same table, by the law of a trace's own gaps; a figure is written.

    Of a priced profile the prices and node-hours are told.
    """
    law = ("trace.law.model=fit", "trace.law.trace=failure_traces/preset-llama3.csv")
    words = ("cpr56_priced", "save.mode=async", "--simulate", "4", *law)
    said = [run_plan(capsys, *words, *figure)[1] for figure in ((), ("--figure", str(tmp_path / "0.svg")))]
    assert said[1].startswith(said[0])
    priced = "loads by bytes, 0.1 min more a save, a save in the background stalls 0.312 of its write"
    for text in ("cpr_vanilla", "4 traces (fit_preset-llama3)", priced, "node-hours"):
        assert text in said[0]
    assert (tmp_path / "0.svg").read_text().count("recovery") >= 2


def test_a_figure_that_finds_no_room_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It names the file."""
    figure = tmp_path / "plan.svg"
    figure.symlink_to("/dev/full")
    code, _, err = run_plan(capsys, "cpr56", "--figure", str(figure))
    assert (code, err) == (2, f"error: {figure}: cannot be written: No space left on device\n")


def test_plan_has_a_row_for_the_strategy_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Its options are accepted, and count: the share of a mirror in memory and in saves."""

    def planned(*words: str) -> tuple[dict[str, str], str]:
        code, out, err = run_plan(capsys, "cpr56_priced", "--simulate", "4", *words)
        assert (code, err) == (0, "")
        lines = [line.strip() for line in out.splitlines()]
        rows = lines[next(n for n, line in enumerate(lines) if line.startswith("strategy ")) + 1 :]
        return {line.split()[0]: line for line in rows}, next(line for line in lines if line.startswith("memory"))

    default, memory = planned()
    assert "cpr_mirror" not in default
    assert "cpr_mirror, differential, buddy" in default["strategy.name=NAME"]
    assert "cpr_mirror, at the trainer 38.1 MB" in memory
    rows, memory = planned("strategy.name=cpr_mirror", "strategy.share=0.5")
    assert "cpr_mirror, at the trainer 1,356.1 MB" in memory
    assert rows["cpr_mfu,"].split() == default["cpr_mfu,"].split()
    means = {name: float(line.partition(" h ")[2].split("%")[0]) for name, line in rows.items() if " h " in line}
    assert means["cpr_mirror"] > means["cpr_mfu,"]  # every eighth save also writes half of each tracked table
    assert "(at most)" in planned("strategy.name=differential", "strategy.bits=8")[0]["differential"]


def test_plan_of_a_trace_takes_its_constants(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Its MTBF and ranks; repairs if asked, as a run: of each failure the longest, O_res if unknown. Keys override."""
    path = tmp_path / "t.csv"
    path.write_text("# length_h: 40\nhour,rank,repair_h\n1,ps0,2\n1,ps1,4\n7,ps1,1\n9,ps2,\n30,ps3,\n")
    plain = "MTBF 10 h, 4 PS ranks, 1.25 lost per failure", "O_res 3 min"
    for words, texts in (
        ((), plain),
        (("trace.repair=reschedule",), (f"O_res {60 * (4 + 1) / 4 + 2 * 3 / 4:.3g} min",)),
        (("profile.o_res_h=0.5",), ("O_res 30 min",)),
        (("profile.mtbf_h=3", "cluster.num_ps=9"), ("MTBF 3 h, 9 PS ranks",)),
    ):
        said = run_plan(capsys, str(path), *words)[1]
        assert all(text in said for text in texts)
