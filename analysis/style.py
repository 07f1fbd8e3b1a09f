"""The look of figures, and the text of an unknown value. matplotlib is imported when a figure is drawn."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNKNOWN = "–"
COLOURS = {
    "none": "#333333",
    "never_save": "#d55e00",
    "full": "#0072b2",
    "partial": "#56b4e9",
    "cpr_vanilla": "#e69f00",
    "cpr_random": "#8c8c8c",
    "cpr_mfu": "#009e73",
    "cpr_ssu": "#cc79a7",
}
"""One colour per strategy in every figure (Okabe and Ito's palette, safe for colour-blind readers)."""
_OTHER_COLOUR = "#7a4fbf"
STYLE: Any = {  # matplotlib's stubs want each key as a literal
    "svg.hashsalt": "cpr-harness",
    "svg.fonttype": "none",  # text stays text: small, searchable, in the browser's sans-serif font
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "axes.axisbelow": True,
    "hatch.linewidth": 0.6,
}


def colour(strategy: str) -> str:
    """The colour of a strategy in every figure."""
    return COLOURS.get(strategy, _OTHER_COLOUR)


@contextmanager
def style() -> Iterator[None]:
    """Context in which figures are drawn and written in the style of this package."""
    import matplotlib as mpl  # noqa: PLC0415

    with mpl.rc_context(STYLE):
        yield


def to_svg(figure: "Figure", name: str) -> str:
    """The figure as an ``<svg>`` element; its ids start with ``name``, so that they are unique in a page."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    return re.sub(r"<svg ", '<svg role="img" ', text, count=1)
