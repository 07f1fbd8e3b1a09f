"""Writes the traces of this folder, every byte a function of the seed: ``python -m failure_traces.generate``."""

import argparse
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from harness.config.laws import LAWS, PUBLISHED
from harness.config.profiles import PROFILES
from harness.traces.draw import draw

SEED = 20210405
COMMAND = "python -m failure_traces.generate"


def _text(header: Mapping[str, str], columns: str, rows: Iterable[str]) -> str:
    provenance = [f"# {key}: {value}" for key, value in header.items()]
    return "\n".join([*provenance, columns, *rows]) + "\n"


def _made_up(title: str, source: str, columns: str, rows: Iterable[str], *, job_h: float = 56, seed: int | None) -> str:
    """A trace for a job of ``job_h`` hours. ``seed``: None if no byte depends on it."""
    drawn = {} if seed is None else {"seed": str(seed)}
    header = {"title": title, "source": source, "job_h": f"{job_h:g}", **drawn, "command": COMMAND}
    return _text(header, columns, rows)


def _rng(name: str, seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, *name.encode()]))


def _by_count(name: str, seed: int, *, num_failures: int, job_h: float, ranks: int, title: str, source: str) -> str:
    """Failures of ``ranks`` ranks at uniform hours; which ranks is drawn when the trace is used."""
    hours = np.sort(_rng(name, seed).uniform(0, job_h, num_failures))
    return _made_up(title, source, "hour,rank", [f"{hour:.4f},{ranks}" for hour in hours], job_h=job_h, seed=seed)


def ten_in_56h(seed: int = SEED) -> str:
    """Ten failures of one rank, five hours apart from hour 6 on; which rank is drawn when the trace is used."""
    title = "ten single-rank failures in 56 h, five hours apart"
    source = "made up: each comes well after the last, and none before the model has learned or after the job"
    return _made_up(title, source, "hour,rank", [f"{hour},1" for hour in range(6, 52, 5)], seed=seed)


# Hour and remark of each event. All but the repeat and the last are moved by up to BUSY_JITTER_H.
BUSY = (
    (2.5, "before the first CPR save of profile busy"),
    (8.5, ""),
    (14.5, ""),
    (20.0, ""),
    (23.2, ""),
    (24.6, "the same rank again before its next CPR save"),
    (31.0, ""),
    (37.5, "two at once"),
    (45.0, ""),
    (52.0, "late"),
)
BUSY_JITTER_H = 0.6
BUSY_NUM_PS = 4


def busy(seed: int = SEED) -> str:
    """Ten events over 56 h on ps0 … ps3: eight and more of one rank, one of two, one rank twice within an interval."""
    rng = _rng("busy", seed)
    deck = iter(np.concatenate([rng.permutation(BUSY_NUM_PS) for _ in range(3)]).tolist())  # every rank gets its turn
    rows: list[str] = []
    rank = 0
    for hour, note in BUSY:
        is_fixed = note.startswith(("the same", "late"))
        moved_h = hour + (0.0 if is_fixed else rng.uniform(-BUSY_JITTER_H, BUSY_JITTER_H))
        if not note.startswith("the same"):
            rank = next(deck)
        rows.append(f"{moved_h:.4f},ps{rank},{note}")
        if note == "two at once":
            rows.append(f"{moved_h:.4f},ps{next(deck)},{note}")
    title = "ten failure events in 56 h on four ranks, one of two ranks at once"
    source = "made up: spread over the job so that strategies differ in a short run"
    return _made_up(title, source, "hour,rank,note", rows, seed=seed)


# Hour, rank or number of ranks, phase, hours of repair. Kills in a recovery wait for a failure at a boundary.
PHASES = (
    (5, "ps1", "lookup", ""),
    (9, "ps2", "apply", "2"),
    (13, "ps3", "save", ""),
    (17, "ps0", "manifest", ""),
    (21, "ps2", "restore", "5"),
    (22, "ps1", "regroup", "1"),
    (23, "ps3", "", "3"),
    (31, "2", "apply", ""),
    (31, "ps0", "lookup", ""),
    (36, "ps1", "regroup", ""),
    (37, "ps1", "boundary", ""),
    (41, "ps2", "save", ""),
    (41, "ps3", "manifest", ""),
    (43, "ps1", "eval", ""),
    (56, "ps0", "eval", ""),
)


def phases(seed: int = SEED) -> str:
    """Failures of four ranks in every phase of a run."""
    title = "failures of four ranks in every phase of a run"
    source = "made up: one of each sort, some of them during the recovery from another"
    rows = [f"{hour},{who},{phase},{repair_h}" for hour, who, phase, repair_h in PHASES]
    return _made_up(title, source, "hour,rank,phase,repair_h", rows, seed=None)


# Hour, rank, phase, fault.
FAULTS = (
    (9, "ps2", "", "disk_full"),
    (13, "ps3", "", "hang"),
    (19, "ps0", "lookup", "hang"),
    (26, "ps1", "", "disk_error"),
    (31, "ps2", "regroup", "hang"),
    (32, "ps3", "", "kill"),
    (41, "2", "apply", "hang"),
    (49, "ps1", "", "hang"),
)


def faults(seed: int = SEED) -> str:
    """What happens to ranks besides kills; no bit is flipped, as that may end a run."""
    title = "ranks that hang, and writes that fail"
    source, rows = "made up: one of each sort and more", [",".join(map(str, row)) for row in FAULTS]
    return _made_up(title, source, "hour,rank,phase,fault", rows, seed=None)


def empty(seed: int = SEED) -> str:
    """No failure at all."""
    return _text({"title": "no failures", "command": COMMAND}, "hour,rank", [])


def drawn(law: str, seed: int = SEED, *, profile: str = "cpr56", number: int = 0, is_typical: bool = True) -> str:
    """Draw ``number`` of a law of harness/config/laws.py for the job of a profile."""
    job = PROFILES[profile]
    trace = draw(LAWS[law], job, job.num_ps, seed + number, is_typical=is_typical)
    rows = [f"{entry.hour:.12g},{entry.who},{','.join(entry.extra.values())}" for entry in trace.entries]
    return _text({**trace.header, "command": COMMAND}, "hour,rank,repair_h,node", rows)


TRACES: dict[str, Callable[[int], str]] = {
    "two_in_56h.csv": partial(
        _by_count,
        "two_in_56h",
        num_failures=2,
        job_h=56,
        ranks=1,
        title="two random single-rank failures in 56 h",
        source="generated after the emulation of CPR (MLSys 2021) section 5: 56 h, 2 failures [recalled]",
    ),
    "ten_in_56h.csv": ten_in_56h,
    "poster50.csv": partial(
        _by_count,
        "poster50",
        num_failures=5,
        job_h=50,
        ranks=4,
        title="five failures in 50 h, each of 4 ranks (of 18) drawn at random",
        source="generated after CPR's poster: 50 h, 5 failures, 4 randomly chosen PS each [read]; hours are ours",
    ),
    "busy.csv": busy,
    "phases.csv": phases,
    "faults.csv": faults,
    "empty.csv": empty,
    **{
        f"preset-{name}.csv": partial(drawn, name, profile="poster50" if name == "poster50" else "cpr56")
        for name in PUBLISHED
    },
    **{
        f"poisson-{number}.csv": partial(drawn, "exponential", profile="busy", number=number, is_typical=False)
        for number in range(5)
    },
    **{f"cpr56-{number}.csv": partial(drawn, "cpr56", number=number) for number in range(5)},
}


def main() -> None:
    """Write every trace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write into")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, make in TRACES.items():
        (options.out / name).write_bytes(make(options.seed).encode())


if __name__ == "__main__":
    main()
