"""The report of a grid: one self-contained HTML file (``assets/report.html``), and its figures and tables as files."""

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup as Html

from analysis.figures import (
    CAPTION,
    KINDS,
    SWEEP,
    TRADEOFF,
    Data,
    Kind,
    figures,
    style,
    sweep_figure,
    theme,
    to_svg,
    write_figure,
)
from analysis.load import STATUSES, Frame, identity, load, plain
from analysis.stats import AUC, Block, Measure, blocks_of, natural, regimes_of, setting_text, strategy_order
from analysis.tables import (
    FORMATS,
    OPERATORS_NOTE,
    UNKNOWN,
    Heading,
    content,
    footnotes,
    is_swept,
    missing,
    operators_content,
    reading,
    swept,
    table_text,
    verdict_tables,
)
from harness.core.errors import StoreError
from harness.files import expanded, read_json, store_errors, write_text
from harness.record.code import utc_now
from harness.record.event_log import EventLog
from harness.record.rundir import RunDir, flatten, read_config, read_env

if TYPE_CHECKING:
    import pandas as pd

_SUFFIXES = {"csv": "csv", "latex": "tex", "markdown": "md"}


def report(
    path: Path | str,
    *,
    frame: "pd.DataFrame | None" = None,
    margin: float | None = None,
    measure: Measure = AUC,
    now: Callable[[], datetime] = utc_now,
) -> Path:
    """Write ``report.html`` with tables and figures of the runs below ``path`` into this folder; returns its path.

    ``frame``: the folder's frame, if it is loaded already. ``margin``: the loss in ``measure`` that the verdicts
    accept; None: the measure's own margin.

    Raises StoreError as ``load`` does, and if a record cannot be read or the file cannot be written.
    """
    root = Path(expanded(path))
    frame = load(root, copies=True, targets=measure.targets) if frame is None else frame
    blocks, found = blocks_of(frame, measure), regimes_of(frame, measure)
    title = ", ".join(frame["name"].dropna().unique()) or root.name
    counts = {status: [*frame["status"]].count(status) for status in STATUSES}
    counted = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    text = _page(
        title=title,
        theme=theme,
        counts=f"{len(frame)} cells: {counted}. Report of {now():%Y-%m-%d %H:%M} UTC.",
        missing=missing(frame),
        trained=_trained(frame),
        tradeoff=_tradeoff(Data(found, frame, margin)),
        verdicts=[*verdict_tables(frame, margin, measure)],
        reading=reading(frame, margin, measure),
        sweep=_sweep(Data(found, frame, margin)) if is_swept(found) else None,
        sections=_sections(Data(blocks, frame, margin)),
        notes_below=footnotes(blocks) if blocks else [],
        operators_note=OPERATORS_NOTE,
        traces=[*_trace_sections(frame)],
        cells=_cells_table(root, frame),
        facts=_provenance(frame["path"]),
    )
    write_text(root / "report.html", text)
    return root / "report.html"


def _page(**values: Any) -> str:
    """The page that the templates of ``assets`` make of ``values``. Text is escaped unless its type is ``Html``."""
    loader = FileSystemLoader(Path(__file__).parent / "assets")
    templates = Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    templates.globals["spans"] = _spans
    return templates.get_template("report.html").render(values)


def _spans(headings: Iterable[Heading]) -> Iterator[tuple[str, int]]:
    """(group, number of columns) for each run of neighbouring columns that have the same group."""
    return ((name, len([*run])) for name, run in itertools.groupby(each.group for each in headings))


def write_files(
    path: Path | str,
    folder: Path | str,
    *,
    frame: "pd.DataFrame | None" = None,
    margin: float | None = None,
    measure: Measure = AUC,
    formats: Sequence[str] = ("svg",),
) -> Path:
    """Write the report's figures of strategies, and its table, as files into ``folder``; returns ``folder``.

    A figure is ``KIND.FORMAT``, or ``KIND-SETTING.FORMAT`` if there are several settings, and ``sweep.FORMAT`` shows
    these together; the table is ``table.csv``,
    ``table.tex`` (package booktabs) and ``table.md``. ``frame``, ``margin``: as in :func:`report`. ``formats``: figure
    formats out of ``analysis.figures.FIGURE_FORMATS``. The same cells give the same bytes.

    Raises StoreError as ``load`` does, and if a record cannot be read or a file cannot be written.
    """
    frame, target = load(path, copies=True) if frame is None else frame, Path(expanded(folder))
    data = Data(blocks_of(frame, measure), frame, margin)
    drawn = [(TRADEOFF, Data(regimes_of(frame, measure), frame, margin)), *((kind, data) for kind in KINDS)]
    with store_errors(target, "written"), style():
        target.mkdir(parents=True, exist_ok=True)
        for kind, source in drawn:
            for block, figure in figures(kind, source):
                write_figure(figure, target, "-".join(filter(None, (kind.name, slug(block)))), formats)
        if is_swept(drawn[0][1].blocks):
            write_figure(sweep_figure(drawn[0][1]), target, "sweep", formats)
    for form in FORMATS:
        write_text(target / f"table.{_SUFFIXES[form]}", table_text(frame, form, measure=measure))
    return target


_WORDS: dict[str, Callable[[Any], str]] = {
    "trace": lambda trace: f"failure trace {trace}" if trace else "no failures",
    "profile": lambda profile: f"profile {profile}",
    "num_ps": lambda num: f"{num} PS ranks",
    "engine": lambda engine: {"rpc": "ranks as processes (rpc)", "local": "all ranks in one process (local)"}.get(
        engine, f"engine {engine}"
    ),
}
"""Words for the value of a key of a setting. In a title the keys have this order; other keys, all swept, follow."""


def heading(block: Block, blocks: Sequence[Block]) -> str:
    """A title for ``block``: the values in which it differs from other ``blocks``.

    If it differs in none: its trace, profile, number of PS ranks and engine.
    """
    setting = block.setting
    keys = [key for key, value in setting.items() if any(other.setting[key] != value for other in blocks)]
    keys = keys or [key for key in _WORDS if key in setting]
    keys.sort(key=lambda key: [*_WORDS].index(key) if key in _WORDS else len(_WORDS))
    texts = [_WORDS[key](setting[key]) if key in _WORDS else setting_text({key: setting[key]}) for key in keys]
    text = ", ".join(filter(None, texts))
    return text[:1].upper() + text[1:]


def slug(block: Block) -> str:
    """The title of a block as part of a file name, without dots and spaces; empty if there is only one block."""
    return re.sub(r"\W+", "-", re.sub(r"(?<=\d)\.(?=\d)", "p", block.title)).strip("-")


def _tradeoff(data: Data) -> dict[str, Any] | None:
    """The figure of loss against overhead, a panel for each setting; None if no setting has a strategy with a loss."""
    with style():
        drawn = _svgs(TRADEOFF, data)
    panels = [(svg, "", _caption(TRADEOFF, data.blocks[place], data)) for place, svg in drawn.items()]
    return {"title": TRADEOFF.title, "panels": panels} if panels else None


def _sweep(data: Data) -> dict[str, Any]:
    """The table and the figure of settings that differ in more than the engine."""
    columns, rows = swept(data.blocks)
    with style():
        svg = to_svg(sweep_figure(data), "sweep", SWEEP)
    nums = [len(line.cells) for block in data.blocks for line in block.lines]
    figure = (svg, SWEEP, f"{CAPTION} {_counted(nums, 'run')} of each strategy under each setting.")
    return {"title": f"By {', '.join(data.blocks[0].axes)}", "columns": columns, "rows": rows, "figure": figure}


def _sections(data: Data) -> list[dict[str, Any]]:
    """A dictionary for each setting: heading, columns and rows of its table and of operators' words, and figures."""
    with style():
        drawn = {kind: _svgs(kind, data) for kind in KINDS}
    sections: list[dict[str, Any]] = []
    for place, block in enumerate(data.blocks):
        columns, rows = content(block)
        shown = [
            (svgs[place], kind.title, _caption(kind, block, data)) for kind, svgs in drawn.items() if place in svgs
        ]
        tables = {"columns": columns, "rows": rows, "operators": operators_content(block)}
        sections.append({"heading": heading(block, data.blocks), **tables, "figures": shown})
    return sections


def _caption(kind: Kind, block: Block, data: Data) -> str:
    """The caption of a block's figure. It names what is drawn, and the runs, so it needs no other text."""
    keys = {key: block.setting[key] for key in block.axes if key not in _WORDS}
    setting = ", ".join(filter(None, (heading(block, [block]), setting_text(keys))))
    nums = [line.cells["seed"].nunique() for line in block.lines]
    return " ".join(filter(None, (kind.caption, kind.says(block, data), f"{setting}; {_counted(nums, 'seed')}.")))


def _counted(nums: Sequence[int], word: str) -> str:
    low, high = min(nums), max(nums)
    return f"{low if low == high else f'{low} to {high}'} {word}{'' if high == 1 else 's'}"


def _svgs(kind: Kind, data: Data) -> dict[int, str]:
    """The figures of a kind as SVG, by the index of their block in ``data.blocks``.

    A setting that differs from one before in its engine alone has none: engines agree to the bit.
    """
    others = [{key: value for key, value in block.setting.items() if key != "engine"} for block in data.blocks]
    places = [place for place, other in enumerate(others) if other not in others[:place]]
    drawn = figures(kind, replace(data, blocks=[data.blocks[place] for place in places]))
    place_of = {id(data.blocks[place]): place for place in places}
    return {
        place_of[id(block)]: to_svg(figure, f"{kind.name}{place_of[id(block)]}", f"{kind.title}: {block.title}")
        for block, figure in drawn
    }


def _trace_sections(frame: Frame) -> Iterable[Mapping[str, Any]]:
    if frame["trace"].isna().all():
        return ()
    from analysis.trace_figures import trace_sections  # noqa: PLC0415 - scipy.stats takes half a second to import

    return trace_sections(frame)


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


def _cells_table(root: Path, frame: Frame) -> dict[str, Any]:
    swept = tuple((key, key, "") for key in frame if "." in key)
    columns = (*_CELL_COLUMNS[:4], *swept, *_CELL_COLUMNS[4:])
    headings = [
        Heading("cell"),
        *(Heading(title, is_text=not form, is_key=name == "overhead_frac") for name, title, form in columns),
    ]
    cells = plain(frame).to_dict("records")
    ordered = sorted(cells, key=lambda cell: (str(cell["engine"]), strategy_order(str(cell["strategy"])), cell["cell"]))
    rows = ([_link(root, cell), *(_text(cell[name], form) for name, _, form in columns)] for cell in ordered)
    return {"columns": headings, "rows": [*rows]}


def _link(root: Path, cell: Mapping[str, Any]) -> Html:
    target = Path(cell["path"]).relative_to(root).as_posix()
    return Html(f'<a href="{escape(target)}/">{escape(cell["cell"])}</a>')


def _text(value: Any, form: str) -> str:
    return UNKNOWN if value is None else format(int(value) if form == "d" else value, form)


def _provenance(paths: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """Facts on code and machine from env.json in the run folders ``paths``: the different values of each, by title.

    Files that cannot be read are left out; empty if none can be read.
    """
    envs: list[dict[str, Any]] = []
    for file in (RunDir(Path(path)).env for path in paths):
        with suppress(StoreError):  # what cannot be read is unknown
            envs.append(read_json(file))
    times = sorted(str(env.get("time")) for env in envs)
    written = {"written": [times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}"]} if envs else {}
    facts = {title: [*dict.fromkeys(text_of(env) for env in envs)] for title, text_of in _FACTS.items()}
    return {**written, **facts} if envs else {}


def _commit(env: dict[str, Any]) -> str:
    git = env.get("git")
    if not isinstance(git, dict):
        return "unknown"
    return str(git.get("commit")) + (", with changes not committed" if git.get("dirty") else "")


def _data(env: dict[str, Any]) -> str:
    match env.get("data"):
        case {"num_samples": int(samples), "table_rows": [*rows], **others}:
            text = f"{samples:,} samples, {sum(rows):,} embedding rows"
        case _:
            return "unknown"
    match others.get("synthetic"):
        case {"like": str(like), "taper": int() | float() as taper, "flat": bool(flat), "seed": int(seed)}:
            text += f", synthetic: like {like}, taper {taper:g}{', flat' if flat else ''}, seed {seed}"
    return text + (f", split into {split}" if isinstance(split := others.get("split"), str) else "")


def _trained(frame: Frame) -> Mapping[str, str]:
    """What was trained, on how many ranks and under which failures, by title; empty without a finished cell.

    A value in which cells differ is shown as all of its values.
    """
    done = frame[frame["status"] == "done"]
    keys = [key for key in frame if "." in key and not key.startswith(("strategy.", "trace."))]
    runs: list[tuple[Any, dict[str, Any], int]] = []
    for path in map(Path, done.drop_duplicates(["engine", "profile", "num_ps", "data", *keys])["path"]):
        with suppress(StoreError):
            log, flat = EventLog.of(RunDir(path)), defaultdict(lambda: UNKNOWN, flatten(read_config(path)))
            runs.append((flat, read_env(path), log.started.total_samples if log.started else 0))
    if not runs:
        return {}
    facts: dict[str, Callable[[Any, dict[str, Any], int], str]] = {
        "data": lambda flat, env, _: f"{flat['data.path']} ({_data(env)})",
        "model": lambda flat, _env, _: f"{flat['model.name']}, size {flat['model.size']}",
        "training": lambda flat, _, num: f"{num:,} samples in batches of {flat['trainer.batch_size']}",
        "ranks": lambda flat, _, __: (
            f"{_counted([flat['cluster.num_trainers']], 'trainer')}, "
            f"{_WORDS['num_ps'](identity(flat)['num_ps'])}, {_WORDS['engine'](flat['engine'])}"
        ),
        "job": lambda flat, _, __: f"{flat['profile.job_h']:g} h, profile {flat['profile.name']}",
    }
    found = {title: dict.fromkeys(text_of(*run) for run in runs) for title, text_of in facts.items()}
    traces = ", ".join(sorted({*done["trace_law"].dropna()}, key=natural)) or "none"
    return {**{title: "; ".join(texts) for title, texts in found.items()}, "failure traces": traces}


_FACTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "data": _data,
    "commit": _commit,
    "command": lambda env: str(env.get("command")),
    "versions": lambda env: ", ".join(f"{name} {env.get(name)}" for name in ("python", "torch", "numpy", "wandb")),
    "machine": lambda env: f"{env.get('cpu')}, {env.get('num_cores')} cores, {env.get('system')}",
    "dense network": lambda env: f"backend {env.get('backend')}",
    "threads per rank": lambda env: str(env.get("num_threads")),
}
