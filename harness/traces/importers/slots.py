"""Places in a cluster that instances take and leave: what stays when every spot instance has a name of its own."""

from collections import deque


class Slots:
    """A newcomer takes the slot that has been empty for the longest, or a new one if none is.

    A job sees slots, not instances: it runs on so many machines, and one that is preempted is replaced by another of
    another name. A slot's outage is the time in which it is empty.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._empty: deque[str] = deque()
        self._slot_of: dict[str, str] = {}

    def __contains__(self, instance: str) -> bool:
        return instance in self._slot_of

    def enter(self, instance: str) -> str:
        """The slot that ``instance`` takes."""
        if self._empty:
            slot = self._empty.popleft()
        else:
            slot = f"slot{len(self.names)}"
            self.names.append(slot)
        self._slot_of[instance] = slot
        return slot

    def leave(self, instance: str) -> str:
        """The slot that ``instance`` had."""
        slot = self._slot_of.pop(instance)
        self._empty.append(slot)
        return slot

    def oldest(self) -> str:
        """The instance that came first of those that are here."""
        return next(iter(self._slot_of))
