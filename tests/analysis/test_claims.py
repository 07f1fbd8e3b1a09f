"""What runs show of a claim: measures, expectations, one verdict, the page; and the files that claims are."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure as PlainFigure

from analysis.claims.claim import FOLDER, PARTS, Benchmark, Claim, Section, find, names, read
from analysis.claims.figures import Figure, drawn
from analysis.claims.measures import OVERHEAD, PLS, Measure, check_columns, results_of, value_of
from analysis.claims.page import Finding, claim_table, finding, html, markdown
from analysis.claims.rows import Row, confirms_nothing, measured, signed, study, verdict_of, within
from analysis.claims.rows import shown as rows_shown
from analysis.load import COLUMNS, identity, swept_keys
from analysis.stats import estimate
from harness.config.experiment import load_experiment
from harness.core.errors import ConfigError
from harness.record.rundir import flatten
from tests.analysis.shown import shown

ROOT = Path(__file__).resolve().parents[2]


def cell(strategy: str, seed: int, **values: Any) -> dict[str, Any]:
    """A finished cell."""
    made = {"strategy": strategy, "seed": seed, "engine": "local", "trace": "fixed5-0", "profile": "cpr56", "num_ps": 8}
    made |= {"status": "done", "auc": 0.75, "pls": 0.0, "overhead_frac": 0.1, "save_h": 0.0, "job_h": 56.0}
    return made | {"model.size": "tiny"} | values


def claim(**section: Any) -> Claim:
    """A claim of this section, as a file would have it; with measures alone, and no figure."""
    made = Section.model_validate({"title": "It holds", "source": "this test", **section})
    return Claim("it", Path("it.yaml"), made, Path("it.yaml"), (), None)


@pytest.mark.parametrize(
    ("values", "verdict", "of_rounds"),
    [
        ([8.3, 8.31, 8.32], "reproduced", "reproduced"),
        ([8.4, 8.5, 8.6], "cannot be told", "cannot be told"),  # the interval meets the range and its outside
        ([7.0, 7.1, 7.2], "not reproduced", "not reproduced"),
        ([9.0], "cannot be told", "not reproduced"),  # one value has no interval
        ([8.3], "cannot be told", "reproduced"),
        ([-9.0, 2.0, 6.0], "cannot be told", "cannot be told"),  # one side, but spread wider than the range
        ([], "cannot be told", "cannot be told"),
    ],
)
def test_a_published_range_is_met_or_missed(values: list[float], verdict: str, of_rounds: str) -> None:
    """By the 95 % interval of the mean, not by the mean alone; of a machine by all rounds, not by the median."""
    assert within("overhead", "8.2–8.5", estimate(values), 8.2, 8.5).verdict == verdict
    assert measured("part", "8.2–8.5", values, 8.2, 8.5).verdict == of_rounds


def test_cells_of_one_seed_count_once() -> None:
    """Law: the value of a seed is the mean of its cells, such as those of several draws of a trace."""
    cells = results_of([cell("full", seed, overhead_frac=value) for seed, value in ((0, 0.1), (0, 0.3), (1, 0.4))])
    assert OVERHEAD.by_seed(cells, cells).to_dict() == pytest.approx({0: 20.0, 1: 40.0})
    assert OVERHEAD.differences(cells, cells[2:]).to_dict() == pytest.approx({1: 0.0})
    assert OVERHEAD.differences(cells[:2], cells[:1]).to_dict() == pytest.approx({0: 10.0})


def test_a_mean_has_the_interval_of_as_many_values_as_there_are_traces() -> None:
    """Each of three seeds under each of three traces, on which alone the overhead depends."""
    overheads = [0.1, 0.2, 0.4]
    cells = [cell("full", s, trace=f"fixed5-{t}", overhead_frac=overheads[t]) for s, t in np.ndindex(3, 3)]
    frame = results_of(cells)
    found, expected = OVERHEAD.mean(frame, frame), estimate([100 * each for each in overheads])
    assert found is not None
    assert expected is not None
    assert (found.num, found.interval) == (9, pytest.approx(expected.interval))


def test_a_difference_of_strategies_counts_the_traces_that_seeds_share() -> None:
    """Each of three seeds under each of three traces, on which alone the difference depends: three values, not none."""
    less, than = [0.1, 0.2, 0.2], [0.2, 0.2, 0.5]
    cells = [
        cell(name, s, trace=f"fixed5-{t}", pls=values[t])
        for name, values in (("cpr_mfu", less), ("cpr_vanilla", than))
        for s, t in np.ndindex(3, 3)
    ]
    expected = estimate([100 * (a - b) for a, b in zip(less, than, strict=True)])
    assert expected is not None
    (row,) = claim(expect=[{"less": "cpr_mfu", "than": "cpr_vanilla", "of": "pls", "paper": "lower"}]).rows(cells)
    assert (row.num, row.ours, row.verdict) == (9, rows_shown(expected), "cannot be told")
    frame = results_of(cells)
    change = PLS.difference(frame[:9], frame[9:])
    assert change is not None
    assert change.interval == pytest.approx(expected.interval)


def test_a_difference_to_runs_under_one_trace_counts_the_traces_that_seeds_share() -> None:
    """Such as those of none, which run once a seed: each is paired with the seed's runs under all traces."""
    values = [0.1, 0.2, 0.6]
    many = [cell("cpr_mfu", s, trace=f"fixed5-{t}", pls=values[t]) for s, t in np.ndindex(3, 3)]
    frame = results_of([*many, *(cell("none", s, trace="fixed5", pls=0.0) for s in range(3))])
    expected = estimate([100 * value for value in values])
    less, more = PLS.difference(frame[9:], frame[:9]), PLS.difference(frame[:9], frame[9:])
    assert less
    assert more
    assert expected
    for change in (less.negated, more):
        assert change.num == 9
        assert change.interval == pytest.approx(expected.interval)


@pytest.mark.parametrize("has_reference", [True, False])
def test_a_loss_without_its_reference_is_no_loss_of_zero(*, has_reference: bool) -> None:
    """Neither does it meet a condition, nor is it drawn; that of the reference itself is 0 and does both."""
    measures: dict[str, Any] = {"saved": {"of": "wire_bytes", "words": "{}"}}
    measures["loss"] = {"of": "-1000 * auc", "words": "loss {}", "reference": {"cache.staleness": 0}}
    asked = {"of": "saved", "best": "most", "within": [8, 10], "provided": {"of": "loss", "below": 0.5}, "paper": "9"}
    of = claim(by="cache.staleness", measures=measures, expect=[asked])
    values = [*([(0, 8.5)] if has_reference else []), (100, 9.5)]
    cells = [cell("none", s, wire_bytes=saved, **{"cache.staleness": v}) for v, saved in values for s in range(3)]
    (row,) = of.rows([{**each, "auc": 0.75 - 1e-2 * bool(each["cache.staleness"])} for each in cells])
    assert row.verdict == ("reproduced" if has_reference else "cannot be told")
    figure = Figure(x="saved", y=["loss"], means="cache.staleness", group="engine")
    axes = PlainFigure().subplots(1, 2)
    drawn(figure, of.measures, "cache.staleness", {})(axes, results_of(cells))
    assert [each.get_text() for each in axes[0].texts] == (["0", "100"] if has_reference else [])


def test_a_sign_needs_an_interval_without_zero() -> None:
    """One value has none."""
    values = {(1.0, 1.1, 0.9): "reproduced", (-1.0, -1.1): "not reproduced", (1.0, -1.0): "cannot be told"}
    for given, verdict in {**values, (1.0,): "cannot be told"}.items():
        value = estimate(given)
        assert value is not None
        assert signed("change", "rises", value, sign=1).verdict == verdict
        assert signed("change", "falls", value.negated, sign=-1).verdict == verdict
        assert signed("change", "–", value, sign=1).verdict == "study"


def test_the_job_at_scale_is_judged_by_what_it_removes_and_by_both_engines() -> None:
    """Of full recovery's overhead 95 % is removed; a run that differs in one bit on the other engine is seen."""
    overheads = {"none": 0.0, "full": 0.1, "cpr_mfu": 0.005, "cpr_ssu": 0.005}
    cells = [
        cell(name, seed, overhead_frac=overhead * (1 + 0.01 * seed), log_loss=0.5, engine=engine, profile=profile)
        for seed in range(3)
        for profile, engine in (("poster50", "local"), ("poster50_of_6", "local"), ("poster50_of_6", "rpc"))
        for name, overhead in overheads.items()
    ]
    for bit, ours, verdict in ((0, "12 of 12", "reproduced"), (1e-15, "9 of 12", "not reproduced")):
        given = [
            each | {"auc": 0.75 + bit * (each["engine"] == "rpc" and each["strategy"] == "full")} for each in cells
        ]
        rows = {row.what: row for row in find("poster").rows(given)}
        removed = rows["overhead of `full` that `cpr_mfu` removes, %"]
        assert (removed.ours, removed.verdict, removed.num) == ("95.00 ± 0.00", "reproduced", 3)
        agreement = rows["runs of 4 + 6 processes (`rpc`) equal to those of `local` to the last bit, of all"]
        assert (agreement.ours, agreement.verdict) == (ours, verdict)
    assert find("poster").rows([])[-1].verdict == "cannot be told"


def test_slopes_are_those_of_the_runs() -> None:
    """Losses of 20 and 10 · 10⁻³ for all samples, a little more for each seed; the difference is paired."""
    cells = [cell("none", seed) for seed in range(3)]
    for seed in range(3):
        for pls in (0.1, 0.2, 0.4):
            for name, slope in (("cpr_vanilla", 0.02), ("cpr_mfu", 0.01)):
                auc = 0.75 - pls * (slope + 0.001 * seed)
                cells.append(cell(name, seed, pls=pls, auc=auc, trace=f"fixed{pls}-{seed}"))
    rows = {row.what: row for row in find("pls").rows(cells)}
    vanilla = rows["AUC loss for each percent of lost samples, 10⁻³, `cpr_vanilla`"]
    assert (vanilla.ours.partition(" ")[0], vanilla.num, vanilla.verdict) == ("0.21", 9, "reproduced")
    lower = rows["slope of `cpr_mfu` less that of `cpr_vanilla`"]
    assert (lower.ours, lower.verdict) == ("-0.10 ± 0.00", "reproduced")


def test_a_sweep_has_a_row_for_each_value_and_its_trend() -> None:
    """The part of full recovery's overhead that is removed: 90 % at the first value, 80 at the last."""
    of_target = claim(
        by="strategy.pls_target",
        **{"as": "PLS target"},
        study=["overhead", "pls", "auc_loss"],
        expect=[
            {"trend": "falls", "of": "removed", "strategy": "cpr_mfu", "paper": "falls"},
            {"trend": "stays", "of": "saves", "strategy": "cpr_mfu", "paper": "flat"},
        ],
    )
    key: dict[str, Any] = {"strategy.pls_target": None}
    cells = [cell("none", seed, **key) for seed in (0, 1)]
    for seed in (0, 1):
        cells.append(cell("full", seed, overhead_frac=0.1 + 0.01 * seed, **key))
        for target, removed in ((0.02, 0.9), (0.2, 0.8)):
            left = (0.1 + 0.01 * seed) * (1 - removed - 0.001 * seed * target)
            cells.append(cell("cpr_mfu", seed, overhead_frac=left, **{"strategy.pls_target": target}))
    *rows, trend, flat = of_target.rows(cells)
    assert [row.what for row in rows] == ["`full`", "`cpr_mfu`, PLS target 0.02", "`cpr_mfu`, PLS target 0.2"]
    assert all("AUC loss 0.00" in row.ours and row.verdict == "study" for row in rows)
    assert trend.ours.startswith("-9.99")
    assert (trend.verdict, flat.verdict) == ("reproduced", "reproduced")
    saves = [each | {"save_h": 0.5 * bool(each["strategy.pls_target"] == 0.2)} for each in cells]
    assert of_target.rows(saves)[-1].verdict == "not reproduced"


@pytest.mark.parametrize("name", names())
def test_each_claim_has_an_experiment_and_is_judged_with_one_value_of_each_axis(name: str) -> None:
    """Its file has a folder of its own, and says how the claim is reproduced; or it names a script.

    ``run.py reproduce CLAIM KEY=VALUE`` judges, whatever the cells can tell: a key with one value is no column.
    """
    claim = find(name)
    if isinstance(source := claim.experiment, Benchmark):
        assert (ROOT / source.script).is_file()
        return
    assert re.search(rf"run.py reproduce .*\b{name}\b", source.read_text())
    experiment = load_experiment(source, cell_hash=lambda config: str(hash(config.model_dump_json())))
    assert experiment.out == Path("runs/claims") / source.stem
    assert len({cell.config.seed for cell in experiment.cells}) >= 5
    axes = {key: values for grid in experiment.resolved["grids"] for key, values in grid.items()}
    first, _ = axes.pop("strategy.name", ["none"])[0], axes.pop("seed")
    one = [f"{key}={json.dumps(next(v for v in values if v is not None))}" for key, values in axes.items()]
    for overrides in () if name == "hour" else (one, [f"strategy.name={first}"]):  # it reads curves
        rows = claim.rows(_cells(source, overrides))
        assert all(row.verdict != "reproduced" or row.num > 1 for row in rows)


def _cells(source: Path, overrides: list[str]) -> list[dict[str, Any]]:
    """Finished cells of an experiment as they are loaded: all results are 1, and columns are those of axes."""
    experiment = load_experiment(source, [*overrides, "seed=[0, 1]"], cell_hash=lambda config: config.model_dump_json())
    configs = [cell.config.model_dump(mode="json") for cell in experiment.cells]
    keys = [key for key in (*swept_keys(configs), *experiment.axes) if "." in key]
    results = {**dict.fromkeys(COLUMNS, 1), "status": "done", "disagreement": None}
    return [results | {key: flatten(config).get(key) for key in keys} | identity(config) for config in configs]


def test_a_half_width_is_shown_with_digits_that_are_not_zero() -> None:
    """With at most four; an exact 0 needs none."""
    texts = {(0.5, 0.6): "0.55 ± 0.64", (0.5596, 0.5599): "0.560 ± 0.002", (0.55961, 0.55963): "0.5596 ± 0.0001"}
    for values, text in {
        **texts,
        (0.5, 0.5): "0.50 ± 0.00",
        (0.5, 0.5 + 1e-9): "0.50 ± 0.00",
        (-0.001,): "0.00",
    }.items():
        value = estimate(values)
        assert value is not None
        assert rows_shown(value) == text


def test_every_open_verdict_has_a_reason() -> None:
    """Whatever rule a row is judged by: a range, a sign, what is flat, what a machine was measured at."""
    value = {values: estimate(values) for values in ((1.0, 1.1, 0.9), (1.0, -1.0), (1.0,), ())}
    rows = [within("what", "8", each, low, 8.5) for each in value.values() for low in (-9.0, 0.95, 1.05, 2.0)]
    rows += [signed("what", "up", each, sign=sign) for each in value.values() if each for sign in (1, -1)]
    rows += [measured("what", "75", own, 65, 85) for own in ([], [60.0, 70.0], [40.0], [90.0], [-90.0, 60.0])]
    given = [cell(name, seed, save_h=seed, profile=p) for name in ("none", "full") for seed in (0, 9) for p in "ab"]
    given += [cell("full", seed, save_h=60 + seed, profile="c") for seed in (0, 9)]
    flat = {"trend": "stays", "of": "saves", "strategy": "full", "paper": "flat", "from": "a"}
    expect = [flat | {"until": ["b", "c"]}, flat | {"strategy": "cpr_mfu"}, flat | {"trend": "rises"}]
    rows += claim(by="profile", study=["overhead"], expect=expect).rows(given)
    assert {row.verdict for row in rows} == {"reproduced", "not reproduced", "cannot be told", "study"}
    assert all(row.why for row in rows if row.verdict in ("not reproduced", "cannot be told"))


def test_the_page_has_every_claim_and_needs_no_other_file() -> None:
    """Claims without runs say so; the HTML has no reference off the page. A column ``why`` of nothing is left out.

    On the console, too, which takes no word for markup.
    """
    files = {path.stem for path in FOLDER.glob("*.yaml") if re.search("^claim:", path.read_text(), re.MULTILINE)}
    assert files == set(names()), "a file with a section `claim:` is in a part of the page"
    row = Row("what", "8 [read]", "8.3", 1000, "reproduced")
    rows = {"overhead": [row, row], "quality": [row, replace(row, why="noise of -1.5")]}
    found = [Finding(find(name), rows.get(name, [])) for name in names()]
    text, page = markdown(found, "a machine", "figures"), html(found, "a machine")
    for part in PARTS:
        assert f"* {part}\n" in text
    for each in found:
        assert f"## {each.claim.section.title}" in text
        assert f"run.py reproduce {each.claim.name}" in text
        assert f'id="{each.claim.name}"' in page
    assert "| what | 8 [read] | 8.3 | 1,000 | reproduced |\n" in text
    assert "| what | 8 [read] | 8.3 | 1,000 | reproduced | noise of −1.5 |\n" in text
    assert "Claim `overhead`: reproduced." in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 120
    assert text.count("Not run here.") == page.count("Not run here.") == len(found) - 2
    assert not re.search(r'(src|href)="(?!#)', page)
    assert "`" not in page
    assert [text.count("| why |"), page.count(">why<"), page.count("noise of −1.5")] == [1, 1, 1]
    tables = {each.claim.name: shown(claim_table(each)) for each in found}
    assert "8 [read]" in tables["overhead"]
    assert [("why" in tables[name], "noise of −1.5" in tables[name]) for name in rows] == [(False,) * 2, (True,) * 2]


def test_the_verdict_of_a_claim_is_the_worst_of_its_judged_rows() -> None:
    """Numbers that had to come out, and those that nobody has published, judge nothing; an identity can fail."""
    cases: Any = (
        (("reproduced", "cannot be told", "not reproduced", "study"), "not reproduced"),
        (("reproduced", "cannot be told", "identity"), "cannot be told"),
        (("reproduced", "study", "calibrated"), "reproduced"),
        (("identity", "study"), "study"),
        (("calibrated", "identity"), "calibrated"),
        ((), "not run"),
    )
    for verdicts, verdict in cases:
        rows = [Row("what", "8", "8", 3, each) for each in verdicts]
        assert verdict_of(rows) == verdict_of([*reversed(rows)]) == verdict
    rows = [measured("bytes", "6.25", values, 6.2, 6.3) for values in ([6.25], [9.0], [])]
    assert [confirms_nothing(row, "identity").verdict for row in rows] == [
        "identity",
        "not reproduced",
        "cannot be told",
    ]


def saved(losses: dict[int, float]) -> list[dict[str, Any]]:
    """Runs that save 90 % of the bytes at the greatest staleness, and lose these thousandths of AUC."""
    return [
        cell("none", seed, cache=100 - 90 * value / max(losses), auc=0.75 - 1e-3 * loss - 1e-6 * seed * loss)
        | {"cache.staleness": value}
        for value, loss in losses.items()
        for seed in range(3)
    ]


@pytest.mark.parametrize(
    ("losses", "noise", "bytes_saved", "verdict"),
    [
        ({0: 0.0, 50: 0.1, 100: 0.2}, 0.0, "90.00 ± 0.00", "reproduced"),
        ({0: 0.0, 50: 0.1, 100: 20.0}, 0.0, "45.00 ± 0.00", "not reproduced"),  # met at a ruinous AUC alone
        ({0: 0.0, 100: 0.5}, 1e-4, "0.00 ± 0.00", "cannot be told"),  # as likely below the bound as above
    ],
)
def test_a_bound_that_is_met_at_any_cost_is_not_reproduced(
    losses: dict[int, float], noise: float, bytes_saved: str, verdict: str
) -> None:
    """Law: only values that keep the side condition count; what others reach is said with what it costs."""
    of_saved = claim(
        by="cache.staleness",
        measures={
            "saved": {"of": "100 - cache", "words": "saved {} %"},
            "loss": {"of": "-1000 * auc", "words": "loss {}", "reference": {"cache.staleness": 0}},
        },
        expect=[
            {"within": [88, 100], "of": "saved", "best": "most", "paper": "up to 88", "provided": side}
            for side in ({"of": "loss", "below": 0.5}, None)
        ],
    )
    cells = saved(losses)
    for each in cells:
        each["auc"] += noise * (each["seed"] - 1) * bool(each["cache.staleness"])
    row, without = of_saved.rows(cells)
    assert (row.ours, row.verdict) == (bytes_saved, verdict)
    assert ("100 reaches 90.00 ± 0.00, at loss" in row.why) == (verdict != "reproduced")
    assert without.verdict == "reproduced"


def test_a_formula_is_arithmetic_on_columns_alone() -> None:
    """Also on entries within a column, and on those of each round; nothing else is a formula."""
    result: dict[str, Any] = {"a": 2, "b.c": 3, "d": {"16": 4, "rounds": [1.0, 2.0]}, "none": None}
    results = results_of([result])
    assert value_of("100 * (a + b.c) / d.16", results)[0] == 125
    assert value_of("1e-1 * d.rounds", results)[0].tolist() == [0.1, 0.2]
    assert np.isnan(value_of("a + none", results)[0])
    for formula in ("a ** 9", "a if a else a", "print(a", "a[0]", "'a'", "a,"):
        with pytest.raises(ConfigError, match="expected"):
            value_of(formula, results)
    with pytest.raises(ConfigError, match=r"rond: no such column of the results; did you mean round\?"):
        check_columns("rond + a", ["round", "a"])
    frame = results_of([cell("full", seed) for seed in range(2)])
    for of in ("1 / 0", "strategy"):
        with pytest.raises(ConfigError, match=f"^{of}: expected arithmetic on numbers"):
            Measure(of=[of], words="{}").values(frame, frame)
    assert Measure(of=["auc / 0"], words="{}").values(frame, frame).empty, "no value is infinite"


CLAIM = """\
claim:
  title: It holds
  source: this test
  by: profile
  expect:
  - {within: [0, 1], of: overhead, strategy: full}
  figure: {y: overhead}
data: {path: none}
grids:
- {seed: [0, 1], profile: [cpr56], strategy.name: [none, full]}
"""


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("of: overhead", "of: overhed", "6: claim.expect.0.of: expected a measure, got overhed; did you mean"),
        ("strategy: full", "strategy: fall", "strategy of the experiment, got fall; did you mean full?"),
        ("strategy: full", "strateg: full", "6: claim.expect.0.strateg: no such key here; did you mean strategy?"),
        ("within: [0, 1]", "within: 3", "6: claim.expect.0.within: expected a list, got 3"),
        ("within: [0, 1]", "within: [1, 0]", "within: expected the least value first, got [1.0, 0.0]"),
        ("by: profile", "by: strategy.name", "by: expected a key of the experiment's grids, got strategy.name"),
        ("within: [0, 1], ", "", "expect.0: expected a mapping with one of the keys within, less, trend, signed"),
        ("  title: It holds\n", "", "2: claim: expected a key title"),
        ("{y: overhead}", "scater", "7: claim.figure: expected a name or FILE.py:FUNCTION, got scater"),
        (
            "{y: overhead}",
            "my.py:draw",
            "claim.figure: expected a file beside it, got my; did you mean me?",
        ),
        ("{y: overhead}", "me.py:draw", "7: claim.figure: expected a function of me.py, got draw; did you mean drawn?"),
        ("  by: profile", "  experiment: it2.yaml\n  by: profile", "no such file; did you mean"),
        ("claim:", "claims:", "expected a section `claim:`, got claims, data, grids"),
        (
            "  by: profile",
            "  measures: {own: {of: 100 * ack, words: ''}}\n  by: profile",
            "4: claim.measures.own: ack: no such column of the results; did you mean auc?",
        ),
        ("strategy: full", "where: {profil: cpr56}", "where.profil: expected a column of the results, got profil; did"),
        (
            "  by: profile",
            "  measures: {own: {of: auc, words: 'x {'}}\n  by: profile",
            "expected a text in which {} stands for the value, got 'x {'",
        ),
        (
            "{within: [0, 1], of: overhead, strategy: full}",
            "{less: full, than: full, of: overhead}",
            "6: claim.expect.0: expected two strategies, got full twice",
        ),
        ("within: [0, 1]", "trend: rises, what: x, at: [1]", "6: claim.expect.0: expected no at and no what"),
        ("within: [0, 1]", "within: [0, 1], digits: 3", "6: claim.expect.0: expected no digits"),
        ("within: [0, 1]", "within: [0, 1], also: pls, best: least", "expected no also beside best or provided"),
        ("within: [0, 1]", "trend: rises, flat: 0.5", "expected no flat with trend rises"),
        ("within: [0, 1]", "signed: above, why: x", "6: claim.expect.0.why: no such key here"),
        ("{y: overhead}", "me.py:number", "claim.figure: expected a function, got me.py:number, which is none"),
    ],
)
def test_a_mistake_in_a_claim_is_one_line(tmp_path: Path, old: str, new: str, line: str) -> None:
    """File and line, the key, what was expected, and the most similar name."""
    (tmp_path / "me.py").write_text("number = 3\ndef drawn(axes, results):\n    pass\n")
    path = tmp_path / "it.yaml"
    path.write_text(CLAIM)
    assert read(path).section.title == "It holds"
    path.write_text(CLAIM.replace(old, new))
    with pytest.raises(ConfigError) as raised:
        read(path)
    (said,) = str(raised.value).split("\n")
    assert said.startswith(str(tmp_path))
    assert line in said


def test_a_module_beside_a_claim_judges_and_draws(tmp_path: Path) -> None:
    """Law: a judge and a figure of a user's own are functions of a module beside the file.

    An exception of such a function names the claim, the function and the line; so does a result without rows.
    """
    path, cells = tmp_path / "it.yaml", [cell("full", seed) for seed in range(3)]
    path.write_text(CLAIM.replace("{y: overhead}", "mine.py:drawn\n  judge: mine.py:judged"))
    draws = "def drawn(axes, results):\n    axes[0].set_xlabel('mine')\n"
    module = f"from analysis.claims.rows import study\n{draws}def judged(cells):\n    "
    (tmp_path / "mine.py").write_text(f"{module}return [study('cells', str(len(cells)), len(cells))]\n")
    found = finding(read(path), cells)
    assert found.rows[-1] == study("cells", "3", 3)
    assert found.figure is not None
    assert found.figure.axes[0].get_xlabel() == "mine"
    assert found.claim.command == f"run.py reproduce {path}"
    for number, (body, error) in enumerate(
        (
            ("return cells['nope']", r"raised KeyError: 'nope' \(wrong0.py, line 5\)$"),
            ("raise ValueError('boo')", r"raised ValueError: boo \(wrong1.py, line 5\)$"),
            ("return [1]", r": expected a list of analysis.claims.Row, got \[1\]$"),
        )
    ):
        (tmp_path / f"wrong{number}.py").write_text(module + body)
        path.write_text(CLAIM.replace("{y: overhead}", f"{{y: overhead}}\n  judge: wrong{number}.py:judged"))
        with pytest.raises(ConfigError, match=rf"claim.judge.0: wrong{number}.py:judged ?{error}"):
            finding(read(path), cells)


def test_an_expectation_that_no_result_meets_is_open(tmp_path: Path) -> None:
    """Law: an expectation of results that were not run has a row, so its claim is not called reproduced."""
    path = tmp_path / "it.yaml"
    less = "{less: full, than: none, of: overhead, where: {seed: 77}}"
    path.write_text(CLAIM.replace("{within: [0, 1], of: overhead, strategy: full}", less))
    (row,) = finding(read(path), [cell("full", seed) for seed in range(3)]).rows
    assert (row.what, row.verdict) == ("overhead; seed=77", "cannot be told")


def test_a_strategy_without_the_key_is_compared_at_each_value() -> None:
    """Law: either side of ``less`` may lack the swept key; its runs are then paired with those of each value."""
    by = "strategy.pls_target"
    cells = [cell("full", seed, overhead_frac=0.1 + seed / 1000) for seed in range(3)]
    cells += [cell("cpr_mfu", seed, overhead_frac=0.05, **{by: target}) for seed in range(3) for target in (0.1, 0.2)]
    lower = {"of": "overhead", "paper": "lower", "identity": True}
    both = [{"less": "full", "than": "cpr_mfu", **lower}, {"less": "cpr_mfu", "than": "full", **lower}]
    rows = claim(by=by, expect=both).rows(cells)
    assert [row.verdict for row in rows] == ["not reproduced"] * 2 + ["identity"] * 2


def test_a_claim_of_the_project_needs_its_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package has no experiments: the line says where they are."""
    monkeypatch.setattr("analysis.claims.claim.FOLDER", tmp_path / "none")
    with pytest.raises(ConfigError, match=r"^claim: pls: expected the project's experiments in .*none, got no such"):
        find("pls")
