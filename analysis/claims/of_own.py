"""Claims past the papers: the project's own strategy, all strategies beside each other, and what statements take."""

from analysis.claims.claim import BENCHMARKS, FOLDER, Benchmark, Claim
from analysis.claims.figures import dots, sweep
from analysis.claims.measures import LOSS, LOST, LOST_TRACKED, MEMORY, OVERHEAD
from analysis.claims.mirror import mirror
from analysis.claims.pareto import front, pareto
from analysis.claims.power import power
from analysis.claims.seeds import planning, seeds
from analysis.claims.settings import Trend, settings
from analysis.claims.traces import traces
from analysis.claims.tracker import tracker_part
from analysis.stats import condition

OWN: dict[str, Claim] = {
    "mirror": Claim(
        "Rows that the trainer keeps: `cpr_mirror` loses less at less overhead",
        "this project (docs/MIRROR.md)",
        FOLDER / "mirror.yaml",
        mirror,
        "Drawn on seeds and laws of failures that were not used while the strategy was built; the list was committed "
        "before it was run. The trainer lives, and its mirror with it. Laws are those of the presets of these names "
        "(docs/TRACES.md). Differences are paired by seed and trace.",
    ),
    "mirror_size": Claim(
        "What `cpr_mirror` saves as its mirror grows",
        "this project (docs/MIRROR.md)",
        FOLDER / "mirror_size.yaml",
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
    "pareto": Claim(
        "What each strategy costs and loses, and which are dominated",
        "this project; the strategies are those of CPR, SCAR, Check-N-Run, Gemini and docs/MIRROR.md",
        FOLDER / "pareto.yaml",
        pareto,
        "Ten failures in 56 h, of which every strategy knows the rate. Prices are those of `cpr56_priced`, where a load"
        " is charged by its bytes (docs/CPR.md), so hours are not those of claim `failures`. Hours and node-hours are "
        "emulated; bytes and memory are those of this run, memory in the rank that needs most of tracker, replica or "
        "mirror. A strategy dominates another where paired 95 % intervals leave no measure in which it may be worse, "
        "and show one in which it is better; `everything` is overhead, bytes written, memory, lost updates and AUC. The"
        " intervals are not corrected for the number of comparisons. Where AUC cannot tell two strategies apart, "
        "neither dominates. Overhead does not price memory: `buddy` keeps a second copy of all rows. `never_save` is a "
        "control.",
        front,
        "A point is a strategy: mean over 10 seeds, each with ten failures at hours of its own; bars are 95 % "
        "intervals, of AUC loss over pairs with the run of the same seed without failures. Left: AUC loss against "
        "emulated hours of overhead, without the control `never_save`. Right: the share of all updates that was lost "
        "against bytes written after the start. A grey face: another strategy dominates it in the two measures of the "
        "panel, by paired intervals. The line is the Pareto front of the means, which is no test. Hours are linear up "
        "to 0.1, bytes up to 10 MB, lost updates up to 0.1 %, then logarithmic.",
    ),
    "tracker_part": Claim(
        "The part of CPR's gain that its tracker explains",
        "CPR, section 4; the division is this project's",
        FOLDER / "tracker_part.yaml",
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
    "breaks": Claim(
        "Where each strategy breaks: failures other than those that it was planned for",
        "this project",
        FOLDER / "breaks.yaml",
        settings("profile", "", [], (OVERHEAD, LOST, LOSS), lambda name, _value: (name, "single")),
        "Planned for, and `single`: five failures of one of 8 ranks. `four at once`: each takes four ranks, nearly "
        "always a rank and its buddy. `early`: all five in the first tenth of the job. `with the trainer`: each takes "
        "the mirror of `cpr_mirror` too. Intervals between saves are those of the plan. Why: how much worse than "
        "under `single`, paired by seed.",
        dots(lambda cell: cell["profile"], (OVERHEAD, LOST), log=(0, 1)),
        "Mean over 10 seeds; bars are 95 % intervals. Hours and ranks of five failures are drawn for each seed: the "
        "hours are the same in all regimes but `early`, where they are a tenth. Left: overhead. Right: the share of "
        "all updates that was lost. Axes are linear up to 0.1 % and then logarithmic.",
    ),
    "traces": Claim(
        "Which strategy for which failure regime",
        "this project (docs/TRACES.md)",
        FOLDER / "traces.yaml",
        traces,
        "Five seeds under each shipped trace, so an interval is over seeds and says nothing about other traces of the "
        "regime; only of `poisson` each seed has another draw. Least overhead: of all strategies that save. Fewest "
        "lost updates: of those that lose any, since `full` loses none by construction. `buddy` is in the figure "
        "alone: its price is memory, which neither measure has. Why: the next strategy, by paired differences.",
        dots(lambda cell: condition(cell, "trace"), (OVERHEAD, LOST), log=(0, 1)),
        "Mean over 5 seeds under one trace, under `poisson` a trace each; bars are 95 % intervals. Left: overhead. "
        "Right: the share of all updates that was lost. Axes are linear up to 0.1 % and then logarithmic.",
    ),
    "seeds": Claim(
        "How many seeds and traces a statement about AUC takes",
        "this project (docs/STATISTICS.md)",
        FOLDER / "seeds.yaml",
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
        Benchmark(BENCHMARKS / "power.py", ("--grids", "20", "--studies", "200"), key="studies"),
        power,
        "Simulated studies: as many pairs as the formula of claim `seeds` asks for, and a two-sided 5 % paired t-test "
        "of each. Where the spread is that of 20 earlier pairs, pairs are the median. Skewed: exponential "
        "differences, with a rare great one.",
    ),
}
