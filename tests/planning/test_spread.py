"""The memory of strategies, planned kills of drawn traces, and `run.py plan`."""

from pathlib import Path

import numpy as np
import pytest

import run as command_line
from harness.config.model import Config
from harness.core.criteo_sizes import KAGGLE_CARDINALITIES
from harness.core.strategies import BUILT_IN, STRATEGIES
from harness.planning.spread import memory_bytes, planned_kills_at
from tests.known_jobs import CPR56, planned_under, small_job


def test_memory_is_that_of_the_tracker_replica_or_mirror() -> None:
    """As fractions of Kaggle's tables."""
    tables_bytes = sum(KAGGLE_CARDINALITIES) * 16 * 4
    found = {
        name: memory_bytes(Config.model_validate({"strategy": {"name": name}}), CPR56, KAGGLE_CARDINALITIES)
        for name in BUILT_IN
    }
    assert {name: round((num or 0) / tables_bytes, 4) for name, num in found.items() if num != 0} == {
        "cpr_mfu": 0.0622,
        "cpr_random": 0.0622,
        "cpr_ssu": 0.0097,  # r of 0.0622, and a bit for each row of 64 bytes
        "cpr_mass": 0.0625,
        "cpr_scar": 0.9958,
        "cpr_mirror": 0.0799,  # 0.0177 at the trainer, and the counters of cpr_mfu
        "differential": 0.0645,
        "buddy": 1.0625,  # the rows again, and their counters
        "parity": 0.25,
        "cpr_oldest": 0.0156,
        "cpr_state": 0.0622,
    }


def test_drawn_strikes_are_those_of_the_same_trace() -> None:
    job = small_job(CPR56)
    hours, ranks = np.array([0.0, 3.3, 3.3, 3.30001, 56.0]), np.array([1, 2, 5, 2, 7])
    lines = [f"{hour!r},ps{rank},360" for hour, rank in zip(hours.tolist(), ranks.tolist(), strict=True)]
    planned = planned_under(["hour,rank,notice_s", *lines], CPR56, 100)
    of_drawn, of_planned = (
        [(each.step, [(rank, of.hour, of.notice_h) for rank, of in each.strikes.items()]) for each in some]
        for some in (planned_kills_at(hours, ranks, job, notice_h=0.1), planned)
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
        ("cpr5", "expected a profile (or FILE.yaml of one) or a trace file (TRACE.csv); did you mean cpr56?"),
        ("cpr56 --simulate 10 trace.law.model=pareto", "trace.law.model: 'pareto' is not one of exponential, gamma, "),
        (
            "cpr56 --simulate 10 trace.law.model=fit trace.law.trace=failure_traces/empty.csv",
            "empty.csv: 0 failures; at least 3 are needed",
        ),
        ("cpr56 trace.law.model=fixed trace.law.number=2", "trace.law.model: expected a law of gaps, got"),
        ("cpr56 --simulate 1", "--simulate: expected 2 or more traces, got 1"),
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


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, dict[str, list[str]]]:
    """What `plan cpr56_priced` prints over 4 traces, and the cells of the table by strategy."""
    code, out, err = run_plan(capsys, "cpr56_priced", "--simulate", "4", *words)
    assert (code, [line for line in err.splitlines() if " is left out: " not in line]) == (0, [])
    lines = [line.split() for line in out.splitlines()]
    return out, {words[0]: words[1:] for words in lines if words and words[0] in STRATEGIES}


def test_a_report_does_not_hang_on_the_processes(capsys: pytest.CaptureFixture[str]) -> None:
    """The same seed prints the same table, by the law of a trace's own gaps."""
    law = ("trace.law.model=empirical", "trace.law.trace=failure_traces/preset-llama3.csv", "trace.law.mtbf_h=28")
    said = [planned(capsys, "save.mode=async", *law, f"trace.seed={seed}")[0] for seed in (0, 0, 1)]
    assert said[0] == said[1] != said[2]
    assert "4 traces (empirical_preset-llama3_mtbf28), means" in said[0]


def test_a_report_has_all_strategies_and_their_options_count(capsys: pytest.CaptureFixture[str]) -> None:
    """The share of a mirror counts in memory and in saves; a strategy that the keys do not fit is named."""
    out, rows = planned(capsys)
    assert rows.keys() == {*BUILT_IN} - {"none", "cpr_state"}, "sgd has no state"
    assert "decision: partial recovery; cpr_vanilla has 9" in out
    assert rows["cpr_mfu"][-2:] == ["134.5", "MB"]
    _, others = planned(capsys, "strategy.name=cpr_mirror", "strategy.share=0.5")
    assert others["cpr_mirror"][-2:] == ["1,490.6", "MB"]
    assert others["cpr_mfu"] == rows["cpr_mfu"]
    means = [float(each["cpr_mirror"][2].rstrip("%")) for each in (rows, others)]
    assert means[1] > means[0]  # every eighth save also writes half of each tracked table
    _, alone = planned(capsys, "cluster.num_ps=1")
    assert "buddy" not in alone
    assert "full recovery" in planned(capsys, "strategy.pls_target=1e-6")[0].partition("decision: ")[2]
    wall = ("trace.clock=wall", "profile.step_frac={ssu: 0.02}")
    assert "cpr_mfu" not in planned(capsys, *wall)[1], "its steps have no price"
    code, _, err = run_plan(capsys, "cpr56", *wall, "strategy.name=cpr_mfu")
    assert (code, err.count("profile.step_frac: expected a price of mfu")) == (2, 1)
    _, _, err = run_plan(capsys, "cpr56", "--simulate", "2")
    assert err.startswith("note: cpr_state is left out: trainer.optimizer: expected ")


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
        said = run_plan(capsys, str(path), "--simulate", "2", *words)[1]
        assert all(text in said for text in texts)
