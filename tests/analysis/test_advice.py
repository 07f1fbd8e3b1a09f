"""Verdicts on strategies: what is shown at a margin, and what is open."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import analysis
from analysis.load import COLUMNS
from analysis.stats import (
    DEFAULT_MARGIN,
    MEASURES,
    Block,
    Line,
    Verdict,
    regimes_of,
    verdicts,
    verdicts_of,
)
from analysis.tables import advice, comparisons
from analysis.tables.strategies import Format
from tests.made_runs import made_config, write_run


def line(strategy: str, overhead: float, *differences: float) -> Line:
    """A strategy with its emulated overhead and its paired differences of AUC."""
    num = range(len(differences))
    cells = {
        "seed": num,
        "draw": num,
        "overhead_frac": overhead,
        "auc_difference": differences,
        "loss": [-each for each in differences],
    }
    return Line(strategy, strategy, pd.DataFrame(cells))


FULL = line("full", 0.08, 0.0, 0.0, 0.0)
HARMLESS = line("cpr_mfu", 0.0053, -1e-4, 0.5e-4, -0.5e-4, 0.0)
HARMFUL = line("cpr_vanilla", 0.0049, -2e-3, -2.1e-3, -1.9e-3)
WIDE = line("cpr_ssu", 0.004, -3e-3, 1e-3, -1e-3)


def found(*lines: Line, margin: float = DEFAULT_MARGIN) -> dict[str, Verdict]:
    """The verdicts by strategy, in a setting with a reference."""
    block = Block({}, "", [line("none", 0.0, 0.0, 0.0, 0.0), *lines])
    return {each.strategy: each for each in verdicts(block, margin)}


def test_each_strategy_has_the_verdict_that_its_seeds_show() -> None:
    """Below the margin, above it, undecided, or equal since nothing was lost; ordered by overhead, without `none`."""
    result = found(FULL, HARMLESS, HARMFUL, WIDE)
    assert [(name, each.verdict) for name, each in result.items()] == [
        ("cpr_ssu", "open"),
        ("cpr_vanilla", "inferior"),
        ("cpr_mfu", "non-inferior"),
        ("full", "equal by construction"),
    ]
    assert result["cpr_vanilla"].loss.mean == pytest.approx(2e-3)
    assert found(HARMFUL, margin=0.01)["cpr_vanilla"].verdict == "non-inferior", "the margin decides"
    assert found(HARMLESS, margin=1e-6)["cpr_mfu"].verdict == "open"


@pytest.mark.parametrize("what", ["pls", "update_pls", "lost_dense_frac"])
def test_nothing_that_loses_is_equal_by_construction(what: str) -> None:
    """Law: AUC may be equal by chance; what is not counted is taken as none."""
    for lost in (0.0, None, 0.002):
        own = replace(FULL, cells=FULL.cells.assign(**{what: lost}))
        verdict = found(own)["full"]
        assert (verdict.verdict == "equal by construction") == (not lost)
        assert ("no loss of AUC: equal to none in all cells" in verdict.sentence) == bool(lost)
    saved = replace(FULL, cells=FULL.cells.assign(pls=0.07, update_pls=0.0))
    assert found(saved)["full"].verdict == "equal by construction", "a save after each step keeps every update"
    assert "the same loss in all cells" in found(line("partial", 0.1, -1e-4, -1e-4))["partial"].sentence


def test_an_open_strategy_comes_with_the_seeds_that_would_decide() -> None:
    """The number is in the sentence; a smaller margin, nearer to the loss, asks for more. One seed has no spread."""
    wide, narrow = (found(WIDE, margin=margin)["cpr_ssu"] for margin in (4e-3, 3e-3))
    assert wide.more_seeds is not None
    assert narrow.more_seeds is None or narrow.more_seeds > wide.more_seeds
    assert f"{wide.more_seeds} more seeds to decide" in wide.sentence
    others = [line(f"custom{number}", 0.02, -3e-3, 1e-3, -1e-3) for number in range(6)]
    among = found(WIDE, *others, margin=4e-3)["cpr_ssu"].more_seeds
    assert among is None or among > wide.more_seeds, "at the level at which Holm's method tests the next one"
    single = found(line("cpr_mfu", 0.1, -5e-3))["cpr_mfu"]
    assert (single.verdict, single.more_seeds) == ("open", None)
    assert "one seed" in single.sentence


def test_the_front_holds_what_no_other_strategy_beats() -> None:
    """No other has a lower overhead and a lower mean loss: full is off the front beside a cheaper one without loss."""
    cheaper = line("cpr_mfu", 0.0053, 1e-4, 2e-4, 3e-4)
    for lines, front in (
        ((FULL, HARMLESS, HARMFUL, WIDE), ["cpr_ssu", "cpr_mfu", "full"]),
        ((FULL, cheaper), ["cpr_mfu"]),
    ):
        assert [name for name, each in found(*lines).items() if each.on_front] == front


def test_console_and_report_say_the_same(grid: Path, page: str) -> None:
    """Both name margin, verdicts, and once what would measure rounding; a folder of references has no verdicts.

    A cell that ran on both engines is one result: one setting, and as many seeds as without the copy.
    """
    frame: Any = analysis.load(grid)
    (regime,) = analysis.regimes_of(frame)
    full = next(line for line in regime.lines if line.strategy == "full")
    assert [*full.cells["engine"]] == ["local"] * 3
    text = str(advice(frame, 2e-3, explain=True))
    for verdict in verdicts(regime, 2e-3):
        assert verdict.sentence in text
        assert verdict.sentence in page
    for words in ("margin of 2·10⁻³", "Rounding: unknown"):
        assert [each.count(words) for each in (text, page)] == [1, 1]
    assert "Rounding" not in str(analysis.show_table(frame)) + str(advice(frame, 2e-3))
    assert advice(frame[frame["strategy"] == "none"]) is None


def cells(strategy: str, losses: Mapping[int, float], **values: Any) -> list[dict[str, Any]]:
    """Finished cells of a strategy by seed, with their loss of AUC; no digest of the model, so that none is equal."""
    fixed = {"engine": "local", "trace": "busy", "trace_law": "busy", "profile": "busy", "num_ps": 4, "status": "done"}
    made = {**dict.fromkeys(COLUMNS), **fixed, "strategy": strategy, "overhead_frac": 0.0, "pls": 0.5} | values
    return [{**made, "seed": seed, "auc": 0.75 - loss, "log_loss": 0.5} for seed, loss in losses.items()]


def test_strategies_are_compared_by_the_seeds_that_all_have() -> None:
    """Law: two strategies with equal runs have equal shared losses and the same place on the front, whatever their n.

    One that is equal by construction, or has two seeds among others with more, takes no seed from the others.
    """
    losses = {seed: 1e-4 * (seed % 3) + 1e-4 * (seed > 4) for seed in range(9)}
    few = {seed: losses[seed] for seed in range(5)}
    arms = {"cpr_mfu": losses, "cpr_random": few, "cpr_ssu": {seed: loss + 2e-5 for seed, loss in losses.items()}}
    frame = pd.DataFrame(
        [
            *cells("none", dict.fromkeys(range(9), 0.0), pls=0.0),
            *cells("full", dict.fromkeys(range(2), 0.0), pls=0.0, overhead_frac=0.1),
            *cells("partial", {0: 0.0, 1: 3e-4}, overhead_frac=0.2),
            *(cell for name, own in arms.items() for cell in cells(name, own, overhead_frac=0.01)),
        ]
    )
    (block,) = regimes_of(frame)
    result = {each.strategy: each for each in verdicts(block)}
    shared = {name: None if (own := each.line.shared) is None else own.loss for name, each in result.items()}
    assert shared["cpr_random"] == shared["cpr_mfu"] == result["cpr_random"].loss
    assert {name: None if own is None else own.num for name, own in shared.items()} == {
        "cpr_mfu": 5, "cpr_random": 5, "cpr_ssu": 5, "full": 2, "partial": None
    }  # fmt: skip
    assert result["cpr_mfu"].loss.num == 9
    assert {name for name, each in result.items() if each.on_front} == {"cpr_mfu", "cpr_random", "full"}
    text = " ".join(str(advice(frame)).split())
    assert "over the 5 pairs of seed and trace that all but partial have (seeds 0–4)" in text
    assert "over 9 seeds and 1 trace: full (10.00 % of the job; 2 seeds and 1 trace) loses nothing" in text
    assert "cpr_random (1.00 %; 5 seeds and 1 trace)" in text
    table: Any = analysis.table(frame).set_index("strategy")["loss_shared"]
    assert table["cpr_mfu"] == table["cpr_random"]
    even = regimes_of(frame[~frame["strategy"].isin(["cpr_random", "partial"])])
    assert all(line.shared is line for block in even for line in block.lines), "they have the same seeds, but two"


def test_runs_that_are_equal_to_the_bit_are_flagged(tmp_path: Path) -> None:
    """Law: equal parameters, AUC and log loss; between priority trackers in all cells the budget never binds.

    In some cells: how many. Strategies that lose nothing, and so equal `none`, are not flagged.
    """
    same = dict.fromkeys(range(3), 1e-3)
    frame = pd.DataFrame(
        [
            *cells("none", dict.fromkeys(range(3), 0.0), pls=0.0, model_digest="0"),
            *cells("full", dict.fromkeys(range(2), 0.0), pls=0.0, model_digest="0"),
            *cells("never_save", same | {0: 2e-3}, model_digest="1"),
            *cells("cpr_vanilla", same, model_digest="1"),
            *cells("cpr_random", same, model_digest="2"),
            *cells("cpr_mfu", same, model_digest="2"),
            *cells("cpr_scar", same, model_digest="3"),
        ]
    )
    lines = [
        "cpr_vanilla is equal to never_save to the bit in 2 of 3 cells.",
        "cpr_mfu is equal to cpr_random to the bit in all 3 cells that both have: the budget never binds.",
    ]
    for shown in (str(analysis.show_table(frame)), str(advice(frame))):
        assert [line.strip() for line in shown.splitlines() if "to the bit in" in line] == lines
    assert analysis.table(frame).set_index("strategy")["equal_to"].dropna().to_dict() == {
        "cpr_vanilla": "never_save (2 of 3)", "cpr_mfu": "cpr_random (3 of 3)"
    }  # fmt: skip
    for strategy, model in (("none", "0"), ("cpr_vanilla", "1"), ("cpr_mfu", "1")):
        write_run(tmp_path / strategy, made_config(strategy), model=model)
    assert analysis.load(tmp_path).groupby("model_digest").size().tolist() == [1, 2]


def test_superior_needs_spread_that_rounding_allows() -> None:
    """Law: an interval is never narrower than replicates of `none` show that rounding makes it.

    Without replicates three seeds show no strategy to be better than `none`, and five may.
    """
    gains = {0: -1.8e-4, 1: -1.82e-4, 2: -1.78e-4, 3: -1.81e-4, 4: -1.79e-4}
    backend = {"trainer.backend": "compiled"}
    base = [*cells("none", dict.fromkeys(range(5), 0.0), trace=None, **backend), *cells("partial", gains, **backend)]
    again = cells("none", {0: 2e-4, 1: -1e-4, 2: 1.4e-4, 3: 0.0}, trace=None, **{"trainer.backend": "torch"})
    frame: Any = pd.DataFrame(base)
    known: Any = pd.DataFrame([*base, *again])
    for own, num, expected in ((frame, 3, "non-inferior"), (frame, 5, "superior"), (known, 3, "non-inferior")):
        (block,) = regimes_of(own[own["seed"] < num])
        ((verdict),) = verdicts(block)
        assert (verdict.verdict, verdict.loss.num) == (expected, num)
    assert block.rounding is not None
    assert block.rounding.degrees == 3
    loss: Any = block.lines[1].loss
    assert loss.standard_error == pytest.approx(block.rounding.deviation * math.sqrt(2 / 3))
    assert block.lines[1].auc_difference == loss.negated
    assert loss.degrees == 2
    assert f"± {1e3 * loss.half_width:.2f}" in str(advice(known[known["seed"] < 3]))


def test_pairs_closer_than_rounding_are_cautioned_about() -> None:
    """Law: where the effect of rounding is unknown, and pairs differ by less than it often makes them."""
    for spread, is_said in ((1e-5, True), (3e-4, False)):
        losses = {seed: 2e-4 + spread * (seed - 1) for seed in range(3)}
        frame = pd.DataFrame([*cells("none", dict.fromkeys(range(3), 0.0)), *cells("partial", losses)])
        text = " ".join(str(advice(frame)).split())
        assert ("pairs of partial differ by less than rounding alone often makes them" in text) == is_said


def test_the_family_of_tests_is_all_that_is_shown() -> None:
    """Law: Holm's method counts the strategies of all settings: what suffices alone does not among seven.

    Strategies equal to none by construction are no tests and do not count.
    """
    close = line("partial", 0.01, -3e-4, -1e-4, -2e-4)
    noise = [line("cpr_ssu", 0.02, -3e-3, 1e-3, -1e-3) for _ in range(6)]
    equal = [line(f"equal{number}", 0.02, 0.0, 0.0, 0.0) for number in range(6)]
    assert found(close)["partial"].verdict == found(close, *equal)["partial"].verdict == "non-inferior"
    (first,), *others = verdicts_of([Block({}, "", [line("none", 0.0, 0.0, 0.0), each]) for each in (close, *noise)])
    assert (first.verdict, len(others)) == ("open", 6)


def test_verdicts_are_by_final_auc_and_by_drops(tmp_path: Path) -> None:
    """Law: where drops are on record, both verdicts are given, each with its measure, whichever was asked for.

    The table, its forms and comparisons have both; a cell without its drops is counted, and another measure is alone.
    """
    drops = {"none": 0.0, "cpr_vanilla": 1e-3, "cpr_mfu": 1e-5}
    for strategy, drop in drops.items():
        for seed in range(3):
            write_run(tmp_path / f"{strategy}-{seed}", made_config(strategy, seed=seed), drop=drop * (1 + seed / 10))
    frame = analysis.load(tmp_path)
    for name in ("auc", "drop"):
        text = str(advice(frame, measure=MEASURES[name]))
        assert "inferior: loses more than 0.5·10⁻³ of AUC at failures" in text
        answer = re.findall(r"by AUC at failures(?s:.*?)Shown over 3 seeds and 1 trace: (.*)", text)[0]
        assert re.search(r"cpr_mfu \([^;]*loses? less than [^;]*; cpr_vanilla \([^;]* loses more", answer)
        assert (text.index("by final AUC") < text.index("by AUC at failures")) == (name == "auc")
    page = analysis.report(tmp_path, frame=frame, measure=MEASURES["drop"]).read_text()
    assert page.index("<b>by AUC at failures</b>: Shown") < page.index("<b>by final AUC</b>: Shown")
    assert "by AUC at failures" not in str(advice(frame, measure=MEASURES["log_loss"]))
    table = analysis.table(frame).set_index("strategy")
    assert [*table["drop"]] == pytest.approx([0, 5.5e-3, 5.5e-5])
    (mfu,) = (row for row in comparisons([tmp_path], "cpr_vanilla", [frame]) if row.group == "cpr_mfu")
    assert mfu.differences["drop"] is not None
    assert mfu.differences["drop"].mean == pytest.approx(5.5e-5 - 5.5e-3)
    forms: dict[Format, str] = {"latex": r"5.50 $\pm$ 1.24", "markdown": "5.50 ± 1.24", "csv": "drop_half_width"}
    for kind, words in forms.items():
        assert words in analysis.table_text(frame, kind)
    write_run(tmp_path / "old", made_config("cpr_mfu", seed=3))
    assert "AUC at failures is not on record for 1 of 10 cells" in str(analysis.show_table(analysis.load(tmp_path)))


def test_what_is_shown_says_over_how_many_seeds_and_traces(grid: Path) -> None:
    """Few seeds and a model that has hardly learned are a caution; three seeds of a trained model are not."""
    sound: Any = analysis.load(grid)
    few = sound[sound["seed"] < 2]
    weak, text = (str(advice(frame, margin=0.5)) for frame in (few.assign(auc=few["auc"] - 0.17), sound))
    assert "Shown over 2 seeds and 1 trace: " in weak
    assert "Caution: 2 seeds of 1 trace say little of others; AUC of none is 0.61: the model has hardly" in weak
    assert "Shown over 3 seeds and 1 trace: " in text
    assert "Caution" not in text
