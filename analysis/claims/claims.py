"""The claims of the papers, each with its experiment and how finished cells are judged (docs/REPRODUCTION.md)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.cells import Cell, cells_of
from analysis.claims.emulation import overhead, quality, resolution
from analysis.claims.figures import Draw, scatter, sweep
from analysis.claims.mirror import mirror
from analysis.claims.rows import Row
from analysis.claims.settings import Trend, settings
from analysis.claims.slopes import slopes

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Benchmark:
    """A script, its arguments, and the key of the list of results in the JSON file that it writes."""

    script: Path
    arguments: tuple[str, ...] = ()
    key: str = "results"


@dataclass(frozen=True)
class Claim:
    """A claim, and how it is judged. ``note``: one paragraph for the reader.

    ``experiment``: an experiment file, or a benchmark. ``judge`` is given the finished cells of the one, or the results
    of the other; ``draw`` likewise.
    """

    title: str
    source: str
    experiment: Path | Benchmark
    judge: Callable[[Sequence[Cell]], list[Row]]
    note: str
    draw: Draw | None = None
    caption: str = ""


def judge(claim: Claim, frame: "pd.DataFrame") -> list[Row]:
    """The rows of ``claim`` by the runs of a frame; none where no cell is done."""
    return claim.judge(cells_of(frame))


_CAPTION = (
    "Means over seeds, each with a failure trace of its own; bars are 95 % intervals. Left: overhead. Right: AUC loss, "
    "paired with `none` where it was run."
)
_FOLDER = Path("experiments") / "claims"

CLAIMS: dict[str, Claim] = {
    "overhead": Claim(
        "CPR cuts the overhead of failures from over 8 % of a job to under 1 %",
        "CPR, abstract and section 6; its poster",
        _FOLDER / "emulation.yaml",
        overhead,
        "The hours of a save, a load and rescheduling are not in the paper. Those of `cpr56` were chosen so that the "
        "two levels of the emulation come out (docs/CPR.md), so agreement there confirms nothing. `poster50` has the "
        "same costs and another job: it is a test. Its failures take k = 4 ranks. The closed form for the portion of "
        "lost samples asks for an interval divided by k; the published level is within reach only without.",
    ),
    "quality": Claim(
        "CPR keeps model quality on par with full recovery",
        "CPR, abstract",
        _FOLDER / "emulation.yaml",
        quality,
        "Full recovery loses no sample and equals the run without failures to the bit. So `on par` is a test of "
        "non-inferiority against that run: one-sided, 95 %, Holm's method over the strategies, at a margin of half of "
        "0.001 AUC, which was stated before these runs (docs/STATISTICS.md). "
        "Not measured here: what rounding alone does to AUC. In the grid of `make demo` another backend moves it by up "
        "to 0.79 · 10⁻³ in a seed, more than the margin.",
    ),
    "resolution": Claim(
        "These runs can tell a loss where there is one",
        "this project",
        _FOLDER / "emulation.yaml",
        resolution,
        "`never_save` resets a lost shard to its initial values. If that were not seen, nothing finer would be.",
    ),
    "pls": Claim(
        "AUC loss is linear in the portion of lost samples; priority saves lower its slope",
        "CPR, section 4",
        _FOLDER / "pls.yaml",
        slopes,
        "Slopes are through the origin, one for each seed over 1 to 40 failures; the interval is over seeds.",
        scatter,
        "A point is a run of one seed under 1, 5, 10, 20 or 40 failures at random hours; lines are through the origin. "
        "Right: without the control `never_save`.",
    ),
    "target": Claim(
        "CPR's benefit shrinks with the target of lost samples",
        "CPR, section 6",
        _FOLDER / "target.yaml",
        settings(
            "strategy.pls_target",
            "PLS target",
            [Trend(name, +1, "rises [recalled]", "removed") for name in ("cpr_vanilla", "cpr_mfu", "cpr_ssu")],
        ),
        "The target sets the interval between saves, if partial recovery pays at all.",
        sweep("strategy.pls_target", "PLS target"),
        _CAPTION,
    ),
    "fraction": Claim(
        "CPR's benefit with the part of the ranks that a failure takes",
        "CPR, section 6 (12.5, 25 and 50 %)",
        _FOLDER / "fraction.yaml",
        settings("profile", "ranks", [Trend("cpr_mfu", -1, "–", "removed")]),
        "A failure of more ranks loses more samples, so the same target asks for a shorter interval.",
        sweep("profile", "ranks that a failure takes"),
        _CAPTION,
    ),
    "nodes": Claim(
        "With more ranks full recovery gets worse and partial recovery does not",
        "CPR, section 6",
        _FOLDER / "nodes.yaml",
        settings(
            "profile",
            "",
            [
                Trend("full", +1, "rises [recalled]"),
                Trend("cpr_vanilla", 0, "flat [recalled]", "saves"),
                Trend("cpr_vanilla", +1, "–"),
            ],
        ),
        "Saves of partial recovery stay as rare, since N · MTBF is constant; loads and rescheduling are charged for "
        "each failure, whatever its size, and so they rise with N here.",
        sweep("profile", "PS ranks"),
        _CAPTION,
    ),
    "share": Claim(
        "How much of a table one priority save writes",
        "this project; CPR uses an eighth",
        _FOLDER / "share.yaml",
        settings("strategy.r", "r", []),
        "A save is due every r intervals, so an interval writes about the same whatever r is.",
        sweep("strategy.r", "r, fraction of a tracked table that a save writes"),
        _CAPTION,
    ),
    "mirror": Claim(
        "Rows that the trainer keeps: `cpr_mirror` loses less at less overhead",
        "this project (docs/MIRROR.md)",
        _FOLDER / "mirror.yaml",
        mirror,
        "Drawn on seeds and laws of failures that were not used while the strategy was built; the list was committed "
        "before it was run. The trainer lives. Differences are paired by seed and trace.",
    ),
}
"""By name, in the order of the page."""
