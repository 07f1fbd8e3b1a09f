"""The table per strategy and comparisons: on the console, as frames, as text for papers."""

import io
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from rich.console import Console

import analysis
from analysis import figures
from analysis.stats import blocks_of, estimate, seeds_text, verdicts
from analysis.stats.partners import Rounding
from analysis.tables import comparisons, content, footnotes, show_interval
from harness.core.errors import StoreError, UserError
from tests.analysis.shown import shown as _text
from tests.made_runs import BYTES_FULL, made_config, reseal, write_run


def test_a_block_per_setting_a_line_per_strategy(grid: Path) -> None:
    """Engines stand apart, strategies are in their order, unfinished cells are in no line, a mean is over its seeds.

    Where `none` ran under another setting only, the cells that are compared with it bring it along.
    """
    local, rpc = analysis.blocks_of(analysis.load(grid))
    assert [local.title, rpc.title] == ["engine local", "engine rpc"]
    assert [line.strategy for line in local.lines] == ["none", "full", "cpr_vanilla", "cpr_mfu"]
    assert {len(line.cells) for line in local.lines} == {3}
    assert [line.label for line in rpc.lines] == ["none (local)", "full"]
    assert [*rpc.lines[0].cells["seed"]] == [0]
    line = local.lines[2]
    assert line.mean("auc") == pytest.approx(line.cells["auc"].mean(), rel=1e-12)
    parts = [line.mean(f"{bucket}_frac") for bucket in ("save", "load", "lost", "reschedule")]
    assert sum(parts) == pytest.approx(line.mean("overhead_frac"), rel=1e-12)


def test_every_form_of_the_table_has_the_same_numbers(grid: Path) -> None:
    """Console and Markdown round the frame's estimates; CSV is the frame. What is missing is named below the console's.

    Three seeds have an interval, one shows it as unknown.
    """
    frame = analysis.load(grid)
    lines = [line for block in analysis.blocks_of(frame) for line in block.lines]
    found, console = analysis.table(frame), str(analysis.show_table(frame))
    markdown = analysis.table_text(frame, "markdown").splitlines()
    assert found["strategy"].to_list() == [line.label for line in lines]
    assert found["engine"].to_list() == ["local"] * 4 + ["rpc"] * 2
    assert found["num"].to_list() == [3, 3, 3, 3, 1, 1]
    assert len(markdown) == 2 + 6
    assert len({line.count("|") for line in markdown}) == 1
    for number, line in enumerate(lines[:4]):
        auc: Any = line.estimate("auc")
        difference: Any = line.auc_difference
        row = found.iloc[number]
        assert (row["auc"], row["auc_half_width"]) == (auc.mean, auc.half_width)
        assert (row["auc_difference"], row["auc_difference_half_width"]) == (difference.mean, difference.half_width)
        assert f"{auc.mean:.5f} ± {auc.half_width:.5f}" in markdown[2 + number]
        assert f"{auc.mean:.5f} ± {auc.half_width:.5f}" in console
    assert pd.isna(found.iloc[5]["auc_half_width"])
    assert "± ?" in console
    assert "failed: failed-s0: RunFailed: ps2 <kept> dying" in console
    assert "unfinished: unfinished-s0" in console
    read = pd.read_csv(io.StringIO(analysis.table_text(frame, "csv")))
    pd.testing.assert_frame_equal(read, found, check_dtype=False, rtol=1e-15)
    nothing = analysis.table_text(analysis.load(grid / "failed-s0"), "csv")
    assert nothing.splitlines() == [",".join(found)]


def test_a_latex_table_has_the_columns_that_were_asked_for(grid: Path) -> None:
    """At most eight by default; strategies by other names; with a caption it is a float, whose label is the caption's.
    A wrong column lists all.

    It is plain ASCII with as many cells in each row as its head has; comparisons too.
    """
    frame = analysis.load(grid)
    plain = analysis.table_text(frame, "latex")
    for text in (plain, analysis.comparison_text(comparisons([grid], "full"), "latex")):
        assert text.isascii()
        assert len({line.count(" & ") for line in text.splitlines() if line.endswith(r"\\")}) == 1
        assert r"cpr\_mfu" in text
        assert r"$\pm$" in text
    assert plain.splitlines()[2].count("&") <= 8, "the setting, and eight columns"
    options: dict[str, Any] = {"columns": ("strategy", "total"), "labels": {"cpr_mfu": "CPR-MFU"}}
    text = analysis.table_text(frame, "latex", **options, caption="Overhead.")
    assert text.startswith("\\begin{table}")
    assert "\\caption{Overhead.}" in text
    assert "label" not in text, "two tables of one document would have the same"
    assert "CPR-MFU &" in text
    assert r"cpr\_mfu" not in text
    assert "| CPR-MFU |" in analysis.table_text(frame, "markdown", **options)
    with pytest.raises(UserError, match=r"--columns: expected some of strategy, n, auc, .*; got auk$"):
        analysis.table_text(frame, "latex", columns=("auk",))
    with pytest.raises(UserError, match="a CSV file has all columns"):
        analysis.table_text(frame, "csv", columns=("auc",))


def test_strategies_of_one_folder_are_compared_without_its_path(grid: Path) -> None:
    """A table of a paper has the strategies alone; of two folders it names both, and CSV always does."""
    within, across = comparisons([grid], "full"), comparisons([grid, grid])
    for kind in ("latex", "markdown"):
        text = analysis.comparison_text(within, kind)
        assert text.count(grid.name) == 0
        assert len([line for line in text.splitlines() if "full" in line]) == len(within)
        assert analysis.comparison_text(across, kind).count(grid.name) == 2 * len(across)
    assert analysis.comparison_text(within, "csv").count(grid.name) == 2 * len(within)


def test_columns_are_there_where_a_run_has_what_they_show(tmp_path: Path) -> None:
    """Hits and traffic saved of a cache, node-hours where the profile has prices, a mark where overhead passes the job.

    In table and story; no column of zeros, and none of these for runs without.
    """
    notes = ("Cache:", "peak", "Resources:", " †", "longer than the job itself")
    write_run(tmp_path / "plain" / "full", made_config("full"))
    plain = analysis.load(tmp_path / "plain")
    said = str(analysis.show_table(plain, explain=True)) + str(analysis.show(tmp_path / "plain" / "full"))
    assert not any(each in said for each in notes)
    assert not {"node_h", "wire_bytes"} & {*analysis.table(plain)}
    rich = tmp_path / "rich"
    write_run(rich / "cached", made_config("partial", cache={"mode": "lookahead"}))
    write_run(rich / "priced", made_config("full", profile={"base": "busy", "num_trainers": 2}))
    write_run(rich / "absurd", made_config("full", seed=1, profile={"base": "busy", "o_load_h": 60.0}))
    frame = analysis.load(rich)
    cells = frame.set_index("cell")
    caches = cells[["cache_hit_rate", "cache_saved_frac", "cache_peak_rows"]]
    assert [*caches.loc["cached"]] == [0.625, 0.75, 1234]
    assert caches.loc["priced"].isna().all()
    full = cells.loc["priced"]
    assert full["node_h"] == pytest.approx(6 * 56 * full["overhead_frac"])  # of 4 + 2 nodes
    assert full["wire_bytes"] == full["payload_bytes"] + 5 * BYTES_FULL
    names = ("hits", "traffic_saved", "peak_rows", "node_h", "total")
    said = str(analysis.show_table(frame, explain=True, columns=names))
    assert all(each in said for each in (*notes, "62.5", "1234", f"{full['node_h']:.2f}"))
    assert "memory" not in said.replace("memory is that", "")
    stories = {"cached": "1.9 MB at least needed with its lookahead, 8.0 MB with", "priced": "node-hours"}
    for name, words in {**stories, "absurd": "longer than the job itself"}.items():
        assert words in str(analysis.show(rich / name))


def test_a_table_without_a_finished_cell_has_the_columns_of_others(grid: Path) -> None:
    """Law: results of another version, which are damaged, are no rows and no KeyError; a figure of them is empty."""
    frame = analysis.load(grid)
    none = analysis.table(frame.assign(status="damaged"))
    assert ([*none], len(none)) == ([*analysis.table(frame)], 0)
    ax: Any = figures.front(none, y="drop", ax=Figure().subplots())
    assert not ax.containers


def test_an_overhead_without_a_price_is_a_dash_and_no_zero(tmp_path: Path) -> None:
    """Of a strategy whose tracker has no price: in the table, in the advice, in the story, and never on the front."""
    profile = {"base": "busy", "step_frac": {"ssu": 0.02}}
    for name in ("none", "full", "cpr_mfu", "cpr_ssu"):
        for seed in range(3):
            write_run(tmp_path / f"{name}-{seed}", made_config(name, seed=seed, profile=profile))
    frame = analysis.load(tmp_path)
    known = frame.set_index("strategy")["overhead_frac"].notna().groupby(level=0).all()
    assert known.to_dict() == {"none": True, "full": True, "cpr_mfu": False, "cpr_ssu": True}
    (block,) = analysis.blocks_of(frame)
    columns, rows = content(block, names=("strategy", "steps", "total"))
    assert [column.title for column in columns] == ["strategy", "steps", "total"]
    texts = {name: own for name, *own in rows}
    assert (texts["cpr_mfu"], texts["full"][0]) == (["–", "–"], "0.00")
    assert float(texts["cpr_ssu"][0]) >= 2
    (alone,) = analysis.blocks_of(analysis.load(tmp_path / "cpr_mfu-0"))
    assert content(alone, names=("steps", "total"))[1] == [["–", "–"]]
    assert "a dash, and so no total, if it has no price" in str(footnotes([alone]))
    (*_, last) = verdicts(block)
    assert (last.strategy, last.on_front) == ("cpr_mfu", False)
    assert "emulated overhead –: save" in str(analysis.show(tmp_path / "cpr_mfu-0"))


def test_intervals_read_well() -> None:
    """A true minus sign, a sign where asked for, ± ? for one value, a dash for none. Seeds in a row are a range."""
    assert show_interval(estimate([-1e-3, -1e-3]), scale=1e3, digits=1, signed=True) == "−1.0 ± 0.0"
    assert show_interval(estimate([0.5]), digits=2, signed=True) == "+0.50 ± ?"
    assert show_interval(None) == "–"
    assert [seeds_text([3]), seeds_text([5, 0, 2, 1, 1])] == ["seed 3", "seeds 0–2, 5"]


def test_how_numbers_are_made_is_said_once_and_where_it_is_asked_for(grid: Path) -> None:
    """Law: notes on the method are below the tables with ``explain`` alone."""
    frame = analysis.load(grid)
    looks = {
        "Means over n runs": [analysis.show_table(frame, explain=each) for each in (False, True)],
        "One-sided paired t-tests": [analysis.advice(frame, explain=each) for each in (False, True)],
        "Paired by seed": [analysis.show_comparison([grid], "full", explain=each) for each in (False, True)],
    }
    assert all([str(look).count(words) for look in own] == [0, 1] for words, own in looks.items())


def test_two_effects_of_rounding_name_their_settings(grid: Path) -> None:
    """Below the tables each stands after the setting it is of; a single one, or an equal one, without."""
    local, rpc = blocks_of(analysis.load(grid))
    for others, starts in ((2e-4, ["engine local: Rounding: ", "engine rpc: Rounding: "]), (1e-4, ["Rounding: "])):
        own = (replace(local, rounding=Rounding(1e-4, 3, 3)), replace(rpc, rounding=Rounding(others, 3, 3)))
        lines = [line for line in footnotes(own) if "Rounding" in line]
        assert [line.partition("alone")[0] for line in lines] == starts


@pytest.mark.parametrize("key", ["strategy.r", "trace.law"])
def test_a_swept_option_has_one_table(tmp_path: Path, key: str) -> None:
    """Settings are down, in numeric order, strategies across; one without the option has its numbers once.

    Loss and overhead by default, any column by name, in console, LaTeX and Markdown alike. On a narrow console the
    strategies without room follow below.
    """
    laws: dict[Any, int] = {"fixed2": 2, "fixed6": 6, "fixed16": 16}
    values = [0.125, 0.25, 0.5] if key == "strategy.r" else [*laws]
    group, _, name = key.partition(".")
    for seed in range(2):
        for strategy in ("none", *["full"] * (group == "strategy")):
            write_run(tmp_path / f"{strategy}-{seed}", made_config(strategy, seed=seed))
        for value in values:
            law = {"path": None, "law": {"model": "fixed", "number": laws.get(value)}}
            given = law if group == "trace" else {name: value}
            for strategy in ("cpr_mfu", "cpr_ssu", *["full"] * (group == "trace")):
                config = made_config(strategy, seed=seed, **{group: given})
                write_run(tmp_path / f"{strategy}-{value}-{seed}", config, auc=1e-4 * len(str(value)))
    frame = analysis.load(tmp_path)
    blocks = analysis.blocks_of(frame)
    wide = [line.split("|")[1:-1] for line in analysis.table_text(frame, "markdown").splitlines()]
    head, _, *rows = [[cell.strip() for cell in line] for line in wide]
    own = [row for row in rows if row[1] in map(str, values)]
    assert head[1] == key
    assert [row[1] for row in own] == [*map(str, values)] * 2
    place = head.index("cpr_ssu")
    for row, block in zip(own, blocks, strict=False):
        line = next(line for line in block.lines if line.strategy == "cpr_ssu")
        assert row[place] == show_interval(line.auc_difference, scale=1e3, signed=True)
    assert len([row for row in rows if row[head.index("full")]]) == (2 if group == "strategy" else 6)
    latex = analysis.table_text(frame, "latex", columns=("auc",), labels={"full": "Full"})
    assert len({line.count(" & ") for line in latex.splitlines() if line.endswith(r"\\")}) == 1
    assert (latex.count("AUC"), latex.count("Full"), latex.count("none")) == (1, 1, 1)
    by_drops = analysis.table_text(frame, "markdown", measure=analysis.MEASURES["drop"])
    assert "ΔAUC" in by_drops, "no drop is on record"
    narrow = io.StringIO()
    Console(file=narrow, width=45).print(analysis.show_table(frame))
    assert narrow.getvalue().count(f"{key} ") == 3, "a table for each strategy"
    assert "Left out" not in narrow.getvalue()
    assert str(analysis.show_table(frame)).count(f"{key} ") == 1


# --- comparisons ------------------------------------------------------------------------------------------------------


def test_two_runs_compare_by_seed(grid: Path) -> None:
    """Two single runs of one seed differ by exactly the difference of their figures; other seeds are no pair."""
    cells = analysis.load(grid).set_index("cell")
    dirs = [grid / "full-s1", grid / "cpr_mfu-s1"]
    (found,) = comparisons(dirs)
    assert found.differences["auc"] == estimate([cells.loc["cpr_mfu-s1", "auc"] - cells.loc["full-s1", "auc"]])
    assert analysis.compare(dirs)["num"].to_list() == [1]
    assert "strategy.name" in str(analysis.show_comparison(dirs))
    with pytest.raises(UserError, match="expected finished cells with equal seed"):
        comparisons([grid / "full-s1", grid / "full-s2"])
    with pytest.raises(UserError, match="expected two or more folders"):
        comparisons([grid / "full-s1"])


def test_two_grids_compare_strategy_by_strategy(tmp_path: Path) -> None:
    """What varies inside the grids is matched: each strategy with itself, over the seeds they share.

    Pairs have one trace; pairs under NAME-0 and NAME-1, draws of it, are in one line.
    """
    for folder, num in (("old", 3), ("new", 2)):
        for seed in range(num):
            for strategy in ("full", "cpr_mfu"):
                config = made_config(strategy, seed=seed, trace={"path": f"failure_traces/poisson-{seed}.csv"})
                write_run(tmp_path / folder / f"{strategy}-{seed}", config)
    found = comparisons([tmp_path / "old", tmp_path / "new"])
    assert [(item.group, len(item.pairs)) for item in found] == [("full, poisson", 2), ("cpr_mfu, poisson", 2)]
    assert all(item.differences["auc"] == estimate([0.0, 0.0]) for item in found)


@pytest.mark.parametrize("drawn_by", ["files", "trace.seed"])
def test_pairs_that_share_a_seed_or_a_trace_are_not_independent(tmp_path: Path, drawn_by: str) -> None:
    """Each seed under each draw: the interval is that of the table of strategies, which is wider than of 9 values."""
    values = np.random.default_rng(0).normal(0, 1e-3, (3, 3)) + np.arange(3) * 2e-3
    for seed, draw in np.ndindex(3, 3):
        by_law, by_file = {"law": "exponential", "seed": draw}, {"path": f"failure_traces/poisson-{draw}.csv"}
        trace = by_file if drawn_by == "files" else by_law
        write_run(tmp_path / f"none-{seed}-{draw}", made_config("none", seed=seed, trace=trace), auc=0.7)
        made = made_config("cpr_mfu", seed=seed, trace=trace)
        write_run(tmp_path / f"mfu-{seed}-{draw}", made, auc=0.7 + float(values[seed, draw]))
    (found,) = comparisons([tmp_path], "none")
    (line,) = (line for line in blocks_of(analysis.load(tmp_path))[0].lines if line.strategy == "cpr_mfu")
    crossed: Any = found.differences["auc"]
    loss: Any = line.loss
    independent: Any = estimate(values.ravel().tolist())
    assert crossed.interval == pytest.approx(loss.negated.interval)
    assert crossed.half_width > 1.5 * independent.half_width


def test_a_folder_is_compared_with_every_value_of_a_key_that_the_other_sweeps(grid: Path, tmp_path: Path) -> None:
    """One line for each value, the same runs as base of all; the other way round there is no telling which is meant."""
    for seed in range(2):
        for staleness in (0, 10):
            config = made_config("full", seed=seed, cache={"mode": "stale", "staleness": staleness})
            write_run(tmp_path / "stale" / f"{staleness}-{seed}", config)
        shutil.copytree(grid / f"full-s{seed}", tmp_path / "exact" / f"{seed}")
    found = comparisons([tmp_path / "exact", tmp_path / "stale"])
    assert [(item.group, len(item.pairs)) for item in found] == [("0", 2), ("10", 2)]
    with pytest.raises(UserError, match="expected finished cells with equal"):
        comparisons([tmp_path / "stale", tmp_path / "exact"])


def test_each_value_of_an_option_is_a_baseline_of_strategies_without_it(tmp_path: Path) -> None:
    """Where the baseline ran with several values of its own option, the others are compared with each of them."""
    for seed in range(2):
        write_run(tmp_path / f"full-{seed}", made_config("full", seed=seed))
        for r in (0.125, 0.25):
            write_run(tmp_path / f"mfu-{r}-{seed}", made_config("cpr_mfu", seed=seed, strategy={"r": r}), auc=r)
    found = {item.group: len(item.pairs) for item in comparisons([tmp_path], "cpr_mfu")}
    assert found == {"full, to strategy.r 0.125": 2, "full, to strategy.r 0.25": 2}
    assert len(comparisons([tmp_path], "full")) == 2


def test_the_cell_with_most_values_in_common_is_the_partner(tmp_path: Path) -> None:
    """Of several that are as near, and have equal results, one counts."""
    for name, staleness in (("full", 0), ("full", 10), ("full", 20), ("partial", 10), ("partial", 30)):
        config = made_config(name, cache={"mode": "stale", "staleness": staleness})
        write_run(tmp_path / f"{name}{staleness}", config)
    found = {item.group: item.pairs for item in comparisons([tmp_path], "full")}
    assert [*found["partial, cache.staleness 10"]["cache.staleness base"]] == [10]
    assert len(found["partial, cache.staleness 30"]) == 1


def test_strategies_of_a_grid_compare_to_one_of_them(grid: Path) -> None:
    """Every other strategy, paired by seed with the one that is named; one that did not run is refused by name."""
    found = {item.group: item for item in comparisons([grid], "full")}
    assert not any(group.startswith("full") for group in found)
    frame = analysis.load(grid)
    local = frame[frame["engine"] == "local"]
    mfu, full = (local.loc[local["strategy"] == name, "payload_bytes"].to_list() for name in ("cpr_mfu", "full"))
    differences = [float(one - other) for one, other in zip(mfu, full, strict=True)]
    assert found["cpr_mfu, local"].differences["payload_bytes"] == estimate(differences)
    table = analysis.compare([grid], "full").set_index("group")
    assert table["num"].to_dict() == {group: len(item.pairs) for group, item in found.items()}
    assert table.loc["cpr_mfu, local", "payload_bytes"] == sum(differences) / 3
    assert "less full" in str(analysis.show_comparison([grid], "full"))
    with pytest.raises(UserError, match=r"no finished cell of strategy cpr_ssu; finished there: "):
        comparisons([grid], "cpr_ssu")
    with pytest.raises(UserError, match=r"full-s0: expected a finished cell of another strategy than full, got none"):
        comparisons([grid / "full-s0"], "full")


def test_what_is_damaged_is_named_by_comparisons(grid: Path, tmp_path: Path) -> None:
    """Where damage leaves no pair it is the error, where pairs are left it stands below them, with the file."""
    for name in ("full-s0", "full-s1", "cpr_mfu-s0", "cpr_mfu-s1"):
        shutil.copytree(grid / name, tmp_path / name[:-3] / name)
    file = tmp_path / "full" / "full-s0" / "events.jsonl"
    file.write_text("{\n")
    reseal(file.parent)
    dirs = [tmp_path / "full", tmp_path / "cpr_mfu"]
    for left in (_text(analysis.show_comparison(dirs)), _text(analysis.show_comparison([tmp_path], "full"))):
        assert f"left out, damaged: {file}:1: not an event" in left
    (tmp_path / "full" / "full-s1" / "config.yaml").write_text("")
    for look in (lambda: comparisons(dirs), lambda: comparisons([tmp_path], "full")):
        with pytest.raises(StoreError) as caught:
            look()
        assert str(caught.value).startswith(f"{file}:1: not an event")
        assert str(caught.value).endswith(" (and 1 more damaged cells)")


# --- cells without a partner ------------------------------------------------------------------------------------------


@pytest.fixture
def lacking(tmp_path: Path) -> Path:
    """Three seeds of ``none``, ``full`` and ``partial``; seed 2 is damaged for ``none``, missing for ``partial``."""
    for strategy in ("none", "full", "partial"):
        for seed in range(3 - (strategy == "partial")):
            write_run(tmp_path / f"{strategy}-{seed}", made_config(strategy, seed=seed))
    (tmp_path / "none-2" / "events.jsonl").unlink()
    return tmp_path


def test_fewer_pairs_than_cells_are_shown_and_explained(lacking: Path) -> None:
    """The number of pairs stands beside the difference, and a line names seed and reason.

    A seed that only one of two compared strategies has is named below the comparison.
    """
    frame: Any = analysis.load(lacking)
    said = "ΔAUC of full is over 2 of 3 cells: none has no result (damaged) for seed 2."
    table = _text(analysis.show_table(frame))
    assert said in table
    rows = {line.split()[0]: line for line in table.splitlines() if line.strip()}
    assert " (2) " in rows["full"]
    assert " (2) " not in rows["partial"]
    assert "ΔAUC of partial" not in table
    assert [*analysis.table(frame).set_index("strategy").loc["full", ["num", "num_pairs"]]] == [3, 2]
    verdicts = {line.split()[0]: line.split() for line in str(analysis.advice(frame)).splitlines() if line.strip()}
    assert verdicts["full"][1] == "2"
    alone = str(analysis.show_table(frame[frame["strategy"] == "full"]))
    assert "ΔAUC is unknown: there is no finished cell of none; the same grid with" in alone
    said = _text(analysis.show_comparison([lacking], "partial"))
    assert (
        "full: 2 of 3 cells have a partner: partial has no result, or several, of the same setting for seed 2" in said
    )
    said = _text(analysis.show_comparison([lacking], "full"))
    assert "partial: 2 of 2 cells have a partner: partial has no result for seed 2." in said


def test_comparisons_of_folders_count_what_has_no_partner(lacking: Path, tmp_path: Path) -> None:
    """Cells of each folder without a partner are counted and named, as are copies; equal strategies do not differ."""
    other = tmp_path / "other"
    for name, seed in (("full-1", 1), ("full-7", 7), ("copy", 7)):
        write_run(other / name, made_config("full", seed=seed))
    (lacking / "one").mkdir()
    for name in ("none-0", "partial-0", "full-1"):
        (lacking / name).rename(lacking / "one" / name)
    said = _text(analysis.show_comparison([lacking / "one", other]))
    assert f"{lacking / 'one'}: 2 of 3 cells have no partner: none seed 0, partial seed 0." in said
    assert f"{other}: 1 of 2 cells have no partner: full seed 7." in said
    assert "left out, copy: " in said
    assert "strategy.name" not in said


def test_a_difference_without_spread_and_equal_models_are_named(tmp_path: Path) -> None:
    """Law: a ratio beyond 99 standard errors is no evidence, but a difference that hardly depends on the seed.

    Pairs whose final models are equal to the bit are counted.
    """
    for seed in range(3):
        write_run(tmp_path / f"mfu{seed}", made_config("cpr_mfu", seed=seed), drop=1e-5, model="1")
        write_run(
            tmp_path / f"vanilla{seed}", made_config("cpr_vanilla", seed=seed), drop=1e-3 + 1e-9 * seed, model="1"
        )
        write_run(
            tmp_path / "again" / f"mfu{seed}", made_config("cpr_mfu", seed=seed, engine="rpc"), drop=1e-5, model="1"
        )
    text = _text(analysis.show_comparison([tmp_path], "cpr_vanilla", explain=True))
    assert "no spread" in text
    assert "No spread: all pairs have about the same difference" in text
    assert "beyond" not in text
    assert "equal to the bit" not in text
    frame = analysis.load(tmp_path)
    for engine in ("local", "rpc"):
        (tmp_path / engine).mkdir()
        for path in frame.loc[(frame["strategy"] == "cpr_mfu") & (frame["engine"] == engine), "path"]:
            shutil.move(path, tmp_path / engine)
    found = comparisons([tmp_path / "local", tmp_path / "rpc"])
    assert [each.num_equal for each in found] == [3]
    assert "Final models equal to the bit: pairs 3 of 3." in _text(
        analysis.show_comparison([tmp_path / "local", tmp_path / "rpc"])
    )


def test_a_mean_of_drops_says_over_how_many_cells_it_is_if_some_have_none(tmp_path: Path) -> None:
    """Law: in the table of strategies, and in a comparison; other means are of all cells, and have no number."""
    for seed in range(4):
        write_run(tmp_path / f"none-{seed}", made_config("none", seed=seed))
        write_run(tmp_path / f"full-{seed}", made_config("full", seed=seed), drop=0.0)
        write_run(tmp_path / f"mfu-{seed}", made_config("cpr_mfu", seed=seed), drop=None if seed < 2 else 1e-4 + seed)
    text = analysis.table_text(analysis.load(tmp_path), "markdown")
    (mfu,) = (line for line in text.splitlines() if "cpr_mfu" in line)
    assert mfu.count("(2) |") == 1
    assert text.count("(") == mfu.count("(")
    for shown in (
        str(analysis.show_comparison([tmp_path], "full")),
        analysis.comparison_text(comparisons([tmp_path], "full"), "markdown"),
    ):
        (mfu,) = (line for line in shown.splitlines() if "cpr_mfu" in line)
        assert mfu.count("(2)") == 1


def test_none_is_the_partner_of_cells_under_every_trace(tmp_path: Path) -> None:
    """Law: a grid over traces runs it once a seed, and a comparison with it has all cells, once each."""
    for seed in range(3):
        write_run(tmp_path / f"none-{seed}", made_config("none", seed=seed))
        for trace in ("busy", "phases"):
            config = made_config("full", seed=seed, trace={"path": f"failure_traces/{trace}.csv"})
            write_run(tmp_path / f"full-{trace}-{seed}", config, drop=0.0, trace=f"digest of {trace}")
    (found,) = comparisons([tmp_path], "none")
    assert len(found.pairs) == found.pairs["path"].nunique() == 6
    assert (found.pairs["seed"] == found.pairs["seed base"]).all()
    assert "have a partner" not in str(analysis.show_comparison([tmp_path], "none"))
