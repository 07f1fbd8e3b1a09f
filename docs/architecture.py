"""Draw docs/architecture.svg: the rooms of the package and what they import, read from the source.

    python docs/architecture.py

A room is a folder or file of ``harness``. It stands one floor above the highest room that it imports. An arrow leads to
an imported room, unless other arrows lead there already. Its line is the first sentence of the room's docstring.
"""

import ast
import textwrap
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "architecture.svg"
BOX_WIDTH, BOX_HEIGHT, GAP, FLOOR_HEIGHT, MARGIN = 212, 62, 16, 92, 16
CHARACTERS = 38
"""Characters of one line in a box, of at most three."""


def room_of(module: str) -> str | None:
    """The room of a module: ``harness.core.pls`` is in ``core``; None if it is in no room."""
    first, _, rest = module.partition(".")
    if first == "harness":
        return rest.partition(".")[0] or None
    return {"run": "run.py", "analysis": "analysis"}.get(first)


@cache
def sources() -> dict[str, list[Path]]:
    """The source files of each room."""
    found: dict[str, list[Path]] = {"run.py": [ROOT / "run.py"]}
    for path in sorted([*ROOT.glob("harness/**/*.py"), *ROOT.glob("analysis/**/*.py")]):
        room = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        if room != "__init__":
            found.setdefault(str(room), []).append(path)
    return found


@cache
def imports() -> dict[str, set[str]]:
    """The other rooms that each room imports."""
    used: dict[str, set[str]] = {room: set() for room in sources()}
    for room, paths in sources().items():
        for node in (node for path in paths for node in ast.walk(ast.parse(path.read_text()))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            used[room] |= {other for name in names if (other := room_of(name)) in used and other != room}
    return used


@cache
def reach(room: str) -> frozenset[str]:
    """All rooms that ``room`` imports, directly or not."""
    return frozenset(imports()[room]).union(*map(reach, imports()[room]))


@cache
def floor(room: str) -> int:
    """The floor of ``room``, counted from 0 at the bottom."""
    return 1 + max(map(floor, imports()[room]), default=-1)


def arrows(room: str) -> list[str]:
    """The rooms that arrows lead to from ``room``."""
    return sorted(other for other in imports()[room] if not any(other in reach(via) for via in imports()[room]))


def sentence(room: str) -> str:
    """The first sentence of the docstring of ``room``."""
    paths = sources()[room]
    first = next((path for path in paths if path.name == "__init__.py"), paths[0])
    text = " ".join((ast.get_docstring(ast.parse(first.read_text())) or "").split("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".").replace("``", "")


def places() -> dict[str, tuple[float, float]]:
    """The left upper corner of the box of each room; a room stands near those that it imports."""
    rows: dict[int, list[str]] = {}
    for room in sorted(sources(), key=floor):
        rows.setdefault(floor(room), []).append(room)
    width = max(map(len, rows.values())) * (BOX_WIDTH + GAP)
    found: dict[str, tuple[float, float]] = {}
    for number, rooms in rows.items():
        below = {room: [found[other][0] for other in arrows(room)] or [0.0] for room in rooms}
        rooms.sort(key=lambda room: (sum(below[room]) / len(below[room]), room))
        step = (BOX_WIDTH + GAP) * (3 if len(rooms) == 2 else 1)  # so that longer arrows pass between boxes
        left = MARGIN + (width - (len(rooms) - 1) * step - BOX_WIDTH) / 2
        for k, room in enumerate(rooms):
            found[room] = left + k * step, MARGIN + (len(rows) - 1 - number) * FLOOR_HEIGHT
    return found


def box(room: str, x: float, y: float) -> str:
    """The box of ``room``."""
    lines = textwrap.wrap(sentence(room), CHARACTERS, max_lines=3, placeholder=" …")
    text = "".join(f'<tspan x="{x + 8:g}" dy="12">{_escaped(line)}</tspan>' for line in lines)
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="4" fill="#fff" stroke="#456"/>'
        f'<text x="{x + 8:g}" y="{y + 16:g}" font-weight="bold" font-size="13">{room}</text>'
        f'<text x="{x + 8:g}" y="{y + 18:g}" font-size="10" fill="#456">{text}</text>\n'
    )


def picture() -> str:
    """The text of the picture."""
    at = places()
    width = max(x for x, _ in at.values()) + BOX_WIDTH + MARGIN
    height = max(y for _, y in at.values()) + BOX_HEIGHT + MARGIN
    lines = [
        f'<path d="M{x + BOX_WIDTH / 2:g} {y + BOX_HEIGHT:g} '
        f'L{at[other][0] + BOX_WIDTH / 2:g} {at[other][1] - 5:g}" marker-end="url(#head)"/>\n'
        for room, (x, y) in at.items()
        for other in arrows(room)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" font-family="sans-serif">\n'
        '<marker id="head" markerWidth="7" markerHeight="6" refX="2" refY="3" orient="auto">'
        '<path d="M0 0 L7 3 L0 6 z" fill="#789"/></marker>\n'
        f'<rect width="{width:g}" height="{height:g}" fill="#f6f8fa"/>\n'
        f'<g stroke="#789" fill="none">\n{"".join(lines)}</g>\n'
        f"{''.join(box(room, *corner) for room, corner in at.items())}</svg>\n"
    )


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


if __name__ == "__main__":
    PICTURE.write_text(picture())
