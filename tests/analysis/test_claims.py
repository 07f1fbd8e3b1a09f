"""What runs show of a claim: expectations, one verdict, the page; and the files that claims are."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.claims.claim import FOLDER, PARTS, Benchmark, Claim, Section, find, names, read, sentences
from analysis.claims.measures import MEASURES, results_of
from analysis.claims.page import Finding, claim_table, finding, markdown
from analysis.claims.rows import Row, Verdict, confirms_nothing, measured, signed, up_to, verdict_of, within
from analysis.claims.rows import shown as rows_shown
from analysis.load import COLUMNS, identity, swept_keys
from analysis.stats import estimate
from harness.config.experiment import load_experiment
from harness.core.errors import ConfigError
from harness.record.rundir import flatten
from tests.analysis.shown import shown

ROOT = Path(__file__).resolve().parents[2]
OVERHEAD, PLS = MEASURES["overhead"], MEASURES["pls"]


def cell(strategy: str, seed: int, **values: Any) -> dict[str, Any]:
    """A finished cell."""
    made = {"strategy": strategy, "seed": seed, "engine": "local", "trace": "fixed5-0", "profile": "cpr56", "num_ps": 8}
    made |= {"status": "done", "auc": 0.75, "pls": 0.0, "overhead_frac": 0.1, "save_h": 0.0, "job_h": 56.0}
    return made | {"model.size": "tiny"} | values


def claim(**section: Any) -> Claim:
    """A claim of this section, as a file would have it, without a judge and a figure."""
    made = Section.model_validate({"title": "It holds", "source": "this test", **section})
    return Claim("it", Path("it.yaml"), made, Path("it.yaml"), None, None)


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


def test_a_number_that_is_equal_in_every_run_is_an_identity() -> None:
    """Law: what follows from formulas, whatever is run, confirms nothing; it can still contradict."""
    value = estimate([8.3, 8.3, 8.3])
    assert within("overhead", "8.2–8.5", value, 8.2, 8.5).verdict == "identity"
    assert signed("change", "rises", value, sign=1).verdict == "identity"
    assert within("overhead", "9", value, 9, 9).verdict == "not reproduced"
    assert signed("change", "falls", value, sign=-1).verdict == "not reproduced"


@pytest.mark.parametrize("kept", ["reproduced", "not reproduced", "cannot be told"])
def test_a_maximum_of_a_paper_is_reached_under_its_side_condition_or_decides_nothing(kept: Verdict) -> None:
    """Law: one setting below a published "up to" does not refute it; one above counts by its side condition."""
    asked: dict[str, Any] = {"most": 5.6, "kept": kept, "why": "a wire"}
    assert up_to("speed-up", "up to 5.6", "6", 3, reached=5.7, **asked).verdict == kept
    for reached in (1.2, float("nan")):
        row = up_to("speed-up", "up to 5.6", "4", 3, reached=reached, **asked)
        assert (row.verdict, row.why.endswith("; a wire")) == ("cannot be told", True)


def test_cells_of_one_seed_count_once() -> None:
    """Law: the value of a seed is the mean of its cells, such as those of several draws of a trace."""
    cells = results_of([cell("full", seed, overhead_frac=value) for seed, value in ((0, 0.1), (0, 0.3), (1, 0.4))])
    value: Any = OVERHEAD.difference(cells[:2], cells[:1], cells)
    assert (value.num, value.mean) == (1, pytest.approx(10.0))


def test_a_difference_of_strategies_counts_the_traces_that_seeds_share() -> None:
    """Each of three seeds under each of three traces, on which alone the difference depends: three values, not none."""
    less, than = [0.1, 0.2, 0.2], [0.2, 0.2, 0.5]
    cells = [
        cell(name, s, trace=f"fixed5-{t}", pls=values[t])
        for name, values in (("cpr_mfu", less), ("cpr_vanilla", than))
        for s, t in np.ndindex(3, 3)
    ]
    expected: Any = estimate([100 * (a - b) for a, b in zip(less, than, strict=True)])
    (row,) = claim(expect=[{"less": "cpr_mfu", "than": "cpr_vanilla", "of": "pls", "paper": "lower"}]).rows(cells)
    assert (row.num, row.ours, row.verdict) == (9, rows_shown(expected), "cannot be told")
    frame = results_of(cells)
    change: Any = PLS.difference(frame[:9], frame[9:], frame)
    assert change.interval == pytest.approx(expected.interval)


def test_a_difference_to_runs_under_one_trace_counts_the_traces_that_seeds_share() -> None:
    """Such as those of none, which run once a seed: each is paired with the seed's runs under all traces."""
    values = [0.1, 0.2, 0.6]
    many = [cell("cpr_mfu", s, trace=f"fixed5-{t}", pls=values[t]) for s, t in np.ndindex(3, 3)]
    frame = results_of([*many, *(cell("none", s, trace="fixed5", pls=0.0) for s in range(3))])
    expected: Any = estimate([100 * value for value in values])
    less: Any = PLS.difference(frame[9:], frame[:9], frame)
    more: Any = PLS.difference(frame[:9], frame[9:], frame)
    for change in (less.negated, more):
        assert change.num == 9
        assert change.interval == pytest.approx(expected.interval)


def test_a_sign_needs_an_interval_without_zero() -> None:
    """One value has none."""
    values = {(1.0, 1.1, 0.9): "reproduced", (-1.0, -1.1): "not reproduced", (1.0, -1.0): "cannot be told"}
    for given, verdict in {**values, (1.0,): "cannot be told"}.items():
        value: Any = estimate(given)
        assert signed("change", "rises", value, sign=1).verdict == verdict
        assert signed("change", "falls", value.negated, sign=-1).verdict == verdict


def test_a_sweep_has_its_trends() -> None:
    """The part of full recovery's overhead that is removed: 90 % at the first value, 80 at the last."""
    of_target = claim(
        by="strategy.pls_target",
        **{"as": "PLS target"},
        expect=[
            {"trend": "falls", "of": "removed", "strategy": "cpr_mfu", "paper": "falls"},
            {"trend": "stays", "of": "saves", "strategy": "cpr_mfu", "paper": "flat"},
            {"within": [85, 95], "of": "removed", "strategy": "cpr_mfu", "at": 0.02, "paper": "90"},
        ],
    )
    key: dict[str, Any] = {"strategy.pls_target": None}
    cells = [cell("none", seed, **key) for seed in (0, 1)]
    for seed in (0, 1):
        cells.append(cell("full", seed, overhead_frac=0.1 + 0.01 * seed, **key))
        for target, removed in ((0.02, 0.9), (0.2, 0.8)):
            left = (0.1 + 0.01 * seed) * (1 - removed - 0.001 * seed * target)
            saves = {"save_h": 0.001 * seed, "overhead_frac": left, "strategy.pls_target": target}
            cells.append(cell("cpr_mfu", seed, **saves))
    trend, flat, at_first = of_target.rows(cells)
    assert trend.what == "`cpr_mfu`: overhead of `full` that is removed, %; PLS target 0.2 less 0.02"
    assert trend.ours.startswith("-9.99")
    assert (trend.verdict, flat.verdict, at_first.verdict) == ("reproduced", "identity", "reproduced")
    saves = [each | {"save_h": each["save_h"] + 0.5 * bool(each["strategy.pls_target"] == 0.2)} for each in cells]
    assert of_target.rows(saves)[1].verdict == "not reproduced"


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
    assert len({cell.config.seed for cell in experiment.cells}) >= (2 if name == "poster" else 5)
    axes = {key: values for grid in experiment.resolved["grids"] for key, values in grid.items()}
    first, _ = axes.pop("strategy.name", ["none"])[0], axes.pop("seed")
    one = [f"{key}={json.dumps(next(v for v in values if v is not None))}" for key, values in axes.items()]
    for overrides in (one, [f"strategy.name={first}"]):
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
        value: Any = estimate(values)
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
    rows += claim(by="profile", expect=[flat | {"until": ["b", "c"]}, flat | {"strategy": "cpr_mfu"}]).rows(given)
    assert {row.verdict for row in rows} == {"reproduced", "not reproduced", "cannot be told", "identity"}
    assert all(row.why for row in rows if row.verdict in ("not reproduced", "cannot be told"))


def test_the_page_has_every_claim() -> None:
    """Claims without runs say so. A column ``why`` of nothing is left out, on the console too."""
    files = {path.stem for path in FOLDER.glob("*.yaml") if re.search("^claim:", path.read_text(), re.MULTILINE)}
    assert files == {*names()}, "a file with a section `claim:` is in a part of the page"
    row = Row("what", "8 [read]", "8.3", 1000, "reproduced")
    rows = {"target": [row, row], "nodes": [row, replace(row, why="noise of -1.5")]}
    found = [Finding(find(name), rows.get(name, [])) for name in names()]
    text = markdown(found, "a machine", "figures")
    for part in PARTS:
        assert f"\n| {part} | [" in text
    for each in found:
        assert f"</a>{each.claim.section.title}\n" in text
        assert f"run.py reproduce {each.claim.name}" in text
    assert "| what | 8 [read] | 8.3 | 1,000 | reproduced |\n" in text
    assert "| what | 8 [read] | 8.3 | 1,000 | reproduced | noise of −1.5 |\n" in text
    assert "Claim `target`: reproduced." in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 120
    assert text.count("Not run here.") == len(found) - 2
    assert text.count("| why |") == 1
    tables = {each.claim.name: shown(claim_table(each)) for each in found}
    assert "8 [read]" in tables["target"]
    assert [("why" in tables[name], "noise of −1.5" in tables[name]) for name in rows] == [(False,) * 2, (True,) * 2]


def test_sentences_of_papers_head_the_page_with_the_verdict_of_their_rows() -> None:
    """Each names a claim that judges it, or says why none does; a page of some claims has no such table."""
    of = {each.says: each for each in sentences()}
    assert all(each.here and (each.claim in names() or (each.claim is None and not each.rows)) for each in of.values())
    judged: Any = (("cpr56", "reproduced"), ("poster50", "not reproduced"))
    rows = [Row(f"`cpr_mfu`, `{job}`", "on par", "0", 3, verdict) for job, verdict in judged]
    found = [Finding(find(name), rows if name == "emulation" else []) for name in names()]
    text = markdown(found, "", "figures")
    assert re.search(r"on par with full recovery \| \[reproduced\]\(#emulation\) \|", text)
    assert re.search(r"over 91 % of the overhead removed.*\| \[not reproduced\]\(#emulation\) \|", text)
    assert text.count("| not judged |") == sum(each.claim is None for each in of.values())
    assert "not judged" not in markdown(found[1:], "", "figures")


def test_the_verdict_of_a_claim_is_the_worst_of_its_judged_rows() -> None:
    """Numbers that had to come out judge nothing; an identity can fail."""
    cases: Any = (
        (("reproduced", "cannot be told", "not reproduced"), "not reproduced"),
        (("reproduced", "cannot be told", "identity"), "cannot be told"),
        (("reproduced", "calibrated"), "reproduced"),
        (("calibrated", "identity"), "calibrated"),
        ((), "not run"),
    )
    for verdicts, verdict in cases:
        rows = [Row("what", "8", "8", 3, each) for each in verdicts]
        assert verdict_of(rows) == verdict_of([*reversed(rows)]) == verdict
    rows = [measured("bytes", "6.25", values, 6.2, 6.3) for values in ([6.25], [9.0], [])]
    found = [confirms_nothing(row, "identity").verdict for row in rows]
    assert found == ["identity", "not reproduced", "cannot be told"]


CLAIM = """\
claim:
  title: It holds
  source: this test
  by: profile
  expect:
  - {within: [0, 1], of: overhead, strategy: full, paper: '1'}
  figure: me.py
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
        (", paper: '1'", "", "6: claim.expect.0: expected a key paper"),
        ("by: profile", "by: strategy.name", "by: expected a key of the experiment's grids, got strategy.name"),
        ("within: [0, 1], ", "", "expect.0: expected a mapping with one of the keys within, less, trend"),
        ("  title: It holds\n", "", "2: claim: expected a key title"),
        ("me.py", "my.py", "7: claim.figure: expected a Python file beside the claim, got my.py; did you mean me.py?"),
        ("figure: me.py", "judge: me.py", "7: claim.judge: me.py: expected a function judge in this file, got none"),
        ("  by: profile", "  experiment: it2.yaml\n  by: profile", "no such file; did you mean"),
        ("  by: profile", "  benchmark: {script: it.py}", "claim: expected a judge, and no expect, beside a benchmark"),
        ("claim:", "claims:", "expected a section `claim:`, got claims, data, grids"),
        ("strategy: full", "where: {profil: cpr56}", "where.profil: expected a column of the results, got profil; did"),
        (
            "{within: [0, 1], of: overhead, strategy: full",
            "{less: full, than: full, of: overhead",
            "6: claim.expect.0: expected two strategies, got full twice",
        ),
        ("within: [0, 1]", "trend: rises, at: [1]", "6: claim.expect.0: expected from and until instead of at"),
        ("within: [0, 1]", "trend: rises, flat: 0.5", "expected no flat with trend rises"),
    ],
)
def test_a_mistake_in_a_claim_is_one_line(tmp_path: Path, old: str, new: str, line: str) -> None:
    """File and line, the key, what was expected, and the most similar name."""
    (tmp_path / "me.py").write_text("def draw(cells, ax):\n    pass\n")
    path = tmp_path / "it.yaml"
    path.write_text(CLAIM)
    assert read(path).section.title == "It holds"
    path.write_text(CLAIM.replace(old, new))
    with pytest.raises(ConfigError) as raised:
        read(path)
    (said,) = str(raised.value).split("\n")
    assert said.startswith(str(tmp_path))
    assert line in said


def test_a_file_beside_a_claim_judges_and_draws(tmp_path: Path) -> None:
    """Law: a judge and a figure are functions of a file beside the claim.

    An exception of such a function names the claim, the function and the line; so does a result without rows.
    """
    path, cells = tmp_path / "it.yaml", [cell("full", seed) for seed in range(3)]
    path.write_text(CLAIM.replace("me.py", "mine.py\n  judge: mine.py"))
    row = "Row('cells', '3', str(len(cells)), len(cells), 'reproduced')"
    draws = "def draw(cells, ax):\n    ax.set_xlabel('mine')\n"
    module = f"from analysis.claims import Row\n{draws}def judge(cells):\n    "
    (tmp_path / "mine.py").write_text(f"{module}return [{row}]\n")
    found = finding(read(path), cells)
    assert found.rows[-1] == Row("cells", "3", "3", 3, "reproduced")
    assert found.figure is not None
    assert found.figure.axes[0].get_xlabel() == "mine"
    assert found.claim.command == f"run.py reproduce {path}"
    for number, (body, error) in enumerate(
        (
            ("return cells['nope']", r": judge raised KeyError: 'nope' \(wrong0.py, line 5\)$"),
            ("raise ValueError('boo')", r": judge raised ValueError: boo \(wrong1.py, line 5\)$"),
            ("return [1]", r": expected a list of analysis.claims.Row from judge, got \[1\]$"),
        )
    ):
        (tmp_path / f"wrong{number}.py").write_text(module + body)
        path.write_text(CLAIM.replace("me.py", f"mine.py\n  judge: wrong{number}.py"))
        with pytest.raises(ConfigError, match=rf"it.yaml:8: claim.judge: wrong{number}.py{error}"):
            finding(read(path), cells)


def test_an_expectation_that_no_result_meets_is_open() -> None:
    """Law: an expectation of results that were not run has a row, so its claim is not called reproduced."""
    asked = {"less": "full", "than": "none", "of": "overhead", "where": {"seed": 77}, "paper": "lower"}
    (row,) = claim(by="profile", expect=[asked]).rows([cell("full", seed) for seed in range(3)])
    assert (row.what, row.verdict) == ("overhead", "cannot be told")


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
