"""What a recovery takes, and what of a plan or a kind of recovery is refused."""

from pathlib import Path
from typing import Any

import pytest

from harness.cluster.protocol import Initialise, OnShard
from harness.config.model import Config
from harness.core.errors import RunFailed
from harness.core.events import Lost, Recovered
from harness.core.faults import Phase
from harness.core.shard import Shard
from harness.core.strategies import Partial
from harness.recovery.injections import Injections
from harness.recovery.kinds import Checkpoint
from harness.run import trainer
from harness.run.assemble import Parts
from tests.runs import changed, run


def len_of(shard: Shard) -> int:
    """A function called on a shard that restores nothing."""
    return 7


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
        arguments[-1].clock = lambda: now_s[0]  # the supervisor
        trainer.train(*arguments)

    (tmp_path / "trace.csv").write_text("hour,rank,phase\n29,ps2,restore\n29,ps0,regroup\n30,ps1,\n")
    config = changed(config, strategy__name="partial", trace__path=str(tmp_path / "trace.csv"))
    config = changed(config, data__max_train_samples=256, strategy__interval_samples=36)
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
    config = changed(config, data__max_train_samples=64, strategy__interval_samples=32)
    monkeypatch.setattr(*method, lambda *_: gives)
    with pytest.raises(RunFailed, match=r"^step \d+: .*" + message):
        run(config, tmp_path / "run")
