"""The figures and the table of a report as files, for papers. The same cells give the same bytes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.figures import KINDS, TRADEOFF, Data, figures, style, write_figure
from analysis.load import cells_of, load
from analysis.report.sections import slug
from analysis.stats import DEFAULT_MARGIN, regimes, summarise
from analysis.tables import FORMATS, table_text
from harness.record.files import store_errors, write_text

if TYPE_CHECKING:
    import pandas as pd

_SUFFIXES = {"csv": "csv", "latex": "tex", "markdown": "md"}


def write_files(
    path: Path | str,
    folder: Path | str,
    *,
    frame: "pd.DataFrame | None" = None,
    margin: float = DEFAULT_MARGIN,
    formats: Sequence[str] = ("svg",),
) -> Path:
    """Write each figure of the report of ``path`` into ``folder``, and its table; the folder.

    A figure is ``KIND.svg``, or ``KIND-SETTING.svg`` if there are several settings; the table is ``table.csv``,
    ``table.tex`` (package booktabs) and ``table.md``. ``frame``: that of ``path``, if it is loaded already.
    ``formats``: of figures, some of ``analysis.style.FIGURE_FORMATS``.

    Raises StoreError as ``load`` does, and if a file cannot be written.
    """
    frame, target = load(path) if frame is None else frame, Path(folder)
    cells = cells_of(frame)
    data = Data(summarise(cells), cells, margin)
    drawn = [(TRADEOFF, Data(regimes(cells), cells, margin)), *((kind, data) for kind in KINDS)]
    with store_errors(target, "written"), style():
        target.mkdir(parents=True, exist_ok=True)
        for kind, source in drawn:
            for block, figure in figures(kind, source):
                write_figure(figure, target, "-".join(filter(None, (kind.name, slug(block)))), formats)
    for kind in FORMATS:
        write_text(target / f"table.{_SUFFIXES[kind]}", table_text(frame, kind))
    return target
