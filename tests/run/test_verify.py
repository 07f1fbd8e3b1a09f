"""The verification of one engine against the other, and that it would notice."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from harness.cluster.server import RankServer
from harness.config.model import Config
from harness.core.errors import ConfigError, RunFailed
from harness.record.event_log import read_events
from harness.run import verify
from harness.run.assemble import Parts, RunStatus
from harness.traces.job_trace import job_trace
from tests.injected import is_loss
from tests.runs import changed, run, saving_every


class FlippingServer(RankServer):
    """A rank whose memory flips the lowest bit of one value at step 100, and is right otherwise."""

    def handle(self, request):
        """Serve, and flip once."""
        reply = super().handle(request)
        push = getattr(request, "push", None)
        if self.rank == "ps1" and push is not None and push.step == 100:
            row = push.rows_N[0]
            self.shard.rows_MD[row].view(dtype=torch.int32)[0] ^= 1
        return reply


@pytest.mark.parametrize("num_ps", [1, 4])
def test_a_config_without_a_trace_is_verified_on_any_number_of_ranks(
    config: Config, tmp_path: Path, num_ps: int
) -> None:
    """Failures are drawn of the ranks that there are, within the hours of the job."""
    config = changed(config, trace__path=None, cluster__num_ps=num_ps, data__max_train_samples=256)
    config = saving_every(changed(config, strategy__name="partial", profile__job_h=20), 40)
    assert (
        verify.verify(config, tmp_path, run=lambda cell, run_dir, **_: run(changed(cell, engine="local"), run_dir))
        == []
    )
    events = read_events(tmp_path / "rpc-none" / "events.jsonl")
    assert sum(map(is_loss, events)) >= 10


def test_verifying_leaves_nothing_out(config: Config, tmp_path: Path) -> None:
    """A strategy is run on every data path and engine, and each run's progress has its number."""
    ran: list[tuple[str, str, str]] = []
    followed: list[tuple[int, int, RunStatus]] = []
    status = RunStatus(step=3, num_steps=9, loss=0.5, phase="train", generation=0)

    def note(cell: Config, run_dir: Path, *, on_status: Callable[[RunStatus], None]) -> None:
        on_status(status)
        ran.append((cell.strategy.name, cell.engine, run_dir.name))
        run_dir.mkdir()
        (run_dir / "events.jsonl").touch()

    paths = [(engine, path.name) for path in verify.variants_of(config) for engine in path.engines]
    assert {(engine, name) for engine in ("local", "rpc") for name in ("none", "lookahead", "stale")} < {*paths}
    differences = verify.verify(config, tmp_path / "one", run=note, on_status=lambda *told: followed.append(told))
    assert differences == []
    assert followed == [(number, len(paths), status) for number in range(1, len(paths) + 1)]
    assert ran == [("full", engine, f"{engine}-{path}") for engine, path in paths]


def test_a_difference_is_named(config: Config, tmp_path: Path) -> None:
    """By strategy, engine and the keys of the variant, with what was expected; and so is the error of a run."""
    config = saving_every(changed(config, strategy__name="partial", data__max_train_samples=128), 40)

    def run_all(cell: Config, run_dir: Path, **_: object) -> None:
        if cell.save.mode == "async":
            raise RunFailed("it broke")
        is_other = cell.engine == "rpc" and cell.cache.mode == "lookahead"
        run(changed(cell, engine="local", trainer__learning_rate=0.02 if is_other else 0.01), run_dir)

    with pytest.raises(RunFailed, match=r"^partial on local \(cache.mode=none save.mode=async\): it broke$"):
        verify.verify(config, tmp_path, run=run_all)
    by_run = verify.compare_records(tmp_path / "local-none", tmp_path / "rpc-lookahead")
    assert any("train" in line and ": losses: expected [" in line and ", got [" in line for line in by_run)
    differences = verify.verify(
        config, tmp_path, run=lambda cell, run_dir, **_: run_all(changed(cell, save__mode="sync"), run_dir)
    )
    (head,) = {line.partition(": event")[0] for line in differences}
    assert head == (
        "partial on rpc (cache.mode=lookahead save.mode=sync), compared with "
        "partial on local (cache.mode=none save.mode=sync)"
    )


def test_one_flipped_bit_is_noticed(config: Config, tmp_path: Path) -> None:
    """The lowest bit of one embedding value, flipped once in one rank, makes the records differ."""
    config = saving_every(changed(config, strategy__name="partial", data__max_train_samples=512), 80)
    run(config, tmp_path / "right")
    run(config, tmp_path / "again")
    assert verify.compare_records(tmp_path / "right", tmp_path / "again") == []
    run(config, tmp_path / "flipped", Parts(make_server=FlippingServer))
    differences = verify.compare_records(tmp_path / "right", tmp_path / "flipped")
    assert differences
    assert "event" in differences[0]


def test_what_has_nothing_to_compare_is_left_out(config: Config, tmp_path: Path) -> None:
    """Intervals and charges then depend on the mode, so there is nothing to compare.

    Stale caches are left out where all trainers die: their updates would die with them.
    """
    priced = changed(config, profile__network_gbps=25, profile__snapshot_gbps=80)
    names = [{variant.name for variant in verify.variants_of(each)} for each in (config, priced)]
    assert names[0] - names[1] == {"async"}
    for rank, is_in in (("trainer0", False), ("ps1", True)):
        (tmp_path / "trace.csv").write_text(f"hour,rank\n10,{rank}\n")
        variants = verify.variants_of(changed(config, trace__path=str(tmp_path / "trace.csv")))
        assert ("stale" in {variant.name for variant in variants}) == is_in


def test_what_a_run_refuses_is_not_called_identical(config: Config, tmp_path: Path) -> None:
    """Variants replace the mode of the cache, so that it is checked before."""
    stale = changed(config, strategy__name="cpr_mirror", cache__mode="stale")
    with pytest.raises(ConfigError, match=r"cache\.mode: expected none .* for strategy cpr_mirror, got stale"):
        verify.verify(stale, tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_repair_times_and_a_law_are_verified_too(config: Config, tmp_path: Path) -> None:
    """The trace of all runs has the entries of the run's own, with repairs, and two more kills."""
    config = changed(config, trace__path=None, trace__law="lanl20", trace__repair="reschedule", strategy__name="full")
    own = job_trace(config)
    assert own is not None
    cells: list[Config] = []

    def note(cell: Config, run_dir: Path, *, on_status: object) -> None:
        cells.append(cell)
        raise RunFailed("enough")

    with pytest.raises(RunFailed, match="enough"):
        verify.verify(config, tmp_path, run=note)
    met = job_trace(cells[0])
    assert met is not None
    assert len(met.entries) == len(own.entries) + 2
    repairs = [[entry.repair_h for entry in trace.entries if entry.repair_h is not None] for trace in (own, met)]
    assert repairs[0] == repairs[1] != []
