"""The report of a grid: one self-contained HTML file."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from analysis import figures
from analysis.advice import DEFAULT_MARGIN, advice_html
from analysis.blocks import Block, setting_text, strategy_order, summarise
from analysis.cells import STATUSES, Cell, cells_of, load
from analysis.render import Heading, Html, html_table
from analysis.stats import SETTING
from analysis.style import UNKNOWN
from analysis.table import CAPTION, footnotes, missing, table_html
from analysis.trace_report import trace_sections
from harness.record.environment import utc_now
from harness.record.files import read_json, write_text
from harness.record.rundir import RunDir

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

_FIGURES: tuple[tuple[str, str, Callable[[Sequence[Block], Sequence[Cell]], str]], ...] = (
    (
        "Difference in quality from a run without failures",
        """AUC less that of <code>none</code>, the run without failures of the same seed. The bar is the 95 %
        confidence interval over seeds (Student's t); a hollow point is a single seed, which has no interval. A strategy
        whose bar crosses the line cannot be distinguished from a run without failures with these seeds.""",
        figures.auc_differences,
    ),
    (
        "Emulated cost in time",
        """Hours that the emulated cluster of the profile would spend on saving, loading, running lost steps again and
        rescheduling, as a part of its failure-free job time. Computed from the profile's costs and the bytes written,
        independent of the speed of this machine; the stall in the table is measured, in seconds.""",
        figures.overheads,
    ),
    (
        "Lost samples and quality",
        """One point per seed. PLS counts the samples whose effect on a dead shard was lost. If quality depended on
        it alone, all points would lie on one falling line; priority saving helps where points lie above it.""",
        figures.pls_against_auc,
    ),
    (
        "Training loss",
        """Mean loss over equal pieces of the run, first seed of each strategy. A cross marks a step at which ranks
        were killed. Each sample position is shown once: steps that were run again are not drawn twice.""",
        figures.loss_curves,
    ),
    (
        "Effect of failures on the training loss",
        """The same runs, each loss less that of <code>none</code> at the same step of the same seed, which had the
        same batches: their noise cancels, and the difference is the damage of each failure and its decay.""",
        figures.loss_differences,
    ),
)
"""Title, caption and drawing function of each figure."""


def report(path: Path | str, *, margin: float = DEFAULT_MARGIN, now: Callable[[], datetime] = utc_now) -> Path:
    """Write ``report.html`` into the folder ``path`` and return its path: tables and figures of the runs below.

    ``margin``: the loss of AUC that the verdicts on strategies accept.

    Raises StoreError as ``load`` does, and if the file cannot be written.
    """
    root = Path(path)
    cells = cells_of(load(root))
    blocks = summarise(cells)
    title = escape(", ".join(dict.fromkeys(str(cell["name"]) for cell in cells)))
    setting = setting_text({key: blocks[0].setting[key] for key in SETTING}) if len(blocks) == 1 else ""
    parts = [
        f"<h1>{title}</h1>",
        f'<p class="note">{_counted(cells)}. Report of {now():%Y-%m-%d %H:%M} UTC.</p>',
        _alarm(missing(cells)),
        "<h2>Strategies</h2>",
        *_notes([setting] if setting else []),
        table_html(blocks) if blocks else "<p>No cell is done.</p>",
        *_notes((CAPTION, *footnotes(blocks))),
        advice_html(cells, margin),
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
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body></html>\n"
    )
    target = root / "report.html"
    write_text(target, page)
    return target


def _counted(cells: Sequence[Cell]) -> str:
    counts = {status: sum(cell["status"] == status for cell in cells) for status in STATUSES}
    return f"{len(cells)} cells: " + ", ".join(f"{count} {status}" for status, count in counts.items() if count)


def _notes(lines: Iterable[str]) -> Iterable[str]:
    return (f'<p class="note">{escape(line)}</p>' for line in lines)


def _alarm(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<div class="alarm"><strong>Not in the table, or an inconsistent record</strong><ul>{items}</ul></div>'


def _figures(blocks: Sequence[Block], cells: Sequence[Cell]) -> Iterable[str]:
    for title, caption, draw in _FIGURES:
        if svg := draw(blocks, cells):
            yield f"<h2>{title}</h2>\n<figure>{svg}<figcaption>{caption}</figcaption></figure>"


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


def _cells_html(root: Path, cells: Sequence[Cell]) -> str:
    swept = tuple((key, key, "") for key in cells[0] if "." in key)
    columns = (*_CELL_COLUMNS[:4], *swept, *_CELL_COLUMNS[4:])
    headings = [Heading("cell"), *(Heading(title, is_text=not form) for _, title, form in columns)]
    ordered = sorted(cells, key=lambda cell: (str(cell["engine"]), strategy_order(cell["strategy"]), cell["seed"]))
    rows = ([_link(root, cell), *(_text(cell[name], form) for name, _, form in columns)] for cell in ordered)
    return html_table(headings, rows)


def _link(root: Path, cell: Cell) -> Html:
    target = Path(cell["path"]).relative_to(root).as_posix()
    return Html(f'<a href="{escape(target)}/">{escape(cell["cell"])}</a>')


def _text(value: Any, form: str) -> str:
    return UNKNOWN if value is None else format(int(value) if form == "d" else value, form)


def _provenance(cells: Sequence[Cell]) -> str:
    """Versions and machines from the cells' env.json files; different values are all listed."""
    files = [RunDir(Path(cell["path"])).env for cell in cells]
    envs = [read_json(file) for file in files if file.is_file()]
    if not envs:
        return "<p>Unknown: no cell has an env.json.</p>"
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


_FACTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "commit": _commit,
    "command": lambda env: str(env.get("command")),
    "versions": lambda env: ", ".join(f"{name} {env.get(name)}" for name in ("python", "torch", "numpy", "wandb")),
    "machine": lambda env: f"{env.get('cpu')}, {env.get('num_cores')} cores, {env.get('system')}",
    "dense network": lambda env: f"backend {env.get('backend')}",
    "threads per rank": lambda env: str(env.get("num_threads")),
}
