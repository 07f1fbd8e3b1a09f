"""A launcher of its own can take the place of ``fork``, and is all that starts, watches and ends processes."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from harness.cluster.launcher import ForkLauncher, Main, RankContext, RankProcess
from harness.config.model import Config
from harness.core.faults import PlannedFault, Strike
from harness.run.assemble import Parts
from tests.cluster import worlds
from tests.cluster.noted import Noted


class Noting:
    """A launcher that writes down what it is asked."""

    dead_after_s: float | None = None

    def __init__(self) -> None:
        self._fork = ForkLauncher()
        self.notes: list[tuple] = []

    def lost_hosts(self) -> dict[str, str]:
        """None."""
        return {}

    def end_hosts(self, hosts: Sequence[int]) -> None:
        """A no-op: there is no other host."""

    def spawn(self, context: RankContext, main: Main) -> RankProcess:
        """Write it down, and fork."""
        process = Noted(self._fork.spawn(context, main), lambda pid: self.notes.append(("kill", pid)))
        self.notes.append(
            ("spawn", context.rank, context.formation.generation if context.formation else None, process.pid)
        )
        return process

    def watched(self, processes: Iterable[RankProcess]) -> list[Any]:
        """Of the inner processes."""
        return self._fork.watched([process.inner for process in processes if isinstance(process, Noted)])

    def check(self) -> None:
        """As the inner one."""
        self._fork.check()

    def close(self) -> None:
        """Write it down."""
        self.notes.append(("close",))


def test_a_launcher_starts_kills_and_replaces_every_rank(config: Config, tmp_path: Path) -> None:
    """Each rank once, the killed one by its pid and once more in the next generation; closed last."""
    launcher = Noting()
    planned_kill = PlannedFault(step=5, strikes={"ps2": Strike(1.0, 2)})
    parts = Parts(launcher=launcher)
    worlds.run_job(config, tmp_path, worlds.kill_and_replace, (planned_kill,), parts)
    pids = {(note[1], note[2]): note[3] for note in launcher.notes if note[0] == "spawn"}
    assert [*pids] == [(f"ps{k}", 0) for k in range(4)] + [("trainer0", 0), ("ps2", 1)]
    assert ("kill", pids["ps2", 0]) in launcher.notes
    assert launcher.notes[-1] == ("close",)
