"""What a run must know of its own record at its end."""

from harness.core.events import Event, Finished, Injected
from harness.core.faults import FAULTS
from harness.record.recorder import Recorder


class LastEvent:
    """A sink that passes events on, and keeps the last one of a run and damages to files."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.finished: Finished | None = None
        self._damages: list[Injected] = []

    def record(self, event: Event) -> None:
        """Pass the event on, and keep it."""
        self._recorder.record(event)
        if isinstance(event, Finished):
            self.finished = event
        elif isinstance(event, Injected) and FAULTS[event.fault].damage:
            self._damages.append(event)

    def damage_in(self, problem: str) -> str:
        """Which faults of the trace damaged the file that ``problem`` names, in words; empty if none did."""
        lines: dict[str, list[str]] = {}
        for event in self._damages:
            if f"{event.details['path']}: damaged" in problem:
                lines.setdefault(FAULTS[event.fault].damage, []).append(str(event.line))
        return "; ".join(f"{what} by line {', '.join(which)} of the trace" for what, which in lines.items())
