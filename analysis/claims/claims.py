"""The claims of the papers, each with its experiment and how finished cells are judged (docs/REPRODUCTION.md)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.cells import Cell, cells_of
from analysis.claims.caches import accesses, embedding_share, lookahead, staleness, wire
from analysis.claims.costs import production, trackers
from analysis.claims.emulation import overhead, quality, resolution
from analysis.claims.figures import Draw, dots, scatter, sweep
from analysis.claims.hour import draw_hours, hour
from analysis.claims.measured_figures import (
    draw_accesses,
    draw_lookahead,
    draw_production,
    draw_staleness,
    draw_step,
    draw_trackers,
    draw_wire,
)
from analysis.claims.measures import LOSS, LOST, LOST_TRACKED, MEMORY, OVERHEAD, PLS, SAVES
from analysis.claims.mirror import mirror
from analysis.claims.pareto import front, pareto
from analysis.claims.placement import placement
from analysis.claims.power import power
from analysis.claims.rows import Row
from analysis.claims.seeds import planning, seeds
from analysis.claims.settings import REMOVED, Less, Trend, settings
from analysis.claims.slopes import slopes
from analysis.claims.traces import traces
from analysis.claims.tracker import tracker_part
from analysis.stats import condition

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
_BENCHMARKS = Path("benchmarks")

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
            [Trend(name, +1, "rises [recalled]", REMOVED) for name in ("cpr_vanilla", "cpr_mfu", "cpr_ssu")],
        ),
        "The target sets the interval between saves, if partial recovery pays at all.",
        sweep("strategy.pls_target", "PLS target"),
        _CAPTION,
    ),
    "fraction": Claim(
        "CPR's benefit with the part of the ranks that a failure takes",
        "CPR, section 6 (12.5, 25 and 50 %)",
        _FOLDER / "fraction.yaml",
        settings("profile", "ranks", [Trend("cpr_mfu", -1, "–", REMOVED)]),
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
                Trend("cpr_vanilla", 0, "flat [recalled]", SAVES),
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
    "accesses": Claim(
        "A hundredth of the rows gets nine tenths of the accesses",
        "BagPipe, abstract",
        Benchmark(_BENCHMARKS / "accesses.py", ("{data}", "demo/long")),
        accesses,
        "The generator of the synthetic logs was asked for one skew only: 72 % of the accesses of each of the seven "
        "largest tables on the top 1 % of its rows. That the share over all tables comes near BagPipe's follows from "
        "it and the small tables, and confirms nothing: real logs decide, by `benchmarks/accesses.py data/kaggle`. "
        "The share grows with the number of samples, so a few thousand samples of real data do not decide.",
        draw_accesses,
        "A point is the share of all accesses that the most accessed rows of a data set get. Every sample accesses a "
        "row of each of 26 tables. All samples are counted, so there is no interval. Left: all tables as one. Right: "
        "the seven largest. Both data sets are synthetic.",
    ),
    "embedding_share": Claim(
        "Embedding access and synchronisation take most of a step",
        "BagPipe, abstract",
        Benchmark(_BENCHMARKS / "step.py", ("--rounds", "7", "--steps", "100", "--rows-scale", "0.1")),
        embedding_share,
        "Not BagPipe's setting: one CPU, batch 128, loopback, a tenth of the rows of Criteo Kaggle. BagPipe has GPUs, "
        "whose dense network is fast, and a network. Times are this machine's: median, least and greatest of rounds "
        "in which all variants take turns. In the harness the part is all that the dense network alone does not take, "
        "so reading and planning of batches and the cache's own work are in it; `requests alone` is the least that it "
        "can be. A negative part says that the machine was not quiet.",
        draw_step,
        "Left: milliseconds of a step, medians of 7 rounds of 100 steps. Right: the part of it that is embedding "
        "access and synchronisation; a point is the median of the rounds, bars are the least and the greatest. Batch "
        "128, 2 threads, 2 PS ranks, one machine. `plain` is 26 nn.EmbeddingBag in one process.",
    ),
    "lookahead": Claim(
        "A cache that looks ahead moves only the bytes that it must",
        "BagPipe, section 3; the bound is this project's",
        Benchmark(
            _BENCHMARKS / "cache.py",
            ("--steps", "2000", "--rows-scale", "0.1", "--lookahead", "10,25,50,100,200,400"),
        ),
        lookahead,
        "BagPipe looks 200 batches ahead by default [read]. Counts, not times: one run on `local` for each lookahead, "
        "batch 128, a tenth of the rows of Criteo Kaggle, log-uniform ids. The least possible is what any cache with "
        "the same lookahead must move (harness/client/oracle.py). The run is bit-equal to one without a cache.",
        draw_lookahead,
        "A point is one run of 2,000 steps with one seed; bytes and rows are counted, so there is no interval. Left: "
        "of the bytes and rows that a run without a cache moves. Right: the greatest number of rows that the cache "
        "held.",
    ),
    "wire": Claim(
        "The lookahead cache makes steps faster where the wire is slow",
        "BagPipe, abstract",
        Benchmark(
            _BENCHMARKS / "wire.py",
            ("--rate-mbit", "0,1000,200", "--ps", "2", "--rounds", "5", "--steps", "100", "--rows-scale", "0.1"),
        ),
        wire,
        "BagPipe's 5.6 is against other systems on GPU nodes, so it is no target here: the last row asks only whether "
        "there is a gain. Times are this machine's: median, least and greatest of rounds in which both variants take "
        "turns. All ranks share its cores, and both directions share the limited rate. Where a network namespace is "
        "not allowed, nothing is run.",
        draw_wire,
        "Engine `rpc`, 2 PS ranks, batch 128, lookahead 200, on loopback as it is and limited to a rate. A point is "
        "the median of 5 rounds of 100 steps, bars are the least and the greatest. Left: a step. Right: the step "
        "without the cache over the step with it, in the same round.",
    ),
    "staleness": Claim(
        "Bounded staleness saves most of the embedding traffic",
        "HET, abstract",
        _FOLDER / "staleness.yaml",
        staleness,
        "HET's figure is for its own models on several nodes; whether it counts versions, and its AUC, are not known "
        "here. Workers are eight, and take turns (docs/ARCHITECTURE.md). `Versions counted` adds the bytes of asking "
        "for the versions of cached rows, which HET's workers must send and these need not. Staleness 0 is bit-equal "
        "to no cache, so AUC loss is against it, paired by seed. That loss is of a run of one epoch without failures.",
        draw_staleness,
        "2 M synthetic samples, 13,392 steps of batch 128, 8 workers; means over 5 seeds, no failure. Left: a point "
        "is a staleness s, the updates of a row that a copy may miss; bars are 95 % intervals of the AUC loss, paired "
        "by seed. Right: bytes saved by s, the versions of rows not counted, and counted.",
    ),
    "trackers": Claim(
        "Counters of accesses cost little memory, sampled lists an eighth of that, copies of the rows all of it",
        "CPR, section 4",
        Benchmark(
            _BENCHMARKS / "trackers.py",
            (
                *("--rounds", "5", "--steps", "96", "--rows-scale", "0.1"),
                *("--intervals", "", "--save-steps", "3000", "--trackers", "mfu,ssu,mass,scar,changed"),
            ),
        ),
        trackers,
        "Memory is arithmetic on the seven largest tables of Criteo Kaggle, r = 1/8. Trackers that serve all tables "
        "are set against these seven too. Times are this machine's, at a tenth of the rows: what the shards of 8 "
        "ranks take more with a tracker than without, over a step of `local` in the same round, and the choice of "
        "rows. With all trackers at once in memory and other work on the machine a time may come out below 0.",
        draw_trackers,
        "Left: bytes of a tracker over those of the tables that CPR tracks, by arithmetic. Right: what recording "
        "accesses adds to a step, without the choice of rows: median of 5 rounds of 96 steps, bars are the least and "
        "the greatest; one machine, batch 128, 8 ranks.",
    ),
    "production": Claim(
        "In production failures cost 13 % of a job on average and over 30 % of one job in ten",
        "CPR, its poster",
        Benchmark(_BENCHMARKS / "production.py"),
        production,
        "A check of consistency: neither the jobs nor their costs are published. MTBF is uniform in 14 to 30 h [2nd]. "
        "Costs are those of `cpr56` times a scale and a lognormal factor of spread sigma; the scale is chosen so that "
        "the mean is 13 %, and sigma is the one with the greatest P90. So mean and P90 of `full` are calibrated; they "
        "are shown of other draws of the jobs. What CPR would cost the same jobs is a prediction, under the "
        "assumption that one failure takes one of 8 ranks. A lognormal overhead alone has a P90 of at most 2.27 times "
        "its mean, and 30 / 13 is 2.31: so the two published figures together ask for a very wide spread over jobs.",
        draw_production,
        "Simulated jobs, without training. Left: a line is the distribution of overhead over 10 populations of 1,000 "
        "jobs under a strategy, at the scale and sigma that were found; failures of a job are the same for all. The "
        "cross is the published P90. Right: a point is P90 of `full` in one population of 1,000 jobs, with the scale "
        "at which its mean is 13 %.",
    ),
    "pareto": Claim(
        "What each strategy costs and loses, and which are dominated",
        "this project; the strategies are those of CPR, SCAR, Check-N-Run, Gemini and docs/MIRROR.md",
        _FOLDER / "pareto.yaml",
        pareto,
        "Ten failures in 56 h, of which every strategy knows the rate. Hours and node-hours are emulated; bytes and "
        "memory are those of this run, memory in the rank that needs most of tracker, replica or mirror. A strategy "
        "dominates another where paired 95 % intervals leave no measure in which it may be worse, and show one in "
        "which it is better; `everything` is overhead, bytes written, memory, lost updates and AUC. The intervals are "
        "not corrected for the number of comparisons. Where AUC cannot tell two strategies apart, neither dominates. "
        "Overhead does not price memory: `buddy` keeps a second copy of all rows. `never_save` is a control.",
        front,
        "A point is a strategy: mean over 10 seeds, each with ten failures at hours of its own; bars are 95 % "
        "intervals, of AUC loss over pairs with the run of the same seed without failures. Left: AUC loss against "
        "emulated hours of overhead, without the control `never_save`. Right: the share of all updates that was lost "
        "against bytes written after the start. Grey: another strategy dominates it in the two measures of the panel, "
        "by paired intervals. The line is the Pareto front of the means, which is no test. Hours are linear up to "
        "0.1, bytes up to 10 MB, lost updates up to 0.1 %, then logarithmic.",
    ),
    "tracker_part": Claim(
        "The part of CPR's gain that its tracker explains",
        "CPR, section 4; the division is this project's",
        _FOLDER / "tracker_part.yaml",
        tracker_part,
        "At equal bytes written, a strategy that saves parts gains on `cpr_vanilla`, which saves all rows, in two "
        "steps: parts of random rows, which takes no knowledge (`cpr_random`), and chosen ones, which the tracker "
        "explains. A gain is how much less is lost, paired by seed; both steps add up to the whole. The tracker's "
        "share is over 100 % where random parts lose more than `cpr_vanilla`. Its interval is of the ratio of means "
        "(delta method). A priority save holds half of the rows that were touched; untracked tables are saved at the "
        "ends of intervals.",
        dots(lambda cell: cell["strategy"], (LOST_TRACKED, LOSS)),
        "Mean over 10 seeds, each with its own draw of Poisson failures, one in 5.6 h of 56; bars are 95 % intervals. "
        "Left: the share of the updates of tracked tables that was lost. Right: AUC loss, paired with the run of the "
        "same seed without failures. All strategies write about the same bytes.",
    ),
    "mirror_size": Claim(
        "What `cpr_mirror` saves as its mirror grows",
        "this project (docs/MIRROR.md)",
        _FOLDER / "mirror_size.yaml",
        settings(
            "strategy.share",
            "share",
            [Trend("cpr_mirror", -1, "falls (own claim)", LOST), Trend("cpr_mirror", -1, "falls (own claim)")],
            (LOST, OVERHEAD, MEMORY),
            lambda _name, _value: ("cpr_mfu", None),
        ),
        "The share is of each tracked table, the most accessed rows; small tables are mirrored whole at any share. "
        "Why: the difference to `cpr_mfu`, paired by seed. Memory is in the process that needs most, which for a "
        "small mirror may be the tracker in a rank.",
        sweep("strategy.share", "share of the tracked tables that is mirrored", (LOST, MEMORY)),
        "Mean over 10 seeds, each with ten failures in 56 h at hours of its own; bars are 95 % intervals. Left: the "
        "share of all updates that was lost. Right: memory of the tracker or the mirror, in the process that needs "
        "most.",
    ),
    "breaks": Claim(
        "Where each strategy breaks: failures other than those that it was planned for",
        "this project",
        _FOLDER / "breaks.yaml",
        settings("profile", "", [], (OVERHEAD, LOST, LOSS), lambda name, _value: (name, "single")),
        "Planned for, and `single`: five failures of one of 8 ranks. `four at once`: each takes four ranks, nearly "
        "always a rank and its buddy. `early`: all five in the first tenth of the job. `with the trainer`: each takes "
        "the mirror of `cpr_mirror` too. Intervals between saves are those of the plan. Why: how much worse than "
        "under `single`, paired by seed.",
        dots(lambda cell: cell["profile"], (OVERHEAD, LOST), log=(0, 1)),
        "Mean over 10 seeds; bars are 95 % intervals. Hours and ranks of five failures are drawn for each seed: the "
        "hours are the same in all regimes but `early`, where they are a tenth. Left: overhead. Right: the share of "
        "all updates that was lost. Axes begin at 0, are linear up to 0.1 % and then logarithmic.",
    ),
    "traces": Claim(
        "Which strategy for which failure regime",
        "this project (docs/TRACES.md)",
        _FOLDER / "traces.yaml",
        traces,
        "Five seeds under each shipped trace, so an interval is over seeds and says nothing about other traces of the "
        "regime; only of `poisson` each seed has another draw. Least overhead: of all strategies that save. Fewest "
        "lost updates: of those that lose any, since `full` loses none by construction. `buddy` is in the figure "
        "alone: its price is memory, which neither measure has. Why: the next strategy, by paired differences.",
        dots(lambda cell: condition(cell, "trace"), (OVERHEAD, LOST), log=(0, 1)),
        "Mean over 5 seeds under one trace, under `poisson` a trace each; bars are 95 % intervals. Left: overhead. "
        "Right: the share of all updates that was lost. Axes begin at 0, are linear up to 0.1 % and then logarithmic.",
    ),
    "seeds": Claim(
        "How many seeds and traces a statement about AUC takes",
        "this project (docs/STATISTICS.md)",
        _FOLDER / "seeds.yaml",
        seeds,
        "Eight seeds under each of eight draws of two failures (`cpr56`): two-way analysis of variance of the paired "
        "differences; intervals by the jackknife, which leaves out a seed at a time, or a trace for the part between "
        "traces. A pair is a new seed with a new trace, of standard deviation s, the root of the sum of the three "
        "squares. Pairs for a half-width h: the least n with t(0.975, n − 1) · s / √n ≤ h. Pairs for 80 % power: the "
        "least n with which a two-sided 5 % paired t-test finds a difference d, by the noncentral t distribution; "
        "about 7.85 · (s / d)². In brackets: for the ends of the interval of s. Rounding is not added: it is part of "
        "what a pair of seed and trace differs by.",
        planning,
        "Left: a point is the AUC loss of `cpr_mfu` of one of 8 seeds under one of 8 draws of two failures, paired "
        "with the run of the same seed without failures; dashes are means of a draw. Right: how many pairs of a new "
        "seed and a new trace an interval of this half-width takes, and a test of this difference, by the spread of "
        "the points.",
    ),
    "power": Claim(
        "The number of pairs for 80 % power gives 80 % power",
        "this project (docs/STATISTICS.md)",
        Benchmark(Path("benchmarks") / "power.py", ("--grids", "20", "--studies", "200"), key="studies"),
        power,
        "Simulated studies: as many pairs as the formula of claim `seeds` asks for, and a two-sided 5 % paired t-test "
        "of each. Where the spread is that of 20 earlier pairs, pairs are the median. Skewed: exponential "
        "differences, with a rare great one.",
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
                Trend("cpr_mfu", +1, "–", REMOVED),
                Trend("cpr_vanilla", 0, "–", PLS),
                Trend("cpr_vanilla", 0, "–", LOSS),
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
        "was at the first point of the curve after the failure. That later failures cost more was stated after a look at "
        "seeds 0 to 9; these are others.",
        draw_hours,
        "10 seeds (10 to 19), of which each draws the 4 of 8 ranks that the failure takes, the same at each hour; means "
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
                Trend("cpr_ssu", +1, "–", LOST_TRACKED),
                Trend("cpr_ssu", +1, "–", LOSS),
                Less("cpr_ssu", "cpr_mfu", "–", LOST_TRACKED),
                Less("cpr_ssu", "cpr_mfu", "–"),
            ],
            measures=(OVERHEAD, PLS, LOST_TRACKED, LOSS),
        ),
        "Of each so many inputs one is in the sub-sample. In this job more rows are touched between two saves than a "
        "list holds, so a new row replaces a random one. A short period lists rows that are met once too; a long one "
        "lists fewer rows, and those are met often. The measure to look at is the share of lost updates of tracked "
        "tables: AUC does not tell strategies apart here (docs/CPR.md).",
        sweep("strategy.period", "period: inputs for each one that is sampled", (LOST_TRACKED, LOSS)),
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
                Trend("cpr_ssu", 0, "–", LOST_TRACKED, since="random", until="oldest"),
                Trend("cpr_ssu", 0, "–", LOSS, since="random", until="oldest"),
            ],
            measures=(OVERHEAD, PLS, LOST_TRACKED, LOSS),
        ),
        "`random`, the default, keeps some rows that were met long before the save; `oldest` keeps the rows that "
        "joined last. The job is that of claim `ssu`, at period 2.",
        sweep("strategy.eviction", "row that a new one replaces", (LOST_TRACKED, LOSS), has_runs=True),
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
        sweep("cluster.placement", "placement", (LOST, LOSS), has_runs=True),
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
                    Trend(name, 0, "–", LOSS, since="sgd", until=other)
                    for name in ("never_save", "cpr_vanilla", "cpr_mfu")
                    for other in ("rowwise_adagrad", "adagrad")
                ),
                Less("cpr_mfu", "cpr_vanilla", "lower [recalled]"),
            ],
        ),
        "A row's sums of squared gradients are saved and lost with it, so a lost row also takes larger steps again. "
        "The learning rate is 0.1 for all, and the dense network has SGD.",
        sweep("trainer.optimizer", "optimizer of the tables", (PLS, LOSS)),
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
                *(Trend(name, +1, "–", LOSS) for name in ("cpr_vanilla", "cpr_mfu", "cpr_ssu")),
                Less("cpr_mfu", "cpr_vanilla", "lower [recalled]"),
                Less("cpr_ssu", "cpr_vanilla", "lower [recalled]"),
            ],
            measures=(PLS, LOST_TRACKED, LOSS),
        ),
        "Two synthetic logs with rows of equal popularity. In `demo/data` the effect of a row on the label falls with "
        "its rank by popularity (`--taper 0.5`); in `demo/flat` rare rows have as much (`--taper 0`). Priority saves "
        "leave rare rows behind, which should cost more there. Real logs need not be like either.",
        sweep("data.path", "click log", (LOST_TRACKED, LOSS)),
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
                        Trend(name, -1, "falls [derived]", PLS, since="28 h", until="5.6 h"),
                        Trend(name, +1, "rises [derived]", PLS, since="28 h", until="140 h"),
                    )
                ),
            ],
        ),
        "The interval is chosen by the believed MTBF; two failures strike in 56 h, so the true one is 28 h. Full "
        "recovery has its least overhead at the true MTBF, so either error costs. Partial recovery trades overhead for "
        "lost samples: too short an MTBF costs saves, too long a one lost samples, for which the target is 10 %. From "
        "an MTBF of 35 h on, its interval is longer than the job: `cpr_vanilla` then saves nothing, and `cpr_mfu` "
        "makes priority saves within the interval, which PLS does not count.",
        sweep("profile", "believed MTBF (true: 28 h)", (OVERHEAD, PLS)),
        f"{_MEANS} (two failures of one of 8 ranks in 56 h), the same trace at each MTBF. Left: overhead of the "
        "emulated job. Right: portion of lost samples; CPR's target is 10 %.",
    ),
}
"""By name, in the order of the page."""
