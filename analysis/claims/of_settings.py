"""Claims on settings of CPR, which its paper leaves open or does not vary."""

from analysis.claims.captions import BESIDE, LEFT, MEANS, PAIRED, TRACKED
from analysis.claims.claim import FOLDER, Claim
from analysis.claims.figures import sweep
from analysis.claims.hour import draw_hours, hour
from analysis.claims.measures import LOSS, LOST, LOST_TRACKED, OVERHEAD, PLS
from analysis.claims.placement import placement
from analysis.claims.settings import Less, Trend, settings

SETTINGS: dict[str, Claim] = {
    "share": Claim(
        "How much of a table one priority save writes",
        "this project; CPR uses an eighth",
        FOLDER / "share.yaml",
        settings("strategy.r", "r", []),
        "A save is due every r intervals, so an interval writes about the same whatever r is.",
        sweep("strategy.r", "r, fraction of a table that a save writes", scale="log"),
        f"{MEANS}: five failures of one of 8 ranks in 56 h, the same at each r; the interval is that of an MTBF of 28 "
        "h. Saves come 1/r times as often, and each writes the dense network and the row ids too, so a small r costs "
        f"a little more; the left axis does not begin at 0. {BESIDE} Dashed: the mean of `cpr_vanilla`, which saves "
        f"all rows and has no r, over the same seeds. {LEFT} Right: {PAIRED}.",
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
        sweep("strategy.period", "period: inputs for each one that is sampled", (LOST_TRACKED, LOSS), scale="log"),
        f"{MEANS}: ten failures of one of 4 ranks in 56 h, the same at each period. Dashed: the mean of `cpr_mfu`, "
        f"which counts all inputs, over the same seeds. {TRACKED} The list is full: the more inputs are sampled, the "
        "more hot rows give way to rare ones. Tables are a tenth of the demo's, r is 0.05. The default period is 2. "
        f"Axes do not begin at 0. Right: {PAIRED}; AUC does not tell the periods apart.",
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
        f"{MEANS}: ten failures of one of 4 ranks in 56 h, the same for both. {TRACKED} Dots beside a point are the "
        f"runs. The period is 2, tables are a tenth of the demo's, r is 0.05; axes do not begin at 0. Right: {PAIRED}.",
    ),
    "mtbf": Claim(
        "What a wrong MTBF costs",
        "this project; closed forms of docs/CPR.md [derived]",
        FOLDER / "mtbf.yaml",
        settings(
            "profile",
            "believed MTBF",
            [
                *(
                    Trend("full", +1, "rises [derived]", since="28 h", until=believed)
                    for believed in ("5.6 h", "14 h", "56 h", "140 h")
                ),
                *(
                    trend
                    for name in ("cpr_vanilla", "cpr_mfu")
                    for until in ("5.6 h", "14 h")
                    for trend in (
                        Trend(name, +1, "rises [derived]", since="28 h", until=until),
                        Trend(name, -1, "falls [derived]", PLS, since="28 h", until=until),
                    )
                ),
                *(
                    trend
                    for name in ("cpr_vanilla", "cpr_mfu")
                    for until in ("56 h", "140 h")
                    for trend in (
                        Trend(name, -1, "falls [derived]", since="28 h", until=until),
                        Trend(name, +1, "rises [derived]", PLS, since="28 h", until=until),
                    )
                ),
            ],
        ),
        "The interval is chosen by the believed MTBF; two failures strike in 56 h, so the true one is 28 h. Full "
        "recovery has its least overhead at the true MTBF in expectation, so either error costs: half a point at half "
        "or twice the true one [derived], which so few failures need not show. Partial recovery trades overhead for "
        "lost samples: too short an MTBF costs saves, too long a one lost samples, for which the target is 10 %. From "
        "an MTBF of 35 h on, its interval is longer than the job: `cpr_vanilla` then saves nothing, and `cpr_mfu` "
        "makes priority saves within the interval, which PLS does not count.",
        sweep("profile", "believed MTBF, h (true: 28 h)", (OVERHEAD, PLS), scale="log"),
        f"{MEANS}: two failures of one of 8 ranks in 56 h, the same at each MTBF. {BESIDE} {LEFT} Right: portion of "
        "lost samples, of which `full` has none; CPR's target is 10 %. At the true MTBF `full` is best in expectation, "
        "not in these ten traces. From 35 h on CPR's interval is longer than the job, so PLS rises no more.",
    ),
    "hour": Claim(
        "A late failure costs more AUC than an early one: training heals",
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
        f"means and 95 % intervals over them. {PAIRED}. Left: the loss at the end of 56 h by the hour of the failure. "
        "Strategies at one hour stand side by side. Right: the loss every 2 h after the failure, on the whole test "
        "set; bands are the intervals, a colour is an hour here, `cpr_vanilla` is dashed. `never_save` loses all "
        "updates of the dead ranks, so more the later, `cpr_vanilla` those of the last 13 h. At hour 13 both "
        "strategies are the same run, since `cpr_vanilla` has saved nothing yet. After a failure at hour 55 there is "
        "one evaluation, so no line.",
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
        "A point is the mean over 20 seeds (0 to 19), bars are 95 % intervals; each seed draws the one of 8 ranks "
        f"that dies at hour 27 of 56, the same for both placements. {BESIDE} Left: share of all updates that no save "
        "held when the rank died. `row`: each rank has an eighth of each table, but not of its accesses; `table`: a "
        "table is on one rank. A dot is a run; runs that lose about the same, such as those of one rank, stand beside "
        f"each other. Right: {PAIRED} and the same placement.",
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
        sweep("trainer.optimizer", "optimizer of the tables", (LOSS, LOSS), without=((), ("never_save",))),
        f"{MEANS}: ten failures of one of 4 ranks in 56 h, the same for each optimizer, and so are the lost samples. "
        f"{BESIDE} Left: all strategies. Right: without the control `never_save`. {PAIRED}, with the same optimizer; "
        "the default is `sgd`.",
    ),
    "taper": Claim(
        "Priority saves lose fewer updates, also where rare rows matter as much as hot ones",
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
        f"{MEANS}: ten failures of one of 4 ranks in 56 h, the same for both logs; a save holds 1/8 of each tracked "
        "table. In `demo/flat` a rare row has as much effect on the label as a hot one, in `demo/data` less; rows are "
        f"equally popular in both, so the lost updates are the same. {BESIDE} {TRACKED} Right: {PAIRED}, on the same "
        "log.",
    ),
}
