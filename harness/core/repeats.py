"""Which steps that are run again after a rollback must have the losses of the time before."""

from harness.core.resumable import Resumable


class Repeats(Resumable):
    """Follows partial recoveries and rollbacks, to say how far a repeated step is known to have the same rows.

    A partial recovery after a save is not in its checkpoint. So after a rollback to the save, the steps after the
    partial recovery have other rows than the time before; and after a partial recovery among repeated steps, the steps
    that are still to be repeated have other rows, too.

    In all methods ``step`` is the number of finished steps, and ``num_run`` the number of those that ever were.
    """

    _state = ("_partial_at", "_until")

    def __init__(self) -> None:
        self._partial_at: list[int] = []  # finished steps at partial recoveries that no rollback has undone
        self._until: int | None = None  # steps after it may have other losses than the time before; None: none may

    def recover_partially(self, step: int, num_run: int) -> None:
        """Some ranks were restored, and the others went on."""
        self._partial_at.append(step)
        if step < num_run and (self._until is None or step < self._until):
            self._until = step

    def roll_back(self, save: int, step: int, num_run: int) -> None:
        """All ranks went back to the save at ``save`` finished steps."""
        others = [at for at in self._partial_at if at >= save]
        if self._until is not None and step < num_run:  # there are steps that were not repeated yet
            others.append(max(self._until, step))
        self._until = min(others, default=None)
        self._partial_at = [at for at in self._partial_at if at < save]

    def num_alike(self, first: int, end: int) -> int:
        """How many of the repeated steps after ``first``, up to ``end``, must have the losses of the time before."""
        until = end if self._until is None else min(self._until, end)
        return max(until - first, 0)
