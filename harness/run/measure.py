"""Measures on this machine what saves and loads take, and until when the death of a rank is detected."""

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.config.model import Config, TraceConfig
from harness.core.plans import CHIEF, Rank, ps_rank
from harness.core.strategies import options_of
from harness.run import assemble
from harness.run.spec import RunSpec
from harness.run.turns import Estimate, quiet
from harness.store import FileStore, Manifest, RowSource, in_background

_SAVE_FRACS = (1, 1 / 2, 1 / 4, 1 / 8)  # of the largest save that is timed
_MOST_SAVE_BYTES = 500_000_000
_STEPS_PER_KILL = 5

Done = Callable[[int, int], None]
"""A callback that gets what is done, and what there is to do."""


# --- saves and loads --------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """Seconds of a save or a load: those of the fixed part, those of all bytes of the model, the first by the second.

    By a line through measured ones (least squares of relative errors), one for each round.
    """

    fixed_s: Estimate
    full_s: Estimate
    fixed_frac: Estimate

    @classmethod
    def of(cls, rounds: Iterable[Sequence[tuple[int, float]]], bytes_full: int) -> "Line":
        """``rounds``: bytes and seconds."""
        fits: list[tuple[float, float]] = []
        for each in rounds:
            num_bytes, seconds = np.array(each).T
            slope, fixed_s = np.polyfit(num_bytes, seconds, 1, w=1 / seconds)
            fits.append((float(fixed_s), float(fixed_s + slope * bytes_full)))
        return cls(*(Estimate.of(values) for values in (*zip(*fits, strict=True), (one / full for one, full in fits))))

    @property
    def has_full(self) -> bool:
        """Whether the seconds of the whole model are known: their interval is above 0."""
        return self.full_s.low > 0

    @property
    def has_fixed(self) -> bool:
        """Whether the fixed part is known: the interval of its fraction lies between 0 and 1."""
        return self.has_full and self.fixed_frac.low > 0 and self.fixed_frac.high < 1


def measure_saves(config: Config, rounds: int, folder: Path, done: Done) -> tuple[Line, Line]:
    """Lines of full saves and loads of several sizes in turn, in the new ``folder``.

    All ranks write at once, and then read, each in a thread. A save has the dense network and the manifest too. Files
    are dropped from the page cache before they are read, which needs ``store.fsync``.
    """
    spec = RunSpec(config)
    store, width = FileStore(folder, keep=1, fsync=config.store.fsync), spec.footprint.row_width
    store.open()
    most, dense = min(1.0, _MOST_SAVE_BYTES / spec.bytes_full), torch.ones(spec.footprint.num_bytes(0) // 4)
    shards = {ps_rank(k): torch.ones(math.ceil(most * rows), width) for k, rows in enumerate(spec.rank_rows)}
    order, saves, loads = [*_SAVE_FRACS], list[list[tuple[int, float]]](), list[list[tuple[int, float]]]()
    for first in range(0, rounds * len(order), len(order)):
        found = [_save_and_load(store, first + i, shards, frac, dense) for i, frac in enumerate(order)]
        saves.append([save for save, _ in found])
        loads.append([load for _, load in found])
        order = [*order[1:], order[0]]
        done(first + len(order), rounds * len(order))
    store.close()
    return Line.of(saves, spec.bytes_full), Line.of(loads, spec.bytes_full)


def _save_and_load(
    store: FileStore, number: int, shards: Mapping[Rank, Tensor], frac: float, dense: Tensor
) -> tuple[tuple[int, float], tuple[int, float]]:
    """Bytes and seconds of save ``number``, of a fraction of each shard, and those of its load."""
    parts = {rank: rows_MD[: math.ceil(frac * len(rows_MD))] for rank, rows_MD in shards.items()}
    read = {rank: torch.empty_like(rows_MD) for rank, rows_MD in parts.items()}
    began_s = time.perf_counter()
    written = _at_once(lambda rank: store.write_base(rank, number, 0, RowSource(parts[rank])), parts)
    trainer = store.write_dense(CHIEF, number, 0, {"all": dense}, {})
    files = {rank: (record,) for rank, record in written.items()}
    manifest = {"sequence": number, "step": 0, "samples": 0, "kind": "full", "config_hash": ""}
    store.commit(Manifest(**manifest, shards=files, trainer=trainer))
    saved_s = time.perf_counter() - began_s
    for record in written.values():
        with (store.root / record.path).open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    began_s = time.perf_counter()
    _at_once(lambda rank: store.read_rows(files[rank], read[rank]), parts)
    loaded_s, num_bytes = time.perf_counter() - began_s, sum(record.payload_bytes for record in written.values())
    return (num_bytes + trainer.payload_bytes, saved_s), (num_bytes, loaded_s)


def _at_once(action: Callable[[Rank], Any], ranks: Iterable[Rank]) -> dict[Rank, Any]:
    running = {rank: in_background(rank, partial(action, rank)) for rank in ranks}
    return {rank: future.result() for rank, future in running.items()}


# --- detection --------------------------------------------------------------------------------------------------------


def measure_detection(config: Config, num_kills: int, folder: Path, done: Done) -> Estimate:
    """Seconds from SIGKILL of a PS rank until its loss is known, in a run on engine ``rpc`` in the new ``folder``."""
    folder.mkdir()
    size, job_h = config.trainer.batch_size, config.profile.job_h
    num_steps = _STEPS_PER_KILL * (num_kills + 1)
    hours = [job_h * number / (num_kills + 1) for number in range(1, num_kills + 1)]
    trace = [f"{hour!r},{ps_rank(number % config.num_ps)}" for number, hour in enumerate(hours)]
    (folder / "trace.csv").write_text("\n".join(["# title: kills to be detected", "hour,rank", *trace, ""]))
    one = quiet(config)
    data = one.data.model_copy(update={"max_train_samples": num_steps * size})
    metrics = one.metrics.model_copy(update={"log_every_steps": 1})
    of_rpc = {"engine": "rpc", "data": data, "metrics": metrics, "strategy": options_of("never_save")}
    given = one.model_copy(update=of_rpc | {"trace": TraceConfig(path=str(folder / "trace.csv"))})
    times = list[tuple[str, float]]()

    def note(status: assemble.RunStatus) -> None:
        times.append((status.phase, time.monotonic()))
        done(status.step, num_steps)

    assemble.run(given, folder / "run", on_status=note)
    # The status before is of the step after which the supervisor kills.
    found = (i for i, (phase, _) in enumerate(times) if phase == "recover" and times[i - 1][0] != "recover")
    return Estimate.of(times[i][1] - times[i - 1][1] for i in found)
