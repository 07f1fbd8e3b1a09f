"""Claims on caches: BagPipe's lookahead and HET's bounded staleness."""

from analysis.claims.caches import accesses, cached_trainers, embedding_share, lookahead, staleness, wire
from analysis.claims.claim import BENCHMARKS, FOLDER, Benchmark, Claim
from analysis.claims.measured_figures import (
    draw_accesses,
    draw_cached_trainers,
    draw_lookahead,
    draw_staleness,
    draw_step,
    draw_wire,
)

CACHES: dict[str, Claim] = {
    "accesses": Claim(
        "BagPipe: a hundredth of the rows gets nine tenths of the accesses",
        "BagPipe, abstract",
        Benchmark(BENCHMARKS / "accesses.py", ("{data}", "demo/long")),
        accesses,
        "The generator of the synthetic logs was asked for one skew only: 72 % of the accesses of each of the seven "
        "largest tables on the top 1 % of its rows. That the share over all tables comes near BagPipe's follows from "
        "it and the small tables, and decides nothing, above 92 % or below: real logs do, by `benchmarks/accesses.py "
        "data/kaggle`. The share grows with the number of samples, so a few thousand samples of real data do not "
        "decide.",
        draw_accesses,
        "A point is the share of the accesses that the most accessed rows of a data set get. Both data sets are "
        "synthetic, `demo/data` of 250,000 samples, `demo/long` of 2,000,000; a sample accesses a row of each of 26 "
        "tables. All samples are counted, so there is no interval. Left: all tables taken as one; the cross is "
        "BagPipe's figure. Right: the seven largest tables taken as one, rows and accesses of these seven alone. The "
        "generator was asked for 72 % on 1 % of the rows of each of the seven, so agreement confirms nothing. Axes of "
        "rows are logarithmic.",
    ),
    "embedding_share": Claim(
        "BagPipe: embedding access takes most of a step; here, on one CPU, it takes less",
        "BagPipe, abstract",
        Benchmark(BENCHMARKS / "step.py", ("--rounds", "7", "--steps", "100", "--rows-scale", "0.1")),
        embedding_share,
        "Not BagPipe's setting: one CPU, batch 128, loopback, a tenth of the rows of Criteo Kaggle. BagPipe has GPUs, "
        "whose dense network is fast, and a network. Times are this machine's: median, least and greatest of rounds "
        "in which all variants take turns. In the harness the part is all that the dense network alone does not take, "
        "so reading and planning of batches and the cache's own work are in it; `requests alone` is the least that it "
        "can be. A negative part says that the machine was not quiet.",
        draw_step,
        "Batch 128, 2 threads, one machine, 7 rounds of 100 steps. `plain` is DLRM of 26 nn.EmbeddingBag in one "
        "process, `local` and `rpc` are the harness's engines, `rpc` with 2 PS ranks, `rpc_lookahead` also with the "
        "lookahead cache. Left: milliseconds of a step, medians of the rounds. The rest, whole step less dense "
        "network, is embedding access and synchronisation; reading of batches is in it, but for `plain`, where it is "
        "with the dense network. Right: the rest as a part of the step; a point is the median of the rounds, bars are "
        "the least and the greatest. The dense network is timed in a process of its own, so noise of this machine may "
        "make it take longer than a whole step: where bars reach below 0, the rest cannot be told. Dotted: BagPipe's "
        "figure.",
    ),
    "lookahead": Claim(
        "A cache that looks ahead moves only the bytes that it must",
        "BagPipe, section 3; the bound is this project's",
        Benchmark(
            BENCHMARKS / "cache.py",
            ("--steps", "2000", "--rows-scale", "0.1", "--lookahead", "10,25,50,100,200,400"),
        ),
        lookahead,
        "BagPipe looks 200 batches ahead by default [read]. Counts, not times: one run on `local` for each lookahead, "
        "batch 128, a tenth of the rows of Criteo Kaggle, log-uniform ids. The least possible is what any cache with "
        "the same lookahead must move (harness/client/oracle.py). The run is bit-equal to one without a cache.",
        draw_lookahead,
        "A point is one run of 2,000 steps of batch 128 with one seed, on 26 tables of 3.4 M rows in all; bytes and "
        "rows are counted, so there is no interval. Left (the axis does not begin at 0): the share of the bytes that "
        "a run without a cache moves, and of the rows that it fetches, which the cache saves. Dotted: the bytes that "
        "the best possible cache of the same lookahead would save. Right: the greatest number of rows that the cache "
        "held.",
    ),
    "cached_trainers": Claim(
        "BagPipe's cache at several trainers: fetches are divided among them, and nothing is fetched twice",
        "BagPipe, section 3; the numbers are this project's",
        Benchmark(
            BENCHMARKS / "step.py",
            ("--trainers", "2", "4", "--rounds", "5", "--steps", "100", "--rows-scale", "0.1"),
        ),
        cached_trainers,
        "BagPipe partitions its cache: a row is at one trainer, from which the others get it, and a changed row "
        "dies with that trainer [read; the last is derived]. Here fetches and write-backs are divided by PS rank "
        "among the trainers, and copies are replicated: each trainer holds all cached rows, so memory grows with "
        "their number, and the death of one loses nothing (docs/TRAINERS.md). Counts are of 1,000 steps of batch "
        "128, lookahead 200, 2 PS ranks; times are this machine's, whose two cores all processes share.",
        draw_cached_trainers,
        "Engine `rpc`, 2 PS ranks, batch 128, lookahead 200. One trainer has two threads, each of several has one. "
        "A point is the median of 5 rounds of 100 steps, bars are the least and the greatest. Left: a step without "
        "the cache and with it. Right: the step without the cache over the step with it, in the same round; above "
        "the dotted line the cache is faster.",
    ),
    "wire": Claim(
        "The lookahead cache makes steps faster, most of all where the wire is slow",
        "BagPipe, abstract",
        Benchmark(
            BENCHMARKS / "wire.py",
            ("--rate-mbit", "0,1000,200", "--ps", "2", "--rounds", "5", "--steps", "100", "--rows-scale", "0.1"),
        ),
        wire,
        "BagPipe's 5.6 is against other systems on GPU nodes, so it is no target here: the last row asks only whether "
        "there is a gain. Times are this machine's: median, least and greatest of rounds in which both variants take "
        "turns. All ranks share its cores, and both directions share the limited rate. Where a network namespace is "
        "not allowed, nothing is run.",
        draw_wire,
        "Engine `rpc`, 2 PS ranks, batch 128, lookahead 200, on loopback as it is and limited to a rate. A point is "
        "the median of 5 rounds of 100 steps, bars are the least and the greatest. Left: a step without the cache and "
        "with it. Right: the step without the cache over the step with it, in the same round; above the dotted line "
        "the cache is faster. The three settings of the wire are measured one after another.",
    ),
    "staleness": Claim(
        "Bounded staleness saves most of the embedding traffic, at a loss of AUC",
        "HET, abstract",
        FOLDER / "staleness.yaml",
        staleness,
        "HET's figure is for its own models on several nodes; whether it counts versions, and its AUC, are not known "
        "here. Workers are eight, and take turns (docs/ARCHITECTURE.md). `Versions counted` adds the bytes of asking "
        "for the versions of cached rows, which HET's workers must send and these need not. Staleness 0 is bit-equal "
        "to no cache, so AUC loss is against it, paired by seed. That loss is of a run of one epoch without failures.",
        draw_staleness,
        "2 M synthetic samples, 13,392 steps of batch 128, 8 workers; means over 5 seeds, no failure. Left: a point "
        "is a staleness s, the updates of a row that a copy may miss; bars are 95 % intervals of the AUC loss, paired "
        "by seed. Dotted: the bytes that HET saves. Right: bytes saved by s, without and with the bytes of asking for "
        "the versions of cached rows; the left panel is without them. Bytes are against a run without a cache.",
    ),
}
