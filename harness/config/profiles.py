"""Constants of emulated clusters, in hours; the source of each number is noted beside it."""

import math
from typing import Annotated, Any

from pydantic import BaseModel, Field

from harness.config.bases import Named
from harness.config.words import STRICT
from harness.core.plans import IoBound, LoadPrice

MAX_PS = 1_000
"""Maximum number of PS ranks: with engine `rpc` each is a process that answers the trainer in every step."""

_MINUTE = 1 / 60


class Profile(BaseModel):
    """An emulated cluster and job. A sample's emulated time is `sample / total_samples * job_h`."""

    model_config = STRICT

    name: str
    job_h: Annotated[float, Field(gt=0)]
    """T_total: failure-free job time, hours."""
    mtbf_h: Annotated[float, Field(gt=0)]
    """T_fail: mean time between failures of the job, hours."""
    o_save_h: Annotated[float, Field(ge=0)]
    """O_save: one full save, hours. A save of b bytes costs O_save * b / bytes_full + `o_save_fixed_h`."""
    o_load_h: Annotated[float, Field(ge=0)]
    """O_load: one load of the whole model, hours; charged once per failure, as `load` says."""
    o_res_h: Annotated[float, Field(ge=0)]
    """O_res: rescheduling after a failure, hours."""
    num_ps: Annotated[int, Field(ge=1, le=MAX_PS)]
    """N: number of PS ranks; cluster.num_ps overrides it."""
    ranks_per_failure: Annotated[float, Field(ge=1)] = 1.0
    """k: mean number of PS ranks lost per failure."""
    pls_target: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Portion of lost samples that CPR accepts; strategy.pls_target overrides it."""
    load: LoadPrice = "whole"
    """Cost of the load after a failure. `whole`: O_load, whatever is read (reconstructed: docs/CPR.md). `by_bytes`:
        O_load * (bytes read) / bytes_full: a rollback reads everything, partial recovery the rows of the dead shards,
        and a reset to initial values nothing."""
    io_bound: IoBound = "storage"
    """What bounds a save, and a load by bytes. `storage`: the bytes of all ranks, which share the storage. `link`:
        those of the rank that moves most, over its own link. `both`: whatever takes longer. A full save of even shards
        costs O_save with each."""
    storage_links: Annotated[float, Field(gt=0)] | None = None
    """Bandwidth of the storage, in links of one rank, for `io_bound: both`."""
    o_save_fixed_h: Annotated[float, Field(ge=0)] = 0.0
    """Hours that every save costs besides those of its bytes."""
    spare_o_res_h: Annotated[float, Field(ge=0)] | None = None
    """Rescheduling hours of a failure that a spare takes over; null: O_res."""
    shrink_o_res_h: Annotated[float, Field(ge=0)] | None = None
    """Hours to form a group of fewer nodes, or of more when one returns, with `cluster.on_loss=shrink`; null: O_res.
        That steps take longer on fewer nodes is not priced."""
    detect_h: Annotated[float, Field(ge=0)] = 0.0
    """Hours until a rank that hangs (`fault` of a trace) is given up; rescheduling begins then."""
    detect_death_h: Annotated[float, Field(ge=0)] = 0.0
    """Hours until the death of a process is noticed; rescheduling begins then. Of a failure in which a rank hangs too,
        the longer of both counts."""
    trainer_load: bool = False
    """Whether the death of trainers, while one lives, is charged a load besides rescheduling (reconstructed:
        docs/CPR.md): they read no checkpoint."""
    step_frac: dict[str, float] | None = None
    """What every step pays for fault tolerance, as fractions of a step's time: by tracker (`mfu`, `ssu`, …), and for
        `replica` and `mirror`. With a part that is not named, the strategy's overhead is unknown. null: not priced."""
    tier_frac: dict[str, float] | None = None
    """Time of a save's bytes and of a load in the tiers `disk` and `memory` (strategy `tiers`), as fractions of that on
        the shared disk. null: unknown, so that only the shared disk is used."""
    network_gbps: Annotated[float, Field(gt=0)] | None = None
    """Bandwidth of a node's link, Gbit/s, at which a save takes O_save to be written; used with `snapshot_gbps`."""
    snapshot_gbps: Annotated[float, Field(gt=0)] | None = None
    """Bandwidth of a copy within a node's memory, Gbit/s. With `save.mode=async` a save then costs the copy alone,
        network_gbps / snapshot_gbps of the hours of its bytes, and what the next save waits for the write. null: an
        `async` save is charged as one that is waited for."""
    num_trainers: Annotated[int, Field(ge=1)] | None = None
    """Trainer nodes of the emulated cluster, for overhead in node-hours; null: unknown."""
    from_trace: bool = False
    """Whether `mtbf_h` and `ranks_per_failure` are those of the trace, measured in hours of the job. The config of a
        run directory has the values, and `false` here."""


# docs/CPR.md: 56 h, 2 failures, N = 8 [recalled from CPR section 5]; O_save 5.6 min and O_load + O_res 5.5 min [derived
# from the published overheads]. Only the sum of the last two is known; its split is ours.
_CPR56 = Profile(
    name="cpr56",
    job_h=56,
    mtbf_h=28,
    o_save_h=5.6 * _MINUTE,
    o_load_h=2.5 * _MINUTE,
    o_res_h=3 * _MINUTE,
    num_ps=8,
)

# 50 h, 18 PS ranks, 5 failures of 4 ranks each [read, CPR poster]; costs as cpr56 [derived].
_POSTER50 = _CPR56.model_copy(
    update={"name": "poster50", "job_h": 50.0, "mtbf_h": 10.0, "num_ps": 18, "ranks_per_failure": 4}
)

# Sources and doubts: docs/CPR.md, "Prices".
_PRICES = {
    "load": "by_bytes",  # assumed: a load is bound by what is read, as a save by what is written
    "o_save_fixed_h": 0.1 * _MINUTE,  # assumed: a barrier, opening and syncing files, the manifest; 2 % of O_save
    "spare_o_res_h": 40 / 3600,  # recovery with a hot-swapped spare takes less than 40 s [read, DeadPool]: a bound
    "network_gbps": 25.0,  # 25 Gbit Ethernet in CPR's production-scale test [read]
    "snapshot_gbps": 80.0,  # assumed: 10 GB/s, one copy from memory to memory of a server
}

# What this package costs at Criteo Kaggle's size, eight PS ranks (docs/CPR.md, "Prices").
_MEASURED = {
    "o_save_h": 0.97 * _CPR56.o_save_h,  # derived: with the fixed part a full save costs O_save, as published
    "o_save_fixed_h": 0.03 * _CPR56.o_save_h,  # measured: 2.2 to 5.6 % of a full save of 2.2 GB
    "detect_death_h": 0.029 / 3600,  # measured: a process on the same machine
    "step_frac": {  # measured, summed over eight ranks
        "mfu": 0.014,
        "ssu": 0.015,
        "mass": 0.012,
        "oldest": 0.016,
        "random": 0.014,
        "scar": 0.009,
        "changed": 0.012,
        "replica": 0.064,
        "mirror": 0.064,
        "parity": 0.084,
    },
}

PROFILES: dict[str, Profile] = {
    "cpr56": _CPR56,
    "poster50": _POSTER50,
    # 8 trainers in CPR's emulation [recalled].
    "cpr56_priced": _CPR56.model_copy(update={"name": "cpr56_priced", "num_trainers": 8, **_PRICES}),
    # 20 trainers in CPR's production-scale test [read].
    "poster50_priced": _POSTER50.model_copy(update={"name": "poster50_priced", "num_trainers": 20, **_PRICES}),
    "cpr56_measured": _CPR56.model_copy(update={"name": "cpr56_measured", **_MEASURED}),
    "poster50_measured": _POSTER50.model_copy(update={"name": "poster50_measured", **_MEASURED}),
    # Made up so that strategies differ in a short run: 10 failures, an interval of 0.08 of the job. Costs as cpr56.
    "busy": _CPR56.model_copy(update={"name": "busy", "mtbf_h": 5.6, "num_ps": 4}),
    # MTBF and ranks per failure of the trace; all other constants as cpr56.
    "from_trace": _CPR56.model_copy(update={"name": "from_trace", "from_trace": True}),
}


def _merged(base: str, changed: dict[str, Any]) -> dict[str, Any]:
    """All constants of a profile. Raises ValueError for some that exclude or need others."""
    merged = {**PROFILES[base].model_dump(), "name": f"{base}*", **changed}
    both = sorted(changed.keys() & {"mtbf_h", "ranks_per_failure"})
    # A mapping of all constants is a config read back.
    if merged["from_trace"] and both and changed.keys() < Profile.model_fields.keys():
        raise ValueError(f"from_trace: sets {both[0]} by the trace, and profile.{both[0]} is given too; keep one")
    if merged["snapshot_gbps"] is not None and merged["network_gbps"] is None:
        raise ValueError(
            "snapshot_gbps: expected profile.network_gbps too, got null; a snapshot is priced by their ratio"
        )
    bound, links = merged["io_bound"], merged["storage_links"]
    if (bound == "both") != (links is not None):
        wanted, got = ("a number", "null") if links is None else ("null", links)
        raise ValueError(f"storage_links: expected {wanted} with profile.io_bound={bound}, got {got}")
    given = {key: merged[key] if isinstance(merged[key], dict) else {} for key in ("step_frac", "tier_frac")}
    if unknown := [tier for tier in given["tier_frac"] if tier not in ("disk", "memory")]:
        raise ValueError(f"tier_frac: expected prices of disk and memory, got one of {unknown[0]}")
    for key, of in (("step_frac", "a step's time"), ("tier_frac", "the time on shared disk")):
        for part, frac in given[key].items():
            if not isinstance(frac, int | float) or not 0 <= frac < math.inf:
                raise ValueError(f"{key}: {part}: expected a fraction of {of} >= 0, got {frac!r}")
    return merged


NAMED_PROFILE = Named(PROFILES, _merged)
