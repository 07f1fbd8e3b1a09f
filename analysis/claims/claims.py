"""The claims of the papers, each with its experiment and how finished cells are judged (docs/REPRODUCTION.md)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.cells import Cell, cells_of
from analysis.claims.emulation import overhead, quality, resolution
from analysis.claims.figures import Draw, scatter, sweep
from analysis.claims.hour import draw_hours, hour
from analysis.claims.mirror import mirror
from analysis.claims.placement import placement
from analysis.claims.rows import Row
from analysis.claims.settings import Less, Trend, settings
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
_RUNS = "10 seeds (0 to 9), each with a failure trace of its own"
_MEANS = f"A point is the mean over {_RUNS}; bars are 95 % intervals of it (Student's t)"
_PAIRED = "AUC loss is paired with `none`, the run of the same seed without failures"
_TRACKED = "Left: updates of tracked tables that no save held when their rank died."
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
    "failures": Claim(
        "The more failures, the more CPR saves on full recovery, and it loses no more samples",
        "CPR, section 6 (its shape), for 1 to 40 failures; this project",
        _FOLDER / "failures.yaml",
        settings(
            "profile",
            "failures",
            [
                Trend("full", +1, "rises [derived]"),
                Trend("cpr_mfu", +1, "rises [derived]"),
                Trend("cpr_mfu", +1, "–", "removed"),
                Trend("cpr_vanilla", 0, "–", "pls"),
                Trend("cpr_vanilla", 0, "–", "loss"),
                Less("cpr_mfu", "cpr_vanilla", "lower [recalled]"),
                Less("cpr_ssu", "cpr_vanilla", "lower [recalled]"),
            ],
        ),
        "The job has 56 h and 8 ranks, and a failure takes one of them. Each strategy knows how often it fails: its "
        "interval follows from the MTBF, and CPR's target of lost samples is 0.1 for all. With few failures a save or "
        "two is all that CPR makes in the job, and one failure may then lose much more or less than the target. "
        "[derived]: the closed forms of docs/CPR.md.",
        sweep("profile", "failures of one of 8 ranks in 56 h"),
        f"{_MEANS}. Each number of failures has its own MTBF, so its own interval between saves. Left: overhead of the "
        f"emulated job. Right: {_PAIRED}; `full` equals it.",
    ),
    "hour": Claim(
        "A late failure costs more AUC than an early one, since training heals",
        "this project",
        _FOLDER / "hour.yaml",
        hour,
        "One failure takes 4 of 8 ranks at the hour of the job (of 56) after `at:`. `never_save` resets half of all "
        "rows to their initial values. `cpr_vanilla` saves every 14 h here, so these rows lose the last 13 h whatever "
        "the hour; at hour 13 it has made no save yet, and the two strategies are the same run. A loss is that of the "
        "same seed's run without the failure. Half of it is gone where the mean over seeds falls to half of what it "
        "was at the first point of the curve after the failure.",
        draw_hours,
        "10 seeds (0 to 9), of which each draws the 4 of 8 ranks that the failure takes, the same at each hour; means "
        f"and 95 % intervals over them. {_PAIRED}. Left: the loss at the end of 56 h by the hour of the failure "
        "(`at:H`). Right: the loss every 2 h after the failure, on the whole test set; bands are the intervals.",
    ),
    "ssu": Claim(
        "How sparse the sub-sample of CPR-SSU may be",
        "CPR, section 4: SSU approximates MFU by sub-sampling inputs [read]; the period is not known",
        _FOLDER / "ssu.yaml",
        settings(
            "strategy.period",
            "period",
            [
                Trend("cpr_ssu", +1, "–", "tracked"),
                Trend("cpr_ssu", +1, "–", "loss"),
                Less("cpr_ssu", "cpr_mfu", "–", "tracked"),
                Less("cpr_ssu", "cpr_mfu", "–"),
            ],
            shows=("overhead", "pls", "tracked"),
        ),
        "Of each so many inputs one is in the sub-sample. In this job more rows are touched between two saves than a "
        "list holds, so a new row replaces a random one. A short period lists rows that are met once too; a long one "
        "lists fewer rows, and those are met often. The measure to look at is the share of lost updates of tracked "
        "tables: AUC does not tell strategies apart here (docs/CPR.md).",
        sweep("strategy.period", "period: inputs for each one that is sampled", ("tracked", "loss")),
        f"{_MEANS} (ten failures of one of 4 ranks). Dashed: the mean of `cpr_mfu`, which counts all inputs, over the "
        f"same seeds. {_TRACKED} Right: {_PAIRED}.",
    ),
    "eviction": Claim(
        "Which row a full list of CPR-SSU gives up",
        "this project; CPR's choice is not known",
        _FOLDER / "eviction.yaml",
        settings(
            "strategy.eviction",
            "evicts",
            [
                Trend("cpr_ssu", 0, "–", "tracked", since="random", until="oldest"),
                Trend("cpr_ssu", 0, "–", "loss", since="random", until="oldest"),
            ],
            shows=("overhead", "pls", "tracked"),
        ),
        "`random`, the default, keeps some rows that were met long before the save; `oldest` keeps the rows that "
        "joined last. The job is that of claim `ssu`, at period 2.",
        sweep("strategy.eviction", "row that a new one replaces", ("tracked", "loss"), has_runs=True),
        f"{_MEANS}; dots are its runs (ten failures of one of 4 ranks each). {_TRACKED} Right: {_PAIRED}.",
    ),
    "placement": Claim(
        "Whole tables on a rank: failures differ in what they lose",
        "this project",
        _FOLDER / "placement.yaml",
        placement,
        "Row-wise, row id modulo 8, every rank has an eighth of each table. Table-wise each table is on one rank, "
        "largest first onto the lightest. PLS weighs a rank by its share of all rows (docs/CPR.md). All failures are "
        "at hour 27 of 56, so that seeds differ only in the rank that dies. A load is charged whole in either case.",
        sweep("cluster.placement", "placement", ("updates", "loss"), has_runs=True),
        "A point is the mean over 20 seeds (0 to 19), bars are 95 % intervals; each seed draws the one of 8 ranks that "
        "dies at hour 27, the same for both placements. Left: share of all updates that no save held when the rank "
        f"died; a dot is a failure. Right: {_PAIRED} and the same placement.",
    ),
    "optimizer": Claim(
        "What partial recovery loses under other optimizers of the tables",
        "this project; CPR trains with SGD [recalled]",
        _FOLDER / "optimizer.yaml",
        settings(
            "trainer.optimizer",
            "optimizer",
            [
                *(
                    Trend(name, 0, "–", "loss", since="sgd", until=other)
                    for name in ("never_save", "cpr_vanilla", "cpr_mfu")
                    for other in ("rowwise_adagrad", "adagrad")
                ),
                Less("cpr_mfu", "cpr_vanilla", "lower [recalled]"),
            ],
        ),
        "A row's sums of squared gradients are saved and lost with it, so a lost row also takes larger steps again. "
        "The learning rate is 0.1 for all, and the dense network has SGD.",
        sweep("trainer.optimizer", "optimizer of the tables", ("pls", "loss")),
        f"{_MEANS} (ten failures of one of 4 ranks), the same trace for each optimizer. Left: lost samples, which no "
        f"optimizer changes. Right: {_PAIRED} and optimizer.",
    ),
    "taper": Claim(
        "Priority saves pay, also where rare rows matter as much as hot ones",
        "this project",
        _FOLDER / "taper.yaml",
        settings(
            "data.path",
            "",
            [
                *(Trend(name, +1, "–", "loss") for name in ("cpr_vanilla", "cpr_mfu", "cpr_ssu")),
                Less("cpr_mfu", "cpr_vanilla", "lower [recalled]"),
                Less("cpr_ssu", "cpr_vanilla", "lower [recalled]"),
            ],
            shows=("pls", "tracked"),
        ),
        "Two synthetic logs with rows of equal popularity. In `demo/data` the effect of a row on the label falls with "
        "its rank by popularity (`--taper 0.5`); in `demo/flat` rare rows have as much (`--taper 0`). Priority saves "
        "leave rare rows behind, which should cost more there. Real logs need not be like either.",
        sweep("data.path", "click log", ("tracked", "loss")),
        f"{_MEANS} (ten failures of one of 4 ranks), the same for both logs. {_TRACKED} Right: {_PAIRED} and log.",
    ),
    "mtbf": Claim(
        "What a wrong MTBF costs",
        "this project; closed forms of docs/CPR.md [derived]",
        _FOLDER / "mtbf.yaml",
        settings(
            "profile",
            "believed MTBF",
            [
                Trend("full", +1, "rises [derived]", since="28 h", until="5.6 h"),
                Trend("full", +1, "rises [derived]", since="28 h", until="140 h"),
                *(
                    trend
                    for name in ("cpr_vanilla", "cpr_mfu")
                    for trend in (
                        Trend(name, +1, "rises [derived]", since="28 h", until="5.6 h"),
                        Trend(name, -1, "falls [derived]", since="28 h", until="140 h"),
                        Trend(name, -1, "falls [derived]", "pls", since="28 h", until="5.6 h"),
                        Trend(name, +1, "rises [derived]", "pls", since="28 h", until="140 h"),
                    )
                ),
            ],
        ),
        "The interval is chosen by the believed MTBF; two failures strike in 56 h, so the true one is 28 h. Full "
        "recovery has its least overhead at the true MTBF, so either error costs. Partial recovery trades overhead for "
        "lost samples: too short an MTBF costs saves, too long a one lost samples, for which the target is 10 %. From "
        "an MTBF of 35 h on, its interval is longer than the job: `cpr_vanilla` then saves nothing, and `cpr_mfu` "
        "makes priority saves within the interval, which PLS does not count.",
        sweep("profile", "believed MTBF (true: 28 h)", ("overhead", "pls")),
        f"{_MEANS} (two failures of one of 8 ranks in 56 h), the same trace at each MTBF. Left: overhead of the "
        "emulated job. Right: portion of lost samples; CPR's target is 10 %.",
    ),
}
"""By name, in the order of the page."""
