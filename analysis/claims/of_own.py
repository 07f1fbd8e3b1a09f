"""Claims past the papers: the project's own strategy, all strategies beside each other, and what statements take."""

from analysis.claims.captions import MEANS, PAIRED, RUNS
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
        sweep("strategy.share", "share of the tracked tables that is mirrored", (LOST, MEMORY), scale="log"),
        f"{MEANS}: ten failures of one of 8 ranks in 56 h, the same at each share. Dashed: the mean of `cpr_mfu`, "
        "which has no mirror, over the same seeds. Left: the share of all updates that was lost. Right: memory of the "
        "tracker or the mirror, in the process that needs most; it is the same in each run.",
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
        f"A point is a strategy: the mean over {RUNS}, ten failures of one of 8 ranks in 56 h; bars are 95 % "
        f"intervals. Left: AUC loss against emulated hours of overhead, without the control `never_save`; {PAIRED}. "
        "Right: the share of all updates that was lost against bytes written after the start. A hollow mark: another "
        "strategy dominates it in the two measures of the panel, by paired intervals. The broad line is the Pareto "
        "front of the means, which is no test; a front of one strategy has none. Strategies of equal cost stand side "
        "by side, also at 0. Copies of `buddy` on the wire are not bytes written, and one rank at a time dies here "
        "(claim `breaks` has others). Hours are logarithmic; bytes are linear up to 10 MB, lost updates up to 0.1 %, "
        "and then logarithmic.",
    ),
    "tracker_part": Claim(
        "At equal bytes: what saving parts costs, and what the choice of rows by a tracker wins back",
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
        f"{MEANS}: Poisson failures of one of 4 ranks, one in 5.6 h on average, for 56 h. All strategies write about "
        "the same bytes: `cpr_vanilla` all rows at a time, the others a part, `cpr_random` of random rows. So from "
        "`cpr_vanilla` to `cpr_random` is what saving parts costs, and from there to the others what their trackers "
        "win back; the table above has both. Tables are a tenth of the demo's, a save holds 0.05 of each tracked one. "
        f"Left: the share of the updates of tracked tables that was lost. Right: {PAIRED}. AUC loss tells no tracker "
        "from another.",
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
        "A point is the mean over 10 seeds (0 to 9); bars are 95 % intervals, cut at 0. Hours and ranks of five "
        "failures in 56 h are drawn for each seed; the hours are the same in all regimes but `early`, where they are a "
        "tenth. `single`: a failure takes one of 8 ranks, as planned for; so it does in `early` and `with the "
        "trainer`. `four at once`: it takes four. `with the trainer`: the trainer's memory is lost too; only "
        "`cpr_mirror` restores rows from there, so the others would do as in `single` and were not run. Left: overhead "
        "of the emulated job. Right: the share of all updates that was lost. Both axes are linear up to 0.1 % and then "
        "logarithmic.",
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
        "A point is the mean over 5 seeds (0 to 4) under one trace, under `poisson` a trace each; where a trace has a "
        "number of ranks, each seed draws which die. Bars are 95 % intervals, cut at 0; a bar that is not seen is "
        "shorter than its mark. Jobs have 56 h, of `poster50` 50. `busy`: ten failures of one of 4 ranks, once of two "
        "neighbours. `poisson`: one of 4 ranks every 5.6 h on average. `two_in_56h`: two failures of one of 8 ranks; "
        "`preset-cpr56`: one in 28 h on average. `poster50`: five of 4 of 18 ranks. `llama3`: as Llama 3 on 16,384 "
        "GPUs, one in 3.1 h. `infinitehbd`: an LLM cluster of 400 servers, in bursts, one in 14 h. `lanl20`: system "
        "20 of LANL, one in 13 h, and the job waits for repairs. `spot_p3`: AWS spot instances, one in 2.8 h, in "
        "groups. `preset-X`: generated from published figures of X (docs/TRACES.md); `poster50` without it has five "
        "failures at hours drawn uniformly. Left: overhead of the emulated job. Right: the share of all updates that "
        "was lost. Both axes are linear up to 0.1 % and then logarithmic.",
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
        "about 7.85 · (s / d)². In brackets: the interval of s, cut at 0, or the numbers for its ends. Rounding is not "
        "added: it is part of "
        "what a pair of seed and trace differs by.",
        planning,
        "Left: a point is the AUC loss of `cpr_mfu` of one of 8 seeds (0 to 7) under one of 8 draws of two failures of "
        "one of 8 ranks in 56 h, paired with `none`, the run of the same seed without failures; dashes are means of a "
        "draw. Right: how many pairs of a new seed and a new trace an interval of this half-width takes, and a test "
        "that finds this difference with 80 % power, by the spread of the points on the left. Both axes are "
        "logarithmic.",
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
