"""The report of a grid: one HTML file that needs nothing beside it."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from analysis import figures
from analysis.cells import STATUSES, Cell, cells_of, load
from analysis.regimes import regime_html
from analysis.table import (
    CAPTION,
    UNKNOWN,
    Block,
    footnotes,
    missing,
    shown_setting,
    strategy_order,
    summarise,
    table_html,
)
from analysis.trace_report import trace_sections
from harness.record.environment import utc_now
from harness.record.rundir import RunDir, read_json, write_view

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:#222;max-width:1240px;margin:2rem auto;padding:0 1.5rem}
h1{margin:0 0 .2rem}h2{margin:2.2rem 0 .6rem;font-size:1.25rem}
p.note,figcaption,caption{color:#555;font-size:.92rem}figcaption{max-width:52rem}
table{border-collapse:collapse;font-size:.82rem;font-variant-numeric:tabular-nums;margin:.4rem 0 1rem}
caption{text-align:left;padding:.5rem 0;font-weight:600}
th,td{padding:.28rem .45rem;text-align:right;white-space:nowrap;border-bottom:1px solid #e5e5e5}
thead th{font-weight:600;white-space:normal;vertical-align:bottom;border-bottom:1px solid #aaa}
thead tr:first-child th{color:#555;font-weight:400;text-align:center}
th[scope=row],td.text{text-align:left}tbody th{font-weight:600}tbody tr:hover{background:#f6f8fa}
.wide{overflow-x:auto}figure{margin:0 0 1.4rem}svg{max-width:100%;height:auto}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;font-size:.9rem}
dt{color:#555}dd{margin:0;overflow-wrap:anywhere}
.alarm{border-left:4px solid #d55e00;background:#fdf1ea;padding:.6rem 1rem;margin:1rem 0}
.alarm ul{margin:.2rem 0;padding-left:1.2rem}code{font-size:.9em}
"""

_TITLES = {
    "auc": "What a strategy costs in quality",
    "overhead": "What it costs in time, emulated",
    "pls": "Does lost data explain lost quality?",
    "loss": "Training loss",
    "above": "What a death does to the loss",
}
_READING = {
    "auc": """AUC less that of <code>none</code>, the run without failures of the same seed. The bar is the 95 %
        confidence interval over seeds (Student's t); a hollow point is a single seed, of which no interval can be
        known. A strategy whose bar crosses the line cannot be told from a run without failures with these seeds.""",
    "overhead": """Hours that the emulated cluster of the profile would spend on saving, loading, running lost steps
        again and rescheduling, as a part of its failure-free job time. Computed from the profile's costs and the bytes
        written; it says nothing about the speed of this machine. That is the stall in the table, in seconds.""",
    "pls": """One point per seed. PLS counts the samples whose effect on a dead shard was lost. If quality depended on
        it alone, all points would lie on one falling line; priority saving helps where points lie above it.""",
    "loss": """Mean loss over equal pieces of the run, first seed of each strategy. A cross marks a boundary at which
        ranks were killed. Each sample position is shown once: steps that were run again are not drawn twice.""",
    "above": """The same runs, each loss less that of <code>none</code> at the same step of the same seed, which saw the
        same rows: the noise of the batches cancels, and what is left is the damage of each death and how it heals.""",
}


def report(path: Path | str, *, now: Callable[[], datetime] = utc_now) -> Path:
    """Write ``report.html`` into ``path`` and return it: table, figures and all cells of the runs below.

    Raises StoreError as ``load`` does, and where the folder cannot be written.
    """
    root = Path(path)
    cells = cells_of(load(root))
    blocks = summarise(cells)
    names = dict.fromkeys(str(cell["name"]) for cell in cells)
    parts = [
        f"<h1>{escape(', '.join(names))}</h1>",
        f'<p class="note">{_counted(cells)}. Report of {now():%Y-%m-%d %H:%M} UTC.</p>',
        _alarm(missing(cells)),
        "<h2>Strategies</h2>",
        *([f'<p class="note">{escape(shown_setting(blocks[0]))}</p>'] if len(blocks) == 1 else []),
        table_html(blocks) if blocks else "<p>No cell is done.</p>",
        *(f'<p class="note">{escape(line)}</p>' for line in (CAPTION, *footnotes(blocks))),
        regime_html(blocks),
        *_figures(blocks, cells),
        *trace_sections(cells),
        "<h2>All cells</h2>",
        _cells_html(root, cells),
        "<h2>Provenance</h2>",
        _provenance(cells),
    ]
    page = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(', '.join(names))}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body></html>\n"
    )
    target = root / "report.html"
    write_view(target, page)
    return target


def _counted(cells: Sequence[Cell]) -> str:
    counts = {status: sum(cell["status"] == status for cell in cells) for status in STATUSES}
    return f"{len(cells)} cells: " + ", ".join(f"{count} {status}" for status, count in counts.items() if count)


def _alarm(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<div class="alarm"><strong>Not in the table, or not to be trusted</strong><ul>{items}</ul></div>'


def _figures(blocks: Sequence[Block], cells: Sequence[Cell]) -> Iterable[str]:
    drawn = {
        "auc": figures.auc_differences(blocks),
        "overhead": figures.overheads(blocks),
        "pls": figures.pls_against_auc(blocks, cells),
        "loss": figures.loss_curves(blocks),
        "above": figures.loss_differences(blocks, cells),
    }
    for name, svg in drawn.items():
        if svg:
            caption = f"<figcaption>{_READING[name]}</figcaption>"
            yield f"<h2>{_TITLES[name]}</h2>\n<figure>{svg}{caption}</figure>"


_CELL_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("strategy", "strategy", ""),
    ("engine", "engine", ""),
    ("trace", "trace", ""),
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


def _cells_html(root: Path, cells: Sequence[Cell]) -> str:
    swept = tuple((key, key, "") for key in cells[0] if "." in key)
    columns = (*_CELL_COLUMNS[:4], *swept, *_CELL_COLUMNS[4:])
    head = "".join(f'<th scope="col">{escape(title)}</th>' for _, title, _ in columns)
    ordered = sorted(cells, key=lambda cell: (str(cell["engine"]), strategy_order(cell["strategy"]), cell["seed"]))
    rows = "".join(f"<tr>{_link(root, cell)}{_tds(cell, columns)}</tr>" for cell in ordered)
    table = f'<table><thead><tr><th scope="col">cell</th>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="wide">{table}</div>'


def _link(root: Path, cell: Cell) -> str:
    target = Path(cell["path"]).relative_to(root).as_posix()
    return f'<th scope="row"><a href="{escape(target)}/">{escape(cell["cell"])}</a></th>'


def _tds(cell: Cell, columns: Sequence[tuple[str, str, str]]) -> str:
    return "".join(
        f"<td{'' if form else ' class=text'}>{escape(_form(cell[name], form))}</td>" for name, _, form in columns
    )


def _form(value: Any, form: str) -> str:
    return UNKNOWN if value is None else format(int(value) if form == "d" else value, form)


def _provenance(cells: Sequence[Cell]) -> str:
    """What the cells' env.json files say; where they differ, all that they say."""
    files = [RunDir(Path(cell["path"])).env for cell in cells]
    envs = [read_json(file) for file in files if file.is_file()]
    if not envs:
        return "<p>Unknown: no cell has an env.json.</p>"
    times = sorted(str(env.get("time")) for env in envs)
    lines: dict[str, list[str]] = {"written": [times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}"]}
    for title, say in _FACTS.items():
        lines[title] = list(dict.fromkeys(say(env) for env in envs))
    return (
        "<dl>" + "".join(f"<dt>{name}</dt><dd>{escape('; '.join(said))}</dd>" for name, said in lines.items()) + "</dl>"
    )


def _commit(env: dict[str, Any]) -> str:
    git = env.get("git")
    if not isinstance(git, dict):
        return "unknown"
    return str(git.get("commit")) + (", with changes not committed" if git.get("dirty") else "")


_FACTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "commit": _commit,
    "command": lambda env: str(env.get("command")),
    "versions": lambda env: ", ".join(f"{name} {env.get(name)}" for name in ("python", "torch", "numpy", "wandb")),
    "machine": lambda env: f"{env.get('cpu')}, {env.get('num_cores')} cores, {env.get('system')}",
    "dense network": lambda env: f"backend {env.get('backend')}",
    "threads per rank": lambda env: str(env.get("num_threads")),
}
