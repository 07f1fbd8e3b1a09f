"""Claims of CPR's paper and poster."""

from pathlib import Path

from analysis.claims.captions import BESIDE, LEFT, MEANS, PAIRED, RUNS
from analysis.claims.claim import BENCHMARKS, FOLDER, Benchmark, Claim
from analysis.claims.costs import production, trackers
from analysis.claims.emulation import overhead, poster, quality, resolution
from analysis.claims.figures import scatter, sweep
from analysis.claims.measured_figures import draw_production, draw_trackers
from analysis.claims.measures import LOSS, OVERHEAD, PLS, SAVES
from analysis.claims.settings import REMOVED, Less, Trend, settings
from analysis.claims.slopes import slopes

CPR: dict[str, Claim] = {
    "overhead": Claim(
        "CPR cuts the overhead of failures from over 8 % of a job to under 1 %",
        "CPR, abstract and section 6; its poster",
        FOLDER / "emulation.yaml",
        overhead,
        "The hours of a save, a load and rescheduling are not in the paper. Those of `cpr56` were chosen so that the "
        "two levels of the emulation come out (docs/CPR.md), so agreement there confirms nothing. `poster50` has the "
        "same costs and another job: it is a test. Its failures take k = 4 ranks. The closed form for the portion of "
        "lost samples asks for an interval divided by k; the published level is within reach only without.",
    ),
    "quality": Claim(
        "CPR keeps model quality on par with full recovery",
        "CPR, abstract",
        FOLDER / "emulation.yaml",
        quality,
        "Full recovery loses no sample and equals the run without failures to the bit. So `on par` is a test of "
        "non-inferiority against that run: one-sided, 95 %, Holm's method over the strategies, at a margin of half of "
        "0.001 AUC, which was stated before these runs (docs/STATISTICS.md). What rounding alone does to AUC is in "
        "claim `seeds`.",
    ),
    "resolution": Claim(
        "These runs can tell a loss where there is one",
        "this project",
        FOLDER / "emulation.yaml",
        resolution,
        "`never_save` resets a lost shard to its initial values. If that were not seen, nothing finer would be.",
    ),
    "pls": Claim(
        "AUC loss grows with the portion of lost samples; priority saves lower its slope",
        "CPR, section 4",
        FOLDER / "pls.yaml",
        slopes,
        "Slopes are through the origin, one for each seed over 1 to 40 failures; the interval is over the 10 slopes, "
        "and n counts runs. `reproduced` says that the slope is above 0. Priority saves do not count for PLS "
        "(docs/CPR.md), so strategies of equal intervals have equal PLS. The line of the figure is one fit over all "
        "points of a strategy. CPR says that the loss is linear in PLS; these runs are too noisy to tell.",
        scatter,
        f"A point is a run; {RUNS}, under 1, 5, 10, 20 and 40 failures of one of 8 ranks in 56 h. {PAIRED}. Lines are "
        "least squares through the origin, over all points of a strategy; the table has intervals of slopes. Left: "
        "all strategies. Right: without the control `never_save`. Runs of one seed and number of failures have about "
        "the same PLS under all strategies that save, so points of a strategy are moved by at most 1.5 % of the "
        "greatest PLS.",
    ),
    "failures": Claim(
        "The more failures, the more overhead CPR saves on full recovery, and the smaller a part of it",
        "CPR, section 6 (its shape), for 1 to 40 failures; this project",
        FOLDER / "failures.yaml",
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
        sweep("profile", "failures of one of 8 ranks in 56 h", scale="log"),
        f"{MEANS}. Each number of failures has its own MTBF, so its own interval between saves. {BESIDE} {LEFT} Right: "
        f"{PAIRED}; `full` equals it.",
    ),
    "target": Claim(
        "CPR's benefit shrinks a little as the target of lost samples is tightened",
        "CPR, section 6",
        FOLDER / "target.yaml",
        settings(
            "strategy.pls_target",
            "PLS target",
            [Trend(name, +1, "rises [recalled]", REMOVED) for name in ("cpr_vanilla", "cpr_mfu", "cpr_ssu")],
        ),
        "The target sets the interval between saves, if partial recovery pays at all. Two failures of one of 8 ranks in"
        " 56 h. Priority saves do not count for PLS (docs/CPR.md).",
        sweep("strategy.pls_target", "target of lost samples (PLS), fraction", scale="log"),
        f"{MEANS}: two failures of one of 8 ranks in 56 h, the same at each target. {BESIDE} Dashed: the mean of "
        f"`full`, which has no target, over the same seeds; CPR's benefit is the distance to it. {LEFT} Right: "
        f"{PAIRED}; `full` equals it.",
    ),
    "fraction": Claim(
        "CPR's benefit shrinks a little as a failure takes more of the ranks",
        "CPR, section 6 (12.5, 25 and 50 %)",
        FOLDER / "fraction.yaml",
        settings("profile", "ranks", [Trend("cpr_mfu", -1, "–", REMOVED)]),
        "A failure of more ranks loses more samples, so the same target asks for a shorter interval.",
        sweep("profile", "ranks of 8 that a failure takes", scale="log"),
        f"{MEANS}: two failures in 56 h, each of 1, 2 or 4 of 8 ranks at once, at the same hours; the more it takes, "
        f"the more often CPR saves. {BESIDE} {LEFT} Right: {PAIRED}; `full` equals it.",
    ),
    "nodes": Claim(
        "With more ranks full recovery gets worse; partial recovery loses no more samples",
        "CPR, section 6",
        FOLDER / "nodes.yaml",
        settings(
            "profile",
            "",
            [
                Trend("full", +1, "rises [recalled]"),
                Trend("cpr_vanilla", 0, "flat [recalled]", SAVES),
                Trend("cpr_vanilla", +1, "–"),
            ],
        ),
        "Engine `local` has any number of ranks in one process. Saves of partial recovery stay as rare, since N · MTBF "
        "is constant; loads and rescheduling are charged for each failure, whatever its size, and so they rise with N "
        "here.",
        sweep("profile", "PS ranks", (OVERHEAD, PLS), scale="log"),
        f"{MEANS}: Poisson failures of one rank in 56 h, with an MTBF of 56 h at 4 ranks, which falls as 1 / ranks. "
        f"{BESIDE} {LEFT} Right: lost samples, of which `full` has none; with so few failures at 4 ranks that "
        "Student's interval reaches below 0.",
    ),
    "poster": Claim(
        "CPR's job at scale, and a smaller one of processes that are killed",
        "CPR, section 6; its poster",
        Path("experiments") / "poster.yaml",
        poster,
        "20 trainers and 18 PS ranks in 50 h, five failures of four PS ranks, on `local`: the number of trainers "
        "changes no bit (docs/TRAINERS.md). The interval between saves is divided by k = 4; claim `overhead` has it "
        "without. 4 trainers and 6 PS ranks on `rpc` are processes, and four of the six PS ranks get SIGKILL at each "
        "failure: two seeds, five strategies, for the last row alone.",
    ),
    "trackers": Claim(
        "Trackers: counters of accesses take little memory, sampled lists a sixth of that, copies of rows all",
        "CPR, section 4",
        Benchmark(
            BENCHMARKS / "trackers.py",
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
        "`mfu`, `ssu`, `mass` and `scar` are the trackers of the strategies `cpr_mfu` and so on, `changed` is that of "
        "`differential`. Left: bytes of a tracker over those of the tables that CPR tracks, by arithmetic, at an "
        "embedding dim of 16, 32, 64 and 128; both axes are logarithmic. Those of `mfu`, `mass` and `changed` are "
        "equal, and stand side by side. Right: what recording accesses adds to a step, without the choice of rows: a "
        "point is the median of 5 rounds of 96 steps, bars are the least and the greatest; one machine, batch 128, 8 "
        "ranks.",
    ),
    "production": Claim(
        "Simulated jobs that are fitted to CPR's production figures: 13 % on average, P90 over 30 %",
        "CPR, its poster",
        Benchmark(BENCHMARKS / "production.py"),
        production,
        "A check of consistency: neither the jobs nor their costs are published. MTBF is uniform in 14 to 30 h [2nd]. "
        "Costs are those of `cpr56` times a scale and a lognormal factor of spread sigma; the scale is chosen so that "
        "the mean is 13 %, and sigma is the one with the greatest P90. The rows are of other draws of the jobs. That "
        "the mean comes out there confirms nothing, nor would a P90 over 30 %; a P90 that is not shown to be over 30 % "
        "there says that no such population was found. What CPR would cost the same jobs is a prediction, under the "
        "assumption that one failure takes one of 8 ranks. A lognormal overhead alone has a P90 of at most 2.27 times "
        "its mean, and 30 / 13 is 2.31: so the two published figures together ask for a very wide spread over jobs.",
        draw_production,
        "Simulated jobs, without training; 14 and 56 h are median lengths. The hours of a save, a load and "
        "rescheduling of a job are those of `cpr56`, times one scale for all jobs, times lognormal factors of median "
        "1 and spread sigma. Right: for each sigma the scale is found at which the mean overhead of `full` is 13 %, "
        "and a point is its P90 in 1,000 jobs; the greatest point chooses sigma (ringed), so it is too high by "
        "chance. Left: a line is the distribution of overhead over 10,000 other jobs, at the scale and sigma so "
        "found; failures of a job are the same for all strategies. A job of CPR that is over before a save is due and "
        "meets no failure has no overhead. The axis of overhead is linear up to 1 %, then logarithmic, and ends at "
        "200 %. Cross and dotted line: CPR's poster, over 30 %.",
    ),
}
