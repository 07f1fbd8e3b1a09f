"""The look of figures: themes, scales, ticks, and what drawing says."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.figures import KINDS, PAPER, THEMES, TRADEOFF, Data, Kind, figures, log_scale, style, to_svg
from analysis.report import heading, slug
from analysis.stats import DEFAULT_MARGIN, Block, blocks_of, regimes_of
from tests.made_runs import made_config, write_run

TEXT = ("ink", "muted")
SERIES = [role for role in THEMES if role not in (PAPER, "grid", "band", *TEXT)]


def _luminance(colour: str) -> float:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_series_can_be_seen(theme: int) -> None:
    """In both themes text has 4.5 times the contrast of the page, and every series 3 times (WCAG 2.2)."""
    paper = _luminance(THEMES[PAPER][theme])
    for role in (*TEXT, *SERIES):
        high, low = sorted((_luminance(THEMES[role][theme]), paper), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= (4.5 if role in TEXT else 3), role


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Two profiles of four strategies, three seeds and one."""
    root = tmp_path_factory.mktemp("profiles")
    for strategy in ("none", "full", "partial", "cpr_mfu"):
        for seed in range(3):
            write_run(root / f"busy-{strategy}-{seed}", made_config(strategy, seed=seed))
        if strategy != "none":
            write_run(root / f"cpr56-{strategy}", made_config(strategy, profile="cpr56", cluster={"num_ps": 4}))
    frame = analysis.load(root)
    return Data(blocks_of(frame), frame, DEFAULT_MARGIN)


@pytest.mark.parametrize("kind", [TRADEOFF, *KINDS], ids=lambda kind: kind.name)
def test_settings_share_their_scales_and_the_colours_of_the_themes(kind: Kind, data: Data) -> None:
    """Axes that are to be compared have the same limits; every colour in a page's figure has a dark counterpart.

    Without ``none`` only what needs no pairs is drawn: differences would be empty axes.
    """
    with style():
        drawn = [figure for _, figure in figures(kind, data)]
        svgs = [to_svg(figure, "name") for figure in drawn]
    assert len(drawn) == 2
    for name in kind.shared:
        assert len({getattr(figure.axes[0], f"get_{name}lim")() for figure in drawn}) == 1
    for svg in svgs:
        assert re.findall(r'(?:: ?|=")(#[0-9a-f]{3,8})\b', svg) == []
        assert set(re.findall(r"var\(--(\w+)\)", svg)) <= THEMES.keys()
    alone = data.cells[data.cells["strategy"] != "none"]
    with style():
        assert bool(figures(kind, Data(blocks_of(alone), alone, DEFAULT_MARGIN))) == (kind.name in ("overhead", "loss"))


def test_a_control_does_not_set_the_scale(tmp_path: Path) -> None:
    """A loss of never_save far from the others stands at the edge of the figures, with its value and its seeds."""
    for seed in range(2):
        for strategy in ("none", "full", "never_save"):
            write_run(tmp_path / f"{strategy}-{seed}", made_config(strategy, seed=seed))
    frame = analysis.load(tmp_path)
    loss = -1e3 * float(analysis.table(frame).set_index("strategy").loc["never_save", "auc_difference"])
    frame.loc[frame["strategy"] == "never_save", "auc"] -= 1.0
    with style():
        ((_, figure),) = figures(TRADEOFF, Data(regimes_of(frame), frame, DEFAULT_MARGIN))
    assert figure.axes[0].get_ylim()[1] < 1000
    assert [text.get_text() for text in figure.axes[0].texts] == [f"{loss + 1000:+.1f}"]
    (auc,) = [kind for kind in KINDS if kind.name == "auc"]
    with style():
        ((_, figure),) = figures(auc, Data(regimes_of(frame), frame, DEFAULT_MARGIN))
    low = figure.axes[0].get_xlim()[0]
    edge = [line.get_xdata() for line in figure.axes[0].get_lines() if line.get_marker() == "<"]
    assert edge == [[low], [low]], "its seeds are triangles at the edge"


def test_a_seed_s_curve_is_faint_behind_the_mean(data: Data) -> None:
    """With several seeds each has a curve, in front of which is their mean; a single seed has one curve."""
    (kind,) = [kind for kind in KINDS if kind.name == "loss"]
    with style():
        several, single = (figure.axes[0].get_lines() for _, figure in figures(kind, data))
    assert sum((line.get_alpha() or 1) < 0.5 for line in several) == 4 * 3
    assert all((line.get_alpha() or 1) == 1 for line in single)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [((0.8, 7.0), ["1", "2", "5"]), ((1.5, 60.0), ["2", "5", "10", "20", "50"]), ((0.1, 1000.0), 5)],
)
def test_log_ticks_do_not_collide(limits: tuple[float, float], expected: list[str] | int) -> None:
    """Plain numbers at 1, 2 and 5 of a power of ten, at powers of ten alone on a long axis, and no minor ticks."""
    axes = _axes()
    axes.set_xlim(limits)
    log_scale(axes, "x")
    axes.figure.draw_without_rendering()
    labels = [text.get_text() for text in axes.get_xticklabels()]
    inside = [label for label in labels if limits[0] <= float(label) <= limits[1]]
    assert inside == expected or len(inside) == expected
    assert [*axes.xaxis.get_minorticklocs()] == []


def _axes() -> Any:
    from matplotlib.figure import Figure

    return Figure().subplots()


def test_titles_are_words(data: Data) -> None:
    """A section is named by what differs, in words; a single one by its whole setting."""
    assert [heading(block, data.blocks) for block in data.blocks] == ["Profile busy", "Profile cpr56"]
    (only,) = data.blocks[:1]
    assert heading(only, [only]) == "Failure trace busy, profile busy, 4 PS ranks, all ranks in one process (local)"
    bare = Block({"trace": None, "cache.staleness": 10, "engine": "rpc"}, "cache.staleness 10, strategy.r 0.125", [])
    other = Block({"trace": "x", "cache.staleness": 0, "engine": "local"}, "", [])
    assert heading(bare, [bare, other]) == "No failures, ranks as processes (rpc), cache.staleness 10"
    assert slug(bare) == "cache-staleness-10-strategy-r-0p125"


def test_drawing_says_nothing() -> None:
    """No warning or log line of matplotlib reaches the user, even without a folder for its font cache."""
    program = """
import io, analysis.figures as own
with own.style():
    from matplotlib.figure import Figure
    Figure().subplots().figure.savefig(io.BytesIO())
"""
    environment = os.environ | {"MPLCONFIGDIR": os.devnull + "/none", "PYTHONWARNINGS": "always"}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=100)
    assert result.stderr == ""
