"""The table per strategy, the comparison and the story of a run, as a console shows them."""

import shutil
from pathlib import Path

import pytest

import analysis
from analysis.load import cells_of
from analysis.stats import blocks_of, estimate
from analysis.tables import comparisons, comparisons_to, content, html_table, show_interval
from harness.core.errors import StoreError, UserError
from tests.analysis.shown import shown as _text
from tests.made_runs import BYTES_FULL, made_config, unseal, write_run


def test_a_block_per_setting_a_line_per_strategy(grid: Path) -> None:
    """Engines stand apart, strategies are in their fixed order, and unfinished cells are in no line."""
    blocks = blocks_of(analysis.load(grid))
    assert [block.title for block in blocks] == ["engine local", "engine rpc"]
    assert [line.strategy for line in blocks[0].lines] == ["none", "full", "cpr_vanilla", "cpr_mfu"]
    assert {len(line.cells) for line in blocks[0].lines} == {3}


def test_the_reference_stands_in_every_block_it_serves(grid: Path) -> None:
    """Where `none` ran under another setting only, the cells that are compared with it bring it along."""
    rpc = blocks_of(analysis.load(grid))[1]
    assert [line.strategy for line in rpc.lines] == ["none", "full"]
    assert rpc.lines[0].label == "none (local)"
    assert [cell["seed"] for cell in rpc.lines[0].cells] == [0]


def test_means_of_a_line_are_over_its_seeds(grid: Path) -> None:
    """AUC of a line is the mean of its cells; overhead's four parts add up to its total."""
    line = blocks_of(analysis.load(grid))[0].lines[2]
    auc, total = line.estimates["auc"], line.estimates["overhead_frac"]
    assert auc is not None
    assert total is not None
    assert auc.mean == pytest.approx(sum(cell["auc"] for cell in line.cells) / 3, rel=1e-12)
    parts = [line.estimates[f"{bucket}_frac"] for bucket in ("save", "load", "lost", "reschedule")]
    assert sum(part.mean for part in parts if part) == pytest.approx(total.mean, rel=1e-12)


def test_table_shows_intervals_and_what_is_missing(grid: Path) -> None:
    """Three seeds have an interval, one shows it as unknown; failed and unfinished cells are named below."""
    shown = _text(analysis.show_table(analysis.load(grid)))
    auc = blocks_of(analysis.load(grid))[0].lines[1].estimates["auc"]
    assert auc is not None
    assert auc.half_width is not None
    assert f"{auc.mean:.5f} ± {auc.half_width:.5f}" in shown
    assert "± ?" in shown
    assert "failed: failed-s0: RunFailed: ps2 <kept> dying" in shown
    assert "unfinished: unfinished-s0" in shown


def test_columns_of_a_cache_are_there_where_one_is(tmp_path: Path) -> None:
    """Hits, traffic saved and peak rows of runs with a cache, beside a dash for those without; no such columns else."""
    write_run(tmp_path / "plain", made_config("full"))
    without = _text(analysis.show_table(analysis.load(tmp_path), explain=True))
    write_run(tmp_path / "cached", made_config("partial", cache={"mode": "lookahead"}))
    frame = analysis.load(tmp_path)
    (cached,) = [cell for cell in cells_of(frame) if cell["strategy"] == "partial"]
    assert (cached["cache_hit_rate"], cached["cache_saved_frac"], cached["cache_peak_rows"]) == (0.625, 0.75, 1234)
    (plain,) = [cell for cell in cells_of(frame) if cell["strategy"] == "full"]
    assert plain["cache_hit_rate"] is plain["cache_saved_frac"] is plain["cache_peak_rows"] is None
    shown, page = (
        _text(analysis.show_table(frame, explain=True)),
        "".join(html_table(*content(block)) for block in blocks_of(frame)),
    )
    assert "62.5" in shown
    assert "1234" in shown
    assert "traffic saved" in page
    assert "Cache:" in shown
    assert "Cache:" not in without
    assert "peak" not in without
    assert "1.9 MB at least needed with its lookahead, 8.0 MB with" in _text(analysis.show(tmp_path / "cached"))


def test_intervals_read_well() -> None:
    """A true minus sign, a sign where asked for, ± ? for one value, a dash for none."""
    assert show_interval(estimate([-1e-3, -1e-3]), scale=1e3, digits=1, signed=True) == "−1.0 ± 0.0"
    assert show_interval(estimate([0.5]), digits=2, signed=True) == "+0.50 ± ?"
    assert show_interval(None) == "–"


def test_two_runs_compare_by_seed(grid: Path) -> None:
    """Two single runs of one seed differ by exactly the difference of their figures."""
    cells = analysis.load(grid).set_index("cell")
    (found,) = comparisons([grid / "full-s1", grid / "cpr_mfu-s1"])
    assert found.num_pairs == 1
    assert found.differences["auc"] == estimate([cells.loc["cpr_mfu-s1", "auc"] - cells.loc["full-s1", "auc"]])
    assert "strategy.name" in _text(analysis.show_comparison([grid / "full-s1", grid / "cpr_mfu-s1"]))


def test_two_grids_compare_strategy_by_strategy(grid: Path, tmp_path: Path) -> None:
    """What varies inside the grids is matched: each strategy with itself, over the seeds they share."""
    for strategy in ("full", "cpr_mfu"):
        for seed in (0, 1):
            write_run(tmp_path / "new" / f"{strategy}-{seed}", made_config(strategy, seed=seed))
    for strategy in ("full", "cpr_mfu"):
        for seed in range(3):
            shutil.copytree(grid / f"{strategy}-s{seed}", tmp_path / "old" / f"{strategy}-{seed}")
    found = comparisons([tmp_path / "old", tmp_path / "new"])
    assert [(item.group, item.num_pairs) for item in found] == [("full", 2), ("cpr_mfu", 2)]
    assert all(item.differences["auc"] == estimate([0.0, 0.0]) for item in found)


def test_draws_of_a_trace_are_compared_together(tmp_path: Path) -> None:
    """Pairs have one seed and trace; pairs under NAME-0 and NAME-1 are in one line."""
    for seed in range(2):
        config = made_config("full", seed=seed, trace={"path": f"failure_traces/poisson-{seed}.csv"})
        for folder in ("old", "new"):
            write_run(tmp_path / folder / str(seed), config)
    assert [item.num_pairs for item in comparisons([tmp_path / "old", tmp_path / "new"])] == [2]


def test_a_folder_is_compared_with_every_value_of_a_key_that_the_other_sweeps(grid: Path, tmp_path: Path) -> None:
    """One line for each value, the same runs as base of all; the other way round there is no telling which is meant."""
    for seed in range(2):
        for staleness in (0, 10):
            config = made_config("full", seed=seed, cache={"mode": "stale", "staleness": staleness})
            write_run(tmp_path / "stale" / f"{staleness}-{seed}", config)
        shutil.copytree(grid / f"full-s{seed}", tmp_path / "exact" / f"{seed}")
    found = comparisons([tmp_path / "exact", tmp_path / "stale"])
    assert [(item.group, item.num_pairs) for item in found] == [("0", 2), ("10", 2)]
    with pytest.raises(UserError, match="expected finished cells with equal"):
        comparisons([tmp_path / "stale", tmp_path / "exact"])


def test_each_value_of_an_option_is_a_baseline_of_strategies_without_it(tmp_path: Path) -> None:
    """Where the baseline ran with several values of its own option, the others are compared with each of them."""
    for seed in range(2):
        write_run(tmp_path / f"full-{seed}", made_config("full", seed=seed))
        for r in (0.125, 0.25):
            write_run(tmp_path / f"mfu-{r}-{seed}", made_config("cpr_mfu", seed=seed, strategy={"r": r}), auc=r)
    found = {item.group: item for item in comparisons_to(tmp_path, "cpr_mfu")}
    assert found.keys() == {"full, to strategy.r 0.125", "full, to strategy.r 0.25"}
    assert [item.num_pairs for item in found.values()] == [2, 2]
    assert len(comparisons_to(tmp_path, "full")) == 2


def test_strategies_of_a_grid_compare_to_one_of_them(grid: Path) -> None:
    """Every other strategy, paired by seed with the one that is named; one that did not run is refused by name."""
    found = comparisons_to(grid, "full")
    assert "full" not in [item.group for item in found]
    mfu = next(item for item in found if item.group == "cpr_mfu, local")
    cells = {(cell["strategy"], cell["seed"]): cell for cell in cells_of(analysis.load(grid))}
    seeds = sorted(seed for strategy, seed in cells if strategy == "cpr_mfu")
    differences = [cells["cpr_mfu", seed]["payload_bytes"] - cells["full", seed]["payload_bytes"] for seed in seeds]
    assert mfu.num_pairs == len(seeds)
    measured = mfu.differences["payload_bytes"]
    assert measured is not None
    assert measured.mean == sum(differences) / len(differences)
    assert "less full" in _text(analysis.show_comparison_to(grid, "full"))
    with pytest.raises(UserError, match=r"no finished cell of strategy cpr_ssu; finished there: "):
        comparisons_to(grid, "cpr_ssu")
    with pytest.raises(UserError, match=r"full-s0: expected a finished cell of another strategy than full, got none"):
        comparisons_to(grid / "full-s0", "full")


def test_nothing_to_compare_is_one_line(grid: Path) -> None:
    """Runs of different seeds make no pair; one folder makes no comparison."""
    with pytest.raises(UserError, match="expected finished cells with equal seed"):
        comparisons([grid / "full-s1", grid / "full-s2"])
    with pytest.raises(UserError, match="expected two or more folders"):
        comparisons([grid / "full-s1"])


def test_what_is_damaged_is_named_by_comparisons(grid: Path, tmp_path: Path) -> None:
    """Where damage leaves no pair it is the error, where pairs are left it stands below them, with the file."""
    for name in ("full-s0", "full-s1", "cpr_mfu-s0", "cpr_mfu-s1"):
        shutil.copytree(grid / name, tmp_path / name[:-3] / name)
        unseal(tmp_path / name[:-3] / name)
    file = tmp_path / "full" / "full-s0" / "events.jsonl"
    file.write_text("{\n")
    dirs = [tmp_path / "full", tmp_path / "cpr_mfu"]
    for left in (_text(analysis.show_comparison(dirs)), _text(analysis.show_comparison_to(tmp_path, "full"))):
        assert f"left out, damaged: {file}:1: not an event" in left
    (tmp_path / "full" / "full-s1" / "events.jsonl").write_text("")
    for look in (lambda: comparisons(dirs), lambda: comparisons_to(tmp_path, "full")):
        with pytest.raises(StoreError) as caught:
            look()
        assert str(caught.value).startswith(f"{file}:1: not an event")
        assert str(caught.value).endswith(" (and 1 more damaged cells)")


def test_overhead_beyond_the_job_is_marked(tmp_path: Path) -> None:
    """A total of more than the job has a mark and a footnote, in table, story and report; others have none."""
    write_run(tmp_path / "well" / "run", made_config("full"))
    write_run(tmp_path / "absurd" / "run", made_config("full", profile={"base": "busy", "o_load_h": 60.0}))
    for name, is_marked in (("well", False), ("absurd", True)):
        folder = tmp_path / name
        looks = (_text(analysis.show_table(analysis.load(folder))), analysis.report(folder).read_text())
        assert [(" †" in look, "longer than the job itself" in look) for look in looks] == [(is_marked, is_marked)] * 2
        assert ("longer than the job itself" in _text(analysis.show(folder / "run"))) is is_marked


def test_resources_have_columns_where_the_profile_has_prices(tmp_path: Path) -> None:
    """Node-hours and bytes of runs on 4 + 2 nodes; no column of zeros, and none at all without a number of trainers."""
    for name, profile in (("priced", {"base": "busy", "num_trainers": 2}), ("plain", "busy")):
        for strategy in ("never_save", "full"):
            write_run(tmp_path / name / strategy, made_config(strategy, profile=profile))
    full = next(row for row in cells_of(analysis.load(tmp_path / "priced")) if row["strategy"] == "full")
    assert full["node_h"] == pytest.approx(6 * 56 * full["overhead_frac"])
    assert full["wire_bytes"] == full["payload_bytes"] + 5 * BYTES_FULL
    priced, plain = (
        _text(analysis.show_table(analysis.load(tmp_path / name), explain=True)) for name in ("priced", "plain")
    )
    for said, is_priced in ((priced, True), (plain, False)):
        assert (f"{full['node_h']:.2f}" in said, "Resources:" in said) == (is_priced, is_priced)
        assert "memory" not in said.replace("memory is that", "")
    frames = [analysis.table(analysis.load(tmp_path / name)) for name in ("priced", "plain")]
    assert [{"node_h", "wire_bytes"} <= {*frame.columns} for frame in frames] == [True, False]
    assert "node-hours" in _text(analysis.show(tmp_path / "priced" / "full"))


def test_what_was_skipped_is_said_once(tmp_path: Path) -> None:
    """A manifest that cannot be read is told of in one sentence."""
    write_run(tmp_path / "run", made_config())
    (tmp_path / "run" / "checkpoints").mkdir()
    (tmp_path / "run" / "checkpoints" / "manifest-000014.json").write_text("{")
    story = _text(analysis.show(tmp_path / "run"))
    assert "; skipped manifest-000014.json: " in story


def test_a_run_s_story(grid: Path) -> None:
    """show tells who was killed, what was restored, and the final figures; a failed run tells why."""
    story = _text(analysis.show(grid / "full-s1"))
    assert story.count("all ranks from checkpoint") == 5
    assert "ps0, ps3 replaced" in story
    assert "emulated overhead" in story
    assert "measured stall" in story
    assert "RunFailed: ps2 <kept> dying" in _text(analysis.show(grid / "failed-s0"))
    with pytest.raises(StoreError, match="expected a run folder"):
        analysis.show(grid)


def test_how_numbers_are_made_is_said_once_and_where_it_is_asked_for(grid: Path) -> None:
    """Law: notes on the method are below the tables with ``explain`` alone; the text of a table is its ``str``."""
    frame = analysis.load(grid)
    looks = {
        "Means over n seeds": (analysis.show_table(frame), analysis.show_table(frame, explain=True)),
        "One-sided paired t-tests": (analysis.advice(frame), analysis.advice(frame, explain=True)),
        "Paired by seed": (
            analysis.show_comparison_to(grid, "full"),
            analysis.show_comparison_to(grid, "full", explain=True),
        ),
    }
    for words, (plain, explained) in looks.items():
        assert [str(look).count(words) for look in (plain, explained)] == [0, 1]
    assert "cpr_mfu" in str(analysis.show_table(frame))
