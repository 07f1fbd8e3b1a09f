"""What a run must know of its own record at its end."""

from harness.core.events import Event, Finished, Flipped
from harness.record.recorder import Recorder


class LastEvent:
    """A sink that passes events on, and keeps the last one of a run and flips of bits."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.finished: Finished | None = None
        self._flips: list[Flipped] = []

    def record(self, event: Event) -> None:
        """Pass the event on, and keep it."""
        self._recorder.record(event)
        if isinstance(event, Finished):
            self.finished = event
        elif isinstance(event, Flipped):
            self._flips.append(event)

    def flips_in(self, problem: str) -> str:
        """Which flips of the trace damaged the file that ``problem`` names, in words; empty if none did."""
        lines = [str(flip.line) for flip in self._flips if f"{flip.path}: damaged" in problem]
        return f"a bit of it was flipped by line {', '.join(lines)} of the trace" if lines else ""
