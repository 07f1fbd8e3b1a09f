"""Claims of CPR's paper and poster, and of its settings."""

from analysis.claims.claim import BENCHMARKS, FOLDER, Benchmark, Claim
from analysis.claims.costs import production, trackers
from analysis.claims.emulation import overhead, quality, resolution
from analysis.claims.figures import scatter, sweep
from analysis.claims.hour import draw_hours, hour
from analysis.claims.measured_figures import (
    draw_production,
    draw_trackers,
)
from analysis.claims.measures import LOSS, LOST, LOST_TRACKED, OVERHEAD, PLS, SAVES
from analysis.claims.placement import placement
from analysis.claims.settings import REMOVED, Less, Trend, settings
from analysis.claims.slopes import slopes

_RUNS = "10 seeds (0 to 9), each with a failure trace of its own"
_MEANS = f"A point is the mean over {_RUNS}; bars are 95 % intervals of it (Student's t)"
_PAIRED = "AUC loss is paired with `none`, the run of the same seed without failures"
_CAPTION = f"{_MEANS}. Left: overhead of the emulated job. Right: {_PAIRED}."
_TRACKED = "Left: updates of tracked tables that no save held when their rank died."

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
        "AUC loss is linear in the portion of lost samples; priority saves lower its slope",
        "CPR, section 4",
        FOLDER / "pls.yaml",
        slopes,
        "Slopes are through the origin, one for each seed over 1 to 40 failures; the interval is over the 10 slopes, "
        "and n counts runs. `reproduced` says that the slope is above 0. Priority saves do not count for PLS "
        "(docs/CPR.md), so strategies of equal intervals have equal PLS. The line of the figure is one fit over all "
        "points of a strategy.",
        scatter,
        f"A point is a run; {_RUNS}, under 1, 5, 10, 20 and 40 failures of one of 8 ranks in 56 h. {_PAIRED}. Lines "
        "are least squares through the origin, over all points of a strategy. Right: the same points without the "
        "control `never_save`.",
    ),
    "failures": Claim(
        "The more failures, the more hours CPR saves on full recovery; the part that it saves falls",
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
        sweep("profile", "failures of one of 8 ranks in 56 h"),
        f"{_MEANS}. Each number of failures has its own MTBF, so its own interval between saves. Left: overhead of the "
        f"emulated job. Right: {_PAIRED}; `full` equals it.",
    ),
    "target": Claim(
        "CPR's benefit shrinks as the target of lost samples is tightened",
        "CPR, section 6",
        FOLDER / "target.yaml",
        settings(
            "strategy.pls_target",
            "PLS target",
            [Trend(name, +1, "rises [recalled]", REMOVED) for name in ("cpr_vanilla", "cpr_mfu", "cpr_ssu")],
        ),
        "The target sets the interval between saves, if partial recovery pays at all. Two failures of one of 8 ranks in"
        " 56 h. Priority saves do not count for PLS (docs/CPR.md).",
        sweep("strategy.pls_target", "PLS target"),
        _CAPTION,
    ),
    "fraction": Claim(
        "CPR's benefit with the part of the ranks that a failure takes",
        "CPR, section 6 (12.5, 25 and 50 %)",
        FOLDER / "fraction.yaml",
        settings("profile", "ranks", [Trend("cpr_mfu", -1, "–", REMOVED)]),
        "A failure of more ranks loses more samples, so the same target asks for a shorter interval.",
        sweep("profile", "ranks that a failure takes"),
        _CAPTION,
    ),
    "nodes": Claim(
        "With more ranks full recovery gets worse and the saves of partial recovery do not",
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
        sweep("profile", "PS ranks", (OVERHEAD, PLS)),
        f"{_MEANS}; failures are Poisson, with the MTBF of so many ranks. Left: overhead of the emulated job. Right: "
        "lost samples.",
    ),
    "share": Claim(
        "How much of a table one priority save writes",
        "this project; CPR uses an eighth",
        FOLDER / "share.yaml",
        settings("strategy.r", "r", []),
        "A save is due every r intervals, so an interval writes about the same whatever r is.",
        sweep("strategy.r", "r, fraction of a tracked table that a save writes"),
        _CAPTION,
    ),
    "ssu": Claim(
        "How sparse the sub-sample of CPR-SSU may be",
        "CPR, section 4: SSU approximates MFU by sub-sampling inputs [read]; the period is not known",
        FOLDER / "ssu.yaml",
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
        FOLDER / "eviction.yaml",
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
    "mtbf": Claim(
        "What a wrong MTBF costs",
        "this project; closed forms of docs/CPR.md [derived]",
        FOLDER / "mtbf.yaml",
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
        "recovery has its least overhead at the true MTBF in expectation, so either error costs. Partial recovery "
        "trades overhead for lost samples: too short an MTBF costs saves, too long a one lost samples, for which the "
        "target is 10 %. From an MTBF of 35 h on, its interval is longer than the job: `cpr_vanilla` then saves "
        "nothing, and `cpr_mfu` makes priority saves within the interval, which PLS does not count.",
        sweep("profile", "believed MTBF (true: 28 h)", (OVERHEAD, PLS)),
        f"{_MEANS} (two failures of one of 8 ranks in 56 h), the same trace at each MTBF. Left: overhead of the "
        "emulated job. Right: portion of lost samples; CPR's target is 10 %.",
    ),
    "hour": Claim(
        "A late failure costs more AUC than an early one, since training heals",
        "this project",
        FOLDER / "hour.yaml",
        hour,
        "One failure takes 4 of 8 ranks at the hour of the job (of 56) after `at:`. `never_save` resets half of all "
        "rows to their initial values. `cpr_vanilla` saves every 14 h here, so these rows lose the last 13 h whatever "
        "the hour; at hour 13 it has made no save yet, and the two strategies are the same run. A loss is that of the "
        "same seed's run without the failure. Half of it is gone where the mean over seeds falls to half of what it "
        "was at the first point of the curve after the failure. That later failures cost more was stated after a look "
        "at seeds 0 to 9; these are others.",
        draw_hours,
        "10 seeds (10 to 19), of which each draws the 4 of 8 ranks that the failure takes, the same at each hour; "
        f"means and 95 % intervals over them. {_PAIRED}. Left: the loss at the end of 56 h by the hour of the failure "
        "(`at:H`). Right: the loss every 2 h after the failure, on the whole test set; bands are the intervals.",
    ),
    "placement": Claim(
        "Whole tables on a rank: failures differ in what they lose",
        "this project",
        FOLDER / "placement.yaml",
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
        FOLDER / "optimizer.yaml",
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
        f"optimizer changes. Right: {_PAIRED}, with the same optimizer.",
    ),
    "taper": Claim(
        "Priority saves pay, also where rare rows matter as much as hot ones",
        "this project",
        FOLDER / "taper.yaml",
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
        f"{_MEANS} (ten failures of one of 4 ranks), the same for both logs. {_TRACKED} Right: {_PAIRED}, on the same "
        "log.",
    ),
    "trackers": Claim(
        "Counters of accesses cost little memory, sampled lists a sixth of that, copies of the rows all of it",
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
        "Left: bytes of a tracker over those of the tables that CPR tracks, by arithmetic. Right: what recording "
        "accesses adds to a step, without the choice of rows: median of 5 rounds of 96 steps, bars are the least and "
        "the greatest; one machine, batch 128, 8 ranks.",
    ),
    "production": Claim(
        "In production failures cost 13 % of a job on average and over 30 % of one job in ten",
        "CPR, its poster",
        Benchmark(BENCHMARKS / "production.py"),
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
}
