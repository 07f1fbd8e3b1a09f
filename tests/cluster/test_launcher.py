"""A launcher of its own can take the place of ``fork``, and is all that starts, watches and ends processes."""

from pathlib import Path
from typing import Any

from harness.cluster.launcher import Main, RankContext
from harness.config.model import Config
from harness.core.faults import PlannedFault, Strike
from harness.run.assemble import Parts
from tests.cluster import worlds
from tests.cluster.noted import Noted, NotingLauncher


class Listing(NotingLauncher):
    """Writes down what it is asked."""

    def __init__(self) -> None:
        self.notes: list[tuple[Any, ...]] = []
        super().__init__(lambda process, _: Noted(process, lambda pid: self.notes.append(("kill", pid))))

    def spawn(self, context: RankContext, main: Main) -> Any:
        """Write it down, and fork."""
        process = super().spawn(context, main)
        generation = context.formation.generation if context.formation else None
        self.notes.append(("spawn", context.rank, generation, process.pid))
        return process

    def close(self) -> None:
        """Write it down."""
        self.notes.append(("close",))


def test_a_launcher_starts_kills_and_replaces_every_rank(config: Config, tmp_path: Path) -> None:
    """Each rank once, the killed one by its pid and once more in the next generation; closed last."""
    launcher = Listing()
    planned_kill = PlannedFault(step=5, strikes={"ps2": Strike(1.0, 2)})
    worlds.run_job(config, tmp_path, worlds.kill_and_replace, (planned_kill,), Parts(launcher=launcher))
    pids = {(note[1], note[2]): note[3] for note in launcher.notes if note[0] == "spawn"}
    assert [*pids] == [(f"ps{k}", 0) for k in range(4)] + [("trainer0", 0), ("ps2", 1)]
    assert ("kill", pids["ps2", 0]) in launcher.notes
    assert launcher.notes[-1] == ("close",)
