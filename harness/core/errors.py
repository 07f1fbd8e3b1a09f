"""The exceptions that this package raises on purpose.

    HarnessError
    ├── UserError            bad input: one line on stderr, exit code 2
    │   ├── ConfigError      a key, a value, a YAML file, the command line
    │   ├── DataError        a TSV row, a prepared data folder
    │   ├── TraceError       a failure trace
    │   └── StoreError       a checkpoint, a run folder
    │       ├── Damaged      a file whose bytes are not those that were written
    │       ├── PointKept    a resume point that cannot be used now, and stays
    │       └── Moved        a folder of a run that is at work has been moved or removed
    ├── RankLost             ranks died; every other rank has answered. Recovery handles it; users never see it
    ├── RankFailed           the code of a rank raised: a bug in this package, not a failure under study
    ├── RunStopped           a run was asked to stop, and left a resume point: exit code 128 + the signal's number
    └── RunFailed            a run ended without a result: exit code 1

A message states what is wrong, where (``file:line`` or a dotted key), and what was expected. It may quote input, so
that of a ``UserError`` is made printable.
"""

from collections.abc import Iterable, Mapping
from typing import Any

_MOST_CHARACTERS = 600  # of a line of a message


class HarnessError(Exception):
    """Root of every error this package raises on purpose."""


class UserError(HarnessError):
    """An error in the user's input. The command line prints its message, a line a mistake, and exits with code 2.

    Control characters of the message are escaped, and a long line is shortened in its middle.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__("\n".join(map(printable, message.split("\n"))))


class ConfigError(UserError):
    """An invalid configuration: a key, a value, a YAML file or a command-line argument."""


class DataError(UserError):
    """An unusable click log, in raw or prepared form."""


class TraceError(UserError):
    """An unusable failure trace."""


class StoreError(UserError):
    """An unusable checkpoint or run folder."""


class Damaged(StoreError):
    """A file of a checkpoint or a resume point was read, and its bytes are not those that were written."""


class PointKept(StoreError):
    """A run cannot go on from its resume point now, for a reason other than damage. The point is kept."""


class Moved(StoreError):
    """The folder of a running run was moved or removed. Files in its place now belong to others."""


def printable(text: str, most: int = _MOST_CHARACTERS) -> str:
    """``text`` as one line of ``most`` characters at most: what no terminal shows is escaped, the middle cut out."""
    if not text.isprintable():
        text = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
    if len(text) <= most:
        return text
    half = (most - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


class RankLost(HarnessError):
    """A request failed because ranks are dead. Every rank that is not in ``ranks`` has answered.

    Attributes:
        ranks: names of the dead ranks, e.g. ``frozenset({"ps3"})``.
        replies: the other ranks' replies, by rank name. Replies of dead ranks are left out, also if they came.
        detail: the transport's error text by dead rank; it differs between engines and machines.
    """

    def __init__(
        self, ranks: Iterable[str], replies: Mapping[str, Any], detail: Mapping[str, str] | None = None
    ) -> None:
        self.ranks = frozenset(ranks)
        self.replies = {rank: reply for rank, reply in replies.items() if rank not in self.ranks}
        self.detail = dict(detail or {})
        known = {rank: f" ({self.detail[rank]})" if rank in self.detail else "" for rank in sorted(self.ranks)}
        super().__init__(f"lost {', '.join(rank + words for rank, words in known.items())}")

    def __reduce__(self) -> tuple[type["RankLost"], tuple[Any, ...]]:
        """Pickle the constructor's arguments: by default an exception is rebuilt from its message alone."""
        return RankLost, (self.ranks, self.replies, self.detail)


class RankFailed(HarnessError):
    """A rank is alive but its code raised; the message carries the remote traceback."""


class RunStopped(HarnessError):
    """A run was asked to stop, and did. ``step``: of the resume point that it left; None if it left none."""

    def __init__(self, step: int | None) -> None:
        self.step = step
        super().__init__("asked to stop" if step is None else f"asked to stop; a resume point of step {step} is kept")

    def __reduce__(self) -> tuple[type["RunStopped"], tuple[Any, ...]]:
        """Pickle the constructor's argument: by default an exception is rebuilt from its message alone."""
        return RunStopped, (self.step,)


class RunFailed(HarnessError):
    """A run ended without a valid result."""


class NoTrainerLeft(RunFailed):
    """Planned faults have killed the last trainer before a replacement took part."""
