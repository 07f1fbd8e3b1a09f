"""What one PS rank takes at worst: every row of its shard is touched before every save, until deltas are compacted."""

import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from harness.config.model import MetricsConfig, SaveConfig
from harness.core.placement import Placement, tracked_tables
from harness.core.plans import SavePlan

DIM = 16


def one_rank(cardinalities: Sequence[int], num_ps: int, folder: Path) -> dict[str, float]:
    """Peak of resident memory in each action of ``ps0``, beyond what its process held before, over its rows' bytes.

    In a process of its own, which is empty at first.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(tuple(cardinalities), num_ps, folder, theirs))
    process.start()
    theirs.close()
    peaks = ours.recv()
    process.join()
    return peaks


def _measure(cardinalities: tuple[int, ...], num_ps: int, folder: Path, pipe: Connection) -> None:
    from benchmarks.store import measure, memory_bytes  # noqa: PLC0415 - torch, which the caller does without
    from harness.cluster.protocol import Initialise, Restore, Save, Written  # noqa: PLC0415
    from harness.cluster.server import RankServer, RankSpec  # noqa: PLC0415
    from harness.core.trackers import TrackerSpec  # noqa: PLC0415

    spec = RankSpec(
        placement=Placement("row", cardinalities, num_ps),
        embedding_dim=DIM,
        seed=0,
        tracker=TrackerSpec("mfu", tracked_tables(cardinalities, MetricsConfig().num_tracked), {"r": 0.125}),
        count_updates=True,
        checkpoints=folder,
        fsync=False,
        save_buffer_bytes=SaveConfig().buffer_bytes,
    )
    held_bytes = memory_bytes("VmRSS")
    server = RankServer(spec, "ps0")
    assert server.shard.pending_M is not None
    peaks: dict[str, float] = {}
    records = ()

    def act(request: Initialise | Save | Restore) -> tuple[object, float]:
        replies = []
        before_bytes = memory_bytes("VmRSS") - held_bytes
        peak_bytes = before_bytes + measure(lambda: replies.append(server.handle(request))).extra_bytes
        return replies[0], peak_bytes / server.shard.rows_MD.nbytes

    _, peaks["initialise"] = act(Initialise(step=0))
    sequence, is_compacted = 0, False
    while not is_compacted:
        server.shard.pending_M.random_(1, 100)
        plan = SavePlan(kind="priority" if sequence else "full")
        written, peak = act(Save(plan=plan, sequence=sequence, step=0, records=records))
        assert isinstance(written, Written), written
        records, is_compacted, sequence = written.records, written.compacted, sequence + 1
        name = "compaction" if is_compacted else f"{plan.kind} save"
        peaks[name] = max(peaks.get(name, 0.0), peak)
    _, peaks["restore"] = act(Restore(records=records, step=0))
    pipe.send(peaks)
