"""Tables and comparisons as frames, as text for papers, and the files beside a report."""

import io
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import analysis
from analysis.stats import blocks_of
from analysis.tables import comparisons_to
from harness.core.errors import UserError


def test_the_table_is_a_frame(grid: Path) -> None:
    """A row per setting and strategy, with the estimates of the console's table, unrounded."""
    frame = analysis.load(grid)
    found = analysis.table(frame)
    lines = [line for block in blocks_of(frame) for line in block.lines]
    assert found["strategy"].to_list() == [line.label for line in lines]
    assert found["engine"].to_list() == ["local"] * 4 + ["rpc"] * 2
    assert found["num"].to_list() == [3, 3, 3, 3, 1, 1]
    difference = lines[2].auc_difference
    assert difference is not None
    row = found.iloc[2]
    assert (row["auc_difference"], row["auc_difference_half_width"]) == (difference.mean, difference.half_width)
    assert pd.isna(found.iloc[5]["auc_half_width"]), "one seed has no interval"


def test_a_table_of_nothing_is_its_head(grid: Path) -> None:
    """Without a finished cell the CSV has the names of columns and no row."""
    text = analysis.table_text(analysis.load(grid / "failed-s0"), "csv")
    assert text == "engine,trace,profile,num_ps,strategy,num,num_pairs\n"


def test_a_comparison_is_a_frame(grid: Path) -> None:
    """A row per comparison, with the same differences."""
    found = analysis.compare_to(grid, "full").set_index("group")
    for item in comparisons_to(grid, "full"):
        value = item.differences["auc"]
        assert value is not None
        assert found.loc[item.group, "auc"] == value.mean
        assert found.loc[item.group, "num"] == item.num_pairs
    pair = analysis.compare([grid / "full-s1", grid / "cpr_mfu-s1"])
    assert pair["num"].to_list() == [1]


def test_csv_is_the_frame(grid: Path) -> None:
    """The CSV gives the numbers of the frame back."""
    frame = analysis.load(grid)
    read = pd.read_csv(io.StringIO(analysis.table_text(frame, "csv")))
    pd.testing.assert_frame_equal(read, analysis.table(frame), check_dtype=False, rtol=1e-15)


def test_latex_needs_no_package_for_its_letters(grid: Path) -> None:
    """The table is plain ASCII with as many cells in each row as its head has; comparisons too."""
    frame = analysis.load(grid)
    for text in (
        analysis.table_text(frame, "latex"),
        analysis.comparison_text(comparisons_to(grid, "full"), "latex"),
    ):
        assert text.isascii()
        rows = [line for line in text.splitlines() if line.endswith(r"\\")]
        assert len({line.count(" & ") for line in rows}) == 1
        assert r"cpr\_mfu" in text
        assert r"$\pm$" in text


def test_a_latex_table_has_the_columns_that_were_asked_for(grid: Path) -> None:
    """At most eight by default; strategies by other names; with a caption it is a float. A wrong column lists all."""
    frame = analysis.load(grid)
    head = analysis.table_text(frame, "latex").splitlines()[2]
    assert head.count("&") <= 8, "the setting, and eight columns"
    options: dict[str, Any] = {"columns": ("strategy", "total"), "labels": {"cpr_mfu": "CPR-MFU"}}
    text = analysis.table_text(frame, "latex", **options, caption="Overhead.")
    assert text.startswith("\\begin{table}")
    assert "\\caption{Overhead.}" in text
    assert "CPR-MFU &" in text
    assert r"cpr\_mfu" not in text
    assert "| CPR-MFU |" in analysis.table_text(frame, "markdown", **options)
    with pytest.raises(UserError, match=r"--columns: expected some of strategy, n, auc, .*; got auk$"):
        analysis.table_text(frame, "latex", columns=("auk",))
    with pytest.raises(UserError, match="a CSV file has all columns"):
        analysis.table_text(frame, "csv", columns=("auc",))


def test_markdown_is_a_table(grid: Path) -> None:
    """Each line has the same number of cells; the numbers are those of the console."""
    text = analysis.table_text(analysis.load(grid), "markdown")
    lines = text.splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert len(lines) == 2 + 6
    line = blocks_of(analysis.load(grid))[0].lines[1]
    auc = line.estimates["auc"]
    assert auc is not None
    assert f"{auc.mean:.5f} ± {auc.half_width:.5f}" in lines[3]


def test_files_are_the_same_every_time(grid: Path, tmp_path: Path) -> None:
    """Every figure in the formats asked for, and the table in three: two writes give the same bytes."""
    shutil.copytree(grid / "full-s0", tmp_path / "grid" / "full-s0")
    shutil.copytree(grid / "none-s0", tmp_path / "grid" / "none-s0")
    formats = ("pdf", "png", "svg")
    first, again = (
        analysis.write_files(tmp_path / "grid", tmp_path / name, formats=formats) for name in ("first", "again")
    )
    names = sorted(path.name for path in first.iterdir())
    kinds = ("above", "auc", "loss", "overhead", "pls", "tradeoff")
    expected = [f"{kind}.{suffix}" for kind in kinds for suffix in formats]
    assert names == sorted([*expected, "table.csv", "table.md", "table.tex"])
    assert [name for name in names if (first / name).read_bytes() != (again / name).read_bytes()] == []
