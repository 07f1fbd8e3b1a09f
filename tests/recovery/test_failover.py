"""What a shard holds after a recovery and after a save, seen from inside the ranks of a whole run."""

from pathlib import Path
from typing import Any

import pytest
import torch

from harness.cluster.protocol import Initialise, OnShard, Reply, Request, Restore
from harness.cluster.server import RankServer
from harness.config.model import Config
from harness.core.errors import RunFailed
from harness.core.events import Lost, Recovered
from harness.core.faults import Phase
from harness.core.shard import Shard
from harness.core.whole_strategies import Partial
from harness.recovery.injections import Injections
from harness.recovery.kinds.whole import Checkpoint
from harness.run import trainer
from harness.run.assemble import Parts
from harness.store import ShardStore, newest_checkpoint
from tests.runs import changed, run, saving_every


def len_of(shard: Shard) -> int:
    """A function called on a shard that restores nothing."""
    return 7


@pytest.mark.parametrize("strategy", ["partial", "cpr_ssu"])
def test_a_dead_shard_gets_its_newest_rows_and_no_other_is_touched(
    config: Config, tmp_path: Path, strategy: str
) -> None:
    """Base and all deltas of the newest checkpoint, bit for bit, for exactly the ranks that the trace killed."""
    restored: list[tuple[str, int]] = []  # rank, files read

    class WatchedServer(RankServer):
        def handle(self, request: Request) -> Reply:
            reply = super().handle(request)
            if isinstance(request, Restore):
                manifest, _ = newest_checkpoint(tmp_path / "run" / "checkpoints")
                assert manifest is not None
                chain = manifest.shards[self.rank]
                newest_MD = torch.empty_like(self.shard.rows_MD)
                ShardStore(tmp_path / "run" / "checkpoints", self.rank).read_into(chain, newest_MD)
                assert torch.equal(self.shard.rows_MD, newest_MD)
                restored.append((self.rank, len(chain)))
            return reply

    run(saving_every(changed(config, strategy__name=strategy), 40), tmp_path / "run", Parts(make_server=WatchedServer))
    killed = ["ps1", "ps0", "ps2", "ps3", "ps0", "ps0", "ps3", "ps1", "ps2", "ps2", "ps3"]
    assert [rank for rank, _ in restored] == killed
    most_files = max(num_files for _, num_files in restored)
    assert most_files == 1 if strategy == "partial" else most_files > 2


def test_the_seconds_of_a_failure_are_those_of_waiting_regrouping_or_loading(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a restore did before it waited for a dead rank is load, not detection, also if it is cut short.

    The clock moves in restores and while ranks are replaced only.
    """
    now_s, strike = [0.0], Injections.strike

    def restoring(*_: object) -> None:
        now_s[0] += 100.0

    def striking(self: Injections, phase: Phase) -> None:
        now_s[0] += 7.0 * (phase == "regroup")
        strike(self, phase)

    monkeypatch.setattr(Checkpoint, "newer_rows", restoring)
    monkeypatch.setattr(Injections, "strike", striking)

    def train(*arguments: Any) -> None:
        arguments[-1].clock = lambda: now_s[0]  # the effects
        trainer.train(*arguments)

    (tmp_path / "trace.csv").write_text("hour,rank,phase\n29,ps2,restore\n29,ps0,regroup\n30,ps1,\n")
    config = changed(config, strategy__name="partial", trace__path=str(tmp_path / "trace.csv"))
    _, events = run(config, tmp_path / "run", Parts(train=train))
    lost = [(event.ranks, event.machine["seconds"]) for event in events if isinstance(event, Lost)]
    assert lost == [(["ps1"], 0.0), (["ps0"], 7.0), (["ps2"], 0.0)]
    (recovered,) = (event.machine for event in events if isinstance(event, Recovered))
    assert recovered == {"seconds": 500.0, "reschedule_seconds": 21.0}, "three regroups"


@pytest.mark.parametrize(
    ("method", "gives", "message"),
    [
        ((Partial, "plan_recovery"), None, r"recovery plan of Partial: expected a RecoveryPlan, .*, got None$"),
        ((Checkpoint, "requests"), None, r"requests of the recovery checkpoint: expected a request by rank, got None$"),
        ((Checkpoint, "requests"), {}, r"requests of the recovery checkpoint: expected one for ps1, got none$"),
        ((Checkpoint, "requests"), {"ps1": "restore"}, r"expected a request by rank, got \{'ps1': 'restore'\}$"),
        (
            (Checkpoint, "requests"),
            {"ps1": Initialise(step=0), "ps9": Initialise(step=0)},
            r"requests of the recovery checkpoint: expected ranks of ps0 to ps3, got 'ps9'$",
        ),
        (
            (Checkpoint, "requests"),
            {"ps1": OnShard(len_of, ())},
            r"ps1: expected Restored of the recovery checkpoint, got 7$",
        ),
    ],
)
def test_what_a_plan_or_a_kind_of_recovery_gives_is_checked(  # noqa: PLR0917
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: tuple[type, str],
    gives: object,
    message: str,
) -> None:
    """One line, with the step, the kind and what was expected: before anything of it is carried out."""
    (tmp_path / "trace.csv").write_text("hour,rank\n20,ps1\n")
    config = changed(config, strategy__name="partial", trace__path=str(tmp_path / "trace.csv"))
    monkeypatch.setattr(*method, lambda *_: gives)
    with pytest.raises(RunFailed, match=r"^step \d+: .*" + message):
        run(config, tmp_path / "run")
