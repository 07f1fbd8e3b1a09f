"""The report of a grid: one self-contained HTML file."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.figures import Data
from analysis.load import STATUSES, Cell, cells_of, load
from analysis.report.page import notes, page
from analysis.report.sections import contents, sections, tradeoff_section
from analysis.stats import DEFAULT_MARGIN, regimes, strategy_order, summarise
from analysis.tables import CAPTION, UNKNOWN, Heading, Html, advice_html, footnotes, html_table, missing
from harness.core.errors import StoreError
from harness.record.environment import utc_now
from harness.record.files import read_json, write_text
from harness.record.rundir import RunDir

if TYPE_CHECKING:
    import pandas as pd


def report(
    path: Path | str,
    *,
    frame: "pd.DataFrame | None" = None,
    margin: float = DEFAULT_MARGIN,
    now: Callable[[], datetime] = utc_now,
) -> Path:
    """Write ``report.html`` into the folder ``path`` and return its path: tables and figures of the runs below.

    ``frame``: the folder's, if it is loaded already. ``margin``: the loss of AUC that the verdicts accept.

    Raises StoreError as ``load`` does, and if the file cannot be written.
    """
    root = Path(path)
    cells = cells_of(load(root) if frame is None else frame)
    blocks = summarise(cells)
    title = ", ".join(dict.fromkeys(str(cell["name"]) for cell in cells if cell["name"])) or root.name
    parts = [
        f"<h1>{escape(title)}</h1>",
        *notes([f"{_counted(cells)}. Report of {now():%Y-%m-%d %H:%M} UTC."]),
        _alarm(missing(cells)),
        contents(blocks) if blocks else "<p>No cell is done.</p>",
        *tradeoff_section(Data(regimes(cells), cells, margin)),
        advice_html(cells, margin),
        *sections(Data(blocks, cells, margin)),
        *notes((CAPTION, *footnotes(blocks)) if blocks else ()),
        *_trace_sections(cells),
        "<h2>All cells</h2>",
        _cells_html(root, cells),
        "<h2>Provenance</h2>",
        _provenance(cells),
    ]
    target = root / "report.html"
    write_text(target, page(title, parts))
    return target


def _counted(cells: Sequence[Cell]) -> str:
    counts = {status: sum(cell["status"] == status for cell in cells) for status in STATUSES}
    return f"{len(cells)} cells: " + ", ".join(f"{count} {status}" for status, count in counts.items() if count)


def _alarm(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<div class="alarm"><strong>Not in the table, or an inconsistent record</strong><ul>{items}</ul></div>'


_CELL_COLUMNS = (
    *((name, name, "") for name in ("strategy", "engine", "trace")),
    ("seed", "seed", "d"),
    ("status", "status", ""),
    ("auc", "AUC", ".5f"),
    ("log_loss", "log loss", ".5f"),
    ("pls", "PLS", ".4f"),
    ("update_pls", "updates lost", ".4f"),
    ("overhead_frac", "overhead, emulated", ".4f"),
    ("num_saves", "saves", "d"),
    ("num_failures", "failures", "d"),
    ("num_lost_ranks", "ranks lost", "d"),
    ("stall_s", "stall measured, s", ".2f"),
    ("seconds", "run, s", ".1f"),
)
"""Column, title and format of a value (text if empty)."""


def _trace_sections(cells: Sequence[Cell]) -> Iterable[str]:
    """Sections on the failure traces, if any cell has one."""
    if all(cell["trace"] is None for cell in cells):
        return ()
    from analysis.trace_report import trace_sections  # noqa: PLC0415 - scipy.stats takes half a second to import

    return trace_sections(cells)


def _cells_html(root: Path, cells: Sequence[Cell]) -> str:
    swept = tuple((key, key, "") for key in cells[0] if "." in key)
    columns = (*_CELL_COLUMNS[:4], *swept, *_CELL_COLUMNS[4:])
    headings = [
        Heading("cell"),
        *(Heading(title, is_text=not form, is_key=name == "overhead_frac") for name, title, form in columns),
    ]
    ordered = sorted(cells, key=lambda cell: (str(cell["engine"]), strategy_order(str(cell["strategy"])), cell["cell"]))
    rows = ([_link(root, cell), *(_text(cell[name], form) for name, _, form in columns)] for cell in ordered)
    return html_table(headings, rows)


def _link(root: Path, cell: Cell) -> Html:
    target = Path(cell["path"]).relative_to(root).as_posix()
    return Html(f'<a href="{escape(target)}/">{escape(cell["cell"])}</a>')


def _text(value: Any, form: str) -> str:
    return UNKNOWN if value is None else format(int(value) if form == "d" else value, form)


def _provenance(cells: Sequence[Cell]) -> str:
    """Versions and machines from the cells' env.json files; different values are all listed."""
    envs: list[dict[str, Any]] = []
    for file in (RunDir(Path(cell["path"])).env for cell in cells):
        with suppress(StoreError):  # what cannot be read is unknown
            envs.append(read_json(file))
    if not envs:
        return "<p>Unknown: no cell has an env.json that can be read.</p>"
    times = sorted(str(env.get("time")) for env in envs)
    lines: dict[str, list[str]] = {"written": [times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}"]}
    for title, text_of in _FACTS.items():
        lines[title] = list(dict.fromkeys(text_of(env) for env in envs))
    items = (f"<dt>{name}</dt><dd>{escape('; '.join(values))}</dd>" for name, values in lines.items())
    return f"<dl>{''.join(items)}</dl>"


def _commit(env: dict[str, Any]) -> str:
    git = env.get("git")
    if not isinstance(git, dict):
        return "unknown"
    return str(git.get("commit")) + (", with changes not committed" if git.get("dirty") else "")


def _data(env: dict[str, Any]) -> str:
    match env.get("data"):
        case {"num_samples": int(samples), "num_table_rows": int(rows), **others}:
            size = f"{samples:,} samples, {rows:,} embedding rows"
        case _:
            return "unknown"
    match others.get("synthetic"):
        case {"scale": int() | float() as scale, "taper": int() | float() as taper, "seed": int(seed)}:
            return f"{size}, synthetic: scale {scale:g}, taper {taper:g}, seed {seed}"
        case _:
            return size


_FACTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "data": _data,
    "commit": _commit,
    "command": lambda env: str(env.get("command")),
    "versions": lambda env: ", ".join(f"{name} {env.get(name)}" for name in ("python", "torch", "numpy", "wandb")),
    "machine": lambda env: f"{env.get('cpu')}, {env.get('num_cores')} cores, {env.get('system')}",
    "dense network": lambda env: f"backend {env.get('backend')}",
    "threads per rank": lambda env: str(env.get("num_threads")),
}
