"""What strategies decide, as data. A plan prints in one line and says nothing about how it is carried out."""

from dataclasses import dataclass
from typing import Literal

Rank = str  # "ps3"

CHIEF: Rank = "trainer0"
"""The trainer rank that runs the step loop and executes plans."""


def ps_rank(index: int) -> Rank:
    """Name of PS rank number ``index``."""
    return f"ps{index}"


def ps_index(rank: Rank) -> int:
    """Number of the PS rank named ``rank``."""
    return int(rank.removeprefix("ps"))


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a strategy may know when it chooses its interval: a profile, resolved for one run. Hours, and samples.

    Symbols as in CPR section 4 (docs/CPR.md): T_total, T_fail, O_save, O_load, O_res, N, k, S.
    """

    job_h: float
    mtbf_h: float
    o_save_h: float
    o_load_h: float
    o_res_h: float
    num_ps: int
    ranks_per_failure: float
    pls_target: float
    total_samples: int


@dataclass(frozen=True, kw_only=True)
class Interval:
    """How often to save.

    ``samples`` is the interval, None for never. ``divisor`` is into how many priority saves it is cut (1/r, 1 for
    strategies that write everything at once). ``fallback`` says that a cpr_* strategy chose full recovery.
    ``overridden`` says that the user set it.
    """

    samples: int | None
    divisor: float = 1.0
    fallback: bool = False
    overridden: bool = False


@dataclass(frozen=True, kw_only=True)
class PlannedKill:
    """Ranks that are killed together at the boundary after ``step`` steps, as a failure trace demands.

    ``ranks`` are ordered by number. ``hours[i]`` and ``lines[i]`` are those of the first trace entry that kills
    ``ranks[i]``. ``repair_h`` is the longest repair time of the entries, in hours; None if no entry has one.
    """

    step: int
    ranks: tuple[Rank, ...]
    hours: tuple[float, ...]
    lines: tuple[int, ...]
    repair_h: float | None = None


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run stands, at the boundary after ``step`` steps."""

    step: int
    samples: int
    previous_samples: int  # at the boundary before this one
    total_samples: int
    saved_step: int | None = None  # of the newest save; for a recovery plan, of the newest checkpoint
    saved_samples: int | None = None


@dataclass(frozen=True, kw_only=True)
class SavePlan:
    """Save now.

    ``kind``: what is written, a key of ``harness.store.kinds.SAVE_KINDS``: ``full`` every row, ``priority`` the
    tracker's choice of the tracked tables and the other tables whole. ``closes_interval``: this save ends a whole
    interval, and PLS counts from it (R).
    """

    kind: str
    closes_interval: bool = True


@dataclass(frozen=True, kw_only=True)
class RecoveryPlan:
    """What to do about dead ranks.

    ``rollback``: every rank and the trainer go back to the newest checkpoint, lost steps are run again.
    Otherwise only ``ranks`` are restored: from the newest saved version of each row (``checkpoint``), or to their
    initial values (``initial``).
    """

    rollback: bool
    ranks: frozenset[Rank]
    source: Literal["checkpoint", "initial"] = "checkpoint"
