"""The style of figures and pages: colours in a light and a dark theme. matplotlib is imported when it is used."""

import io
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from harness.core.strategies import STRATEGIES, Strategy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURE_FORMATS = ("svg", "pdf", "png")
PAPER, INK = "paper", "ink"


def colours_of(strategy: str) -> tuple[str, str]:
    """(colour on light pages, colour on dark pages) of a strategy.

    The default of ``Strategy`` for an unknown name, and for a class that does not set ``colours`` itself.
    """
    return vars(STRATEGIES.get(strategy, Strategy)).get("colours", Strategy.colours)


THEMES: dict[str, tuple[str, str]] = {
    PAPER: ("#ffffff", "#15181d"),
    INK: ("#222222", "#e6e8eb"),
    "muted": ("#555555", "#a9b0ba"),
    "grid": ("#e5e5e5", "#343b44"),
    **{name: colours_of(name) for name in STRATEGIES},
    "other": Strategy.colours,
}
"""Colour on a light and on a dark page, by role; a built-in strategy's role is its name.

The strategies' colours follow Okabe and Ito's palette, which colour-blind readers can tell apart, darkened on the
light page where they had less than three times the contrast of the page.
"""
_ROLES = {light: role for role, (light, _) in THEMES.items()}
STYLE: Any = {  # matplotlib's stubs want each key as a literal
    "svg.hashsalt": "cpr-harness",
    "svg.fonttype": "none",  # text stays text: small, searchable, in the browser's sans-serif font
    "pdf.fonttype": 42,  # TrueType, which publishers ask for
    "font.family": "sans-serif",
    "font.size": 11,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), THEMES[INK][0]),
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": THEMES["grid"][0],
    "axes.axisbelow": True,
    "hatch.linewidth": 0.6,
}


def colour(strategy: str) -> str:
    """The colour of a strategy on a light page, the same in every figure."""
    return colours_of(strategy)[0]


@contextmanager
def style() -> Iterator[None]:
    """A context in which figures are drawn and written in the style of this package."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # no word about its font cache
    import matplotlib as mpl  # noqa: PLC0415

    with mpl.rc_context(STYLE):
        yield


def log_scale(axes: "Axes", name: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, with plain numbers as ticks.

    If its ends differ by a factor below 8, ticks are at all whole multiples of powers of ten; below 200, at 1, 2 and 5
    times powers of ten; otherwise at powers of ten.
    """
    from matplotlib.ticker import LogLocator, NullLocator  # noqa: PLC0415 - as matplotlib

    axes.set(**{f"{name}scale": "log"})
    axis = getattr(axes, f"{name}axis")
    low, high = axis.get_view_interval()
    multiples = range(1, 10) if high < 8 * low else (1, 2, 5) if high < 200 * low else (1,)
    axis.set_major_locator(LogLocator(subs=[*map(float, multiples)]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")


def theme(index: int) -> str:
    """The CSS variables of the colours in ``THEMES``: ``index`` 0 for light pages, 1 for dark pages."""
    return "".join(f"--{role}:{pair[index]};" for role, pair in THEMES.items())


def to_svg(figure: "Figure", name: str, label: str = "") -> str:
    """The figure as an ``<svg>`` element whose colours are the CSS variables of :func:`theme`.

    Its ids start with ``name``, so that they are unique in a page. ``label``: text for screen readers, by default
    ``name``.
    """
    stream = io.StringIO()
    metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(stream, format="svg", metadata=metadata, facecolor="none")
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = re.sub(r'(: |=")(#[0-9a-f]{6})\b', lambda found: found[1] + _themed(found[2]), text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(label or name)}" ', 1)


def _themed(light: str) -> str:
    return f"var(--{_ROLES[light]})" if light in _ROLES else light


def write_figure(figure: "Figure", folder: Path, name: str, formats: Sequence[str] = FIGURE_FORMATS) -> list[Path]:
    """Write the figure on white into ``folder`` as ``NAME.FORMAT``, for each format; returns the paths.

    The same figure gives the same bytes.
    """
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    paths = [folder / f"{name}.{suffix}" for suffix in formats]
    for path, suffix in zip(paths, formats, strict=True):
        figure.savefig(path, metadata=metadata[suffix], dpi=200, facecolor=THEMES[PAPER][0])
    return paths
