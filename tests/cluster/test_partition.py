"""A rank that is cut off the network: it runs on and is not reached, until it is killed at its deadline."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.config.model import Config
from harness.core.errors import ConfigError
from harness.core.events import Lost, Regrouped
from harness.core.faults import Partition, PlannedFault, Strike
from harness.run import assemble
from harness.run.assemble import Parts
from tests.cluster import hangs, worlds
from tests.cluster.noted import Noted, NotingLauncher
from tests.cluster.test_hangs import short
from tests.injected import is_loss
from tests.runs import changed

ONE_CUT = (PlannedFault(step=5, strikes={"ps1": Strike(1.0, 2, Partition(name="partition"))}),)


class Watched(Noted):
    """A process of which ``seen`` has how often it has ticked: when it goes on, cut off, and when it is killed."""

    def __init__(self, inner: Any, note: Path, seen: list[tuple[str, int, int]]) -> None:
        super().__init__(inner)
        self._ticks, self._seen = note, seen

    def resume(self) -> None:
        """Look, while it stands still, and do it."""
        self._look("go on")
        self.inner.resume()

    def kill(self) -> None:
        """Look, and do it."""
        self._look("kill")
        self.inner.kill()

    def _look(self, what: str) -> None:
        if self.exitcode is None:
            self._seen.append((what, self.pid, int.from_bytes(self._ticks.read_bytes(), "little")))


class Refusing(Noted):
    """A process that the system does not let be cut off."""

    cut_problem = "pidfd_getfd: Operation not permitted"


def test_a_rank_that_is_cut_off_runs_until_it_is_killed(config: Config, tmp_path: Path) -> None:
    """Law: it is not reached, and runs; it is killed at its deadline before another process has its name."""
    note = tmp_path / "ticks"
    note.write_bytes(bytes(8))
    seen: list[tuple[str, int, int]] = []
    launcher = NotingLauncher(lambda process, _: Watched(process, note, seen))
    parts = Parts(launcher=launcher, ps_main=partial(hangs.ticking, note))
    events = worlds.run_job(short(config), tmp_path, worlds.kill_and_replace, ONE_CUT, parts)
    (goes_on, pid, ticked), (killed, killed_pid, ticked_until) = seen[:2]
    assert (goes_on, killed, pid) == ("go on", "kill", killed_pid)
    assert ticked_until > ticked
    (kill,) = (event for event in events if is_loss(event))
    assert (kill.rank, kill.fault, kill.machine) == ("ps1", "partition", {"pid": pid})
    (lost,) = (event for event in events if isinstance(event, Lost))
    assert lost.planned
    assert "timeout" in lost.machine["detail"]["ps1"]
    (regrouped,) = (event for event in events if isinstance(event, Regrouped))
    assert regrouped.machine["mute"]["ps1"] == {"pid": pid, "action": "killed"}
    found = next(event for event in events if isinstance(event, dict) and "lost" in event)
    assert (found["lost"], found["answered"]) == (["ps1"], ["ps0", "ps2", "ps3"])
    assert events[-1]["equal"]


def test_a_system_that_refuses_ends_the_run_before_it_trains(config: Config, tmp_path: Path) -> None:
    """Law: one line says what is refused and what to do; no step was made."""
    (tmp_path / "trace.csv").write_text("hour,rank,fault\n20,ps1,partition\n")
    steps: list[int] = []
    launcher = NotingLauncher(lambda process, _: Refusing(process))
    config = changed(config, engine="rpc", trace__path=str(tmp_path / "trace.csv"))
    words = (
        r"^trace: expected a system that lets ranks be cut off the network \(fault partition\), but ps\d cannot be: "
        r"pidfd_getfd: Operation not permitted; allow .*, or use the fault hang$"
    )
    with pytest.raises(ConfigError, match=words):
        assemble.run(
            config,
            tmp_path / "run",
            parts=Parts(launcher=launcher),
            on_status=lambda status: steps.append(status.step),
        )
    assert not any(steps)
