"""Sections of the report: the trade-off, and for each setting a title in words, a table of strategies, figures."""

import re
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any

from analysis.figures import KINDS, TRADEOFF, Data, Kind, figures, style, to_svg
from analysis.report.page import figure_html
from analysis.stats import Block, setting_text
from analysis.tables import table_html

_WORDS: dict[str, Callable[[Any], str]] = {
    "trace": lambda trace: f"failure trace {trace}" if trace else "no failures",
    "profile": lambda profile: f"profile {profile}",
    "num_ps": lambda num: f"{num} PS ranks",
    "engine": lambda engine: {"rpc": "ranks as processes (rpc)", "local": "all ranks in one process (local)"}.get(
        engine, f"engine {engine}"
    ),
}
"""The words for a value of a setting, in the order of a title; keys without an entry, which were swept, follow."""


def heading(block: Block, blocks: Sequence[Block]) -> str:
    """A title for ``block``: the values in which it differs from the others; if there are none, the whole setting."""
    setting = block.setting
    keys = [key for key, value in setting.items() if any(other.setting[key] != value for other in blocks)]
    keys = keys or [key for key in _WORDS if key in setting]
    keys.sort(key=lambda key: [*_WORDS].index(key) if key in _WORDS else len(_WORDS))
    texts = [_WORDS[key](setting[key]) if key in _WORDS else setting_text({key: setting[key]}) for key in keys]
    text = ", ".join(filter(None, texts))
    return text[:1].upper() + text[1:]


def slug(block: Block) -> str:
    """The title of a block as part of a file name or an id, without dots; empty if there is one block."""
    return re.sub(r"\W+", "-", re.sub(r"(?<=\d)\.(?=\d)", "p", block.title)).strip("-")


def contents(blocks: Sequence[Block]) -> str:
    """Links to the sections of the settings; empty if there are fewer than two."""
    titles = [escape(heading(block, blocks)) for block in blocks]
    links = (f'<li><a href="#block-{place}">{title}</a></li>' for place, title in enumerate(titles))
    return f"<nav>Settings:<ul>{''.join(links)}</ul></nav>" if len(blocks) > 1 else ""


def tradeoff_section(data: Data) -> Iterator[str]:
    """AUC lost against overhead, a panel for each setting."""
    with style():
        drawn = _svgs(TRADEOFF, data)
    if drawn:
        blocks = data.blocks
        titles = {place: heading(blocks[place], blocks) if len(blocks) > 1 else "" for place in drawn}
        panels = "".join(figure_html(svg, titles[place]) for place, svg in drawn.items())
        yield f"<h2>{TRADEOFF.title}</h2>"
        yield f'<div class="panels">{panels}</div><p class="note">{escape(TRADEOFF.caption)}</p>'


def sections(data: Data) -> Iterator[str]:
    """A section for each setting."""
    blocks = data.blocks
    with style():
        drawn = {kind.name: _svgs(kind, data) for kind in KINDS}
    for place, block in enumerate(blocks):
        yield f'<h2 id="block-{place}">{escape(heading(block, blocks))}</h2>'
        yield table_html(block)
        shown = [(kind, drawn[kind.name][place]) for kind in KINDS if place in drawn[kind.name]]
        # Captions explain the figures of the first section and are not repeated.
        panels = (figure_html(svg, kind.title, kind.caption * (place == 0)) for kind, svg in shown)
        yield f'<div class="panels">{"".join(panels)}</div>' if shown else ""


def _svgs(kind: Kind, data: Data) -> dict[int, str]:
    """The figures of a kind as SVG, by the place of their block."""
    place_of = {id(block): place for place, block in enumerate(data.blocks)}
    return {
        place_of[id(block)]: to_svg(figure, f"{kind.name}{place_of[id(block)]}", f"{kind.title}: {block.title}")
        for block, figure in figures(kind, data)
    }
