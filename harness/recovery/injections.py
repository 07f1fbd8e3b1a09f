"""The faults of a trace: kills at boundaries, kills that wait for a phase of the run, slow ranks, faults of disks.

A kill with a phase is armed at its boundary, and carried out the first time that the phase occurs. So is a write that
fails: it strikes at the first save that is then written and committed.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from harness.cluster.protocol import Cluster, Collect, Exchange, Request, Save, Several, Written
from harness.cluster.supervisor_client import SupervisorClient
from harness.core.plans import KillPhase, KillTime, Progress, Rank, Struck
from harness.core.resumable import Resumable
from harness.recovery.accounting import Accounting
from harness.recovery.mirror import Mirror


class Injections(Resumable):
    """Carries out planned faults, at boundaries and in phases; each strikes once. The trainer does not know whom.

    Args:
        kills: all planned faults of the run; they are named by their index.
        progress: the progress of the run now.
        before_kill: called before each kill, so that what happened first is recorded first.
    """

    _state = ("_to_come", "_slow", "_armed", "_struck")
    _state_types = (Struck,)

    def __init__(
        self,
        kills: Sequence[KillTime],
        *,
        cluster: Cluster,
        supervisor: SupervisorClient,
        mirror: Mirror,
        accounting: Accounting,
        progress: Callable[[], Progress],
        before_kill: Callable[[], None],
    ) -> None:
        self._kills = tuple(kills)
        self._cluster = cluster
        self._supervisor = supervisor
        self._mirror = mirror
        self._accounting = accounting
        self._progress = progress
        self._before_kill = before_kill
        later = [number for number, kill in enumerate(kills) if not kill.is_at_boundary]
        self._to_come = deque(sorted(later, key=lambda number: kills[number].step))
        self._slow: set[int] = set()  # slowdowns that last
        self._armed: list[int] = []
        self._is_evaluation = False
        self._struck = Struck()  # since the last failure
        self._is_hidden = False  # a kill whose death is not found yet

    def reach(self, step: int) -> None:
        """Boundary ``step`` begins: from now on its kills wait for their phases, and slowdowns begin and end."""
        while self._to_come and self._kills[self._to_come[0]].step <= step:
            number = self._to_come.popleft()
            if self._kills[number].slowdown is None:
                self._armed.append(number)
            else:
                self._slow_down(number)
        if self._slow:
            self._end_slowdowns(step)

    def _slow_down(self, number: int) -> None:
        slowdown, progress = self._kills[number].slowdown, self._progress()
        assert slowdown is not None
        self._before_kill()
        self._cluster.slow_down(progress.step, progress.samples, number)
        self._accounting.slowed(slowdown.wait_h)
        self._slow.add(number)

    def _end_slowdowns(self, step: int) -> None:
        for number in sorted(self._slow):
            slowdown = self._kills[number].slowdown
            if slowdown is not None and slowdown.last_step <= step:
                self._slow.remove(number)
                self._cluster.speed_up(number)

    @property
    def depend_on_messages(self) -> bool:
        """Whether it matters which message is in flight: a kill waits for the next one, or its death is not found."""
        return self._is_hidden or any(self._kills[kill].phase in _OF_MESSAGES for kill in self._armed)

    def at_boundary(self, due: Sequence[int]) -> None:
        """Carry out what is due at the present boundary: flips of bits in the files of checkpoints, then kills."""
        for number in due:
            if self._kills[number].flips:
                self._before_kill()
                progress = self._progress()
                self._supervisor.flip_bits(progress.step, progress.samples, number)
        if kills := [number for number in due if not self._kills[number].flips]:
            self.kill(kills)

    @property
    def write_faults(self) -> tuple[int, ...]:
        """The armed faults by which a write of the next save fails."""
        return tuple(number for number in self._armed if self._kills[number].fails_write)

    def wrote(self, written: Mapping[Rank, Written]) -> None:
        """All parts of a save are on disk: record the faults that struck it; they do not strike again."""
        failed = {rank: (reply.struck, reply.failed_s) for rank, reply in written.items() if reply.struck}
        if failed:
            self._before_kill()
            struck = {number for numbers, _ in failed.values() for number in numbers}
            self._armed = [number for number in self._armed if number not in struck]
            progress = self._progress()
            self._supervisor.writes_failed(progress.step, progress.samples, failed)

    def kill(self, kills: Sequence[int]) -> None:
        """Carry out planned kills of one phase as one. The requests in flight, or the next ones, find the dead."""
        self._before_kill()
        progress = self._progress()
        self._struck = self._struck.also(self._cluster.kill_planned(progress.step, progress.samples, kills))
        self._is_hidden = True
        self._mirror.planned_failure()

    def strike(self, phase: KillPhase) -> None:
        """The run is in ``phase``: carry out the armed kills of it, if there are any."""
        if not self._armed:
            return
        due = tuple(
            kill for kill in self._armed if self._kills[kill].phase == phase and not self._kills[kill].fails_write
        )
        if due:
            self._armed = [kill for kill in self._armed if kill not in due]
            self.kill(due)

    def sent(self, requests: Mapping[Rank, Request]) -> None:
        """Requests have been sent, and their replies are not waited for yet."""
        if self._armed:
            for phase in _phases(requests.values(), is_evaluation=self._is_evaluation):
                self.strike(phase)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """While it is entered, lookups are those of an evaluation."""
        self._is_evaluation = True
        try:
            yield
        finally:
            self._is_evaluation = False

    def take_struck(self) -> Struck:
        """What the kills since the last call cost as one failure. To be called once for each failure."""
        struck, self._struck, self._is_hidden = self._struck, Struck(), False
        return struck


_OF_MESSAGES: frozenset[KillPhase] = frozenset(("lookup", "apply"))


def _phases(requests: Iterable[Request], *, is_evaluation: bool) -> Iterator[KillPhase]:
    """The phases of a run that requests sent together belong to."""
    requests = tuple(requests)
    parts = [part for each in requests for part in (each.exchanges if isinstance(each, Several) else (each,))]
    exchanges = [part for part in parts if isinstance(part, Exchange)]
    if any(part.pull_N is not None and len(part.pull_N) for part in exchanges):
        if is_evaluation:
            yield "eval"
        yield "lookup"
    if any(part.push is not None and len(part.push.rows_N) for part in exchanges):
        yield "apply"
    if any(isinstance(part, Save | Collect) for part in parts):
        yield "save"
