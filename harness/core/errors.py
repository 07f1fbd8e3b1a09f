"""The exceptions that this package raises on purpose.

    HarnessError
    ├── UserError            bad input: one line on stderr, exit code 2
    │   ├── ConfigError      a key, a value, a YAML file, the command line
    │   ├── DataError        a TSV row, a prepared data folder
    │   ├── TraceError       a failure trace
    │   └── StoreError       a checkpoint, a run folder
    │       ├── Damaged      a file whose bytes are not those that were written
    │       └── PointKept    a resume point that cannot be used now, and stays
    ├── RankLost             ranks died; every other rank has answered. Recovery handles it; users never see it
    ├── RankFailed           the code of a rank raised: a bug in this package, not a failure under study
    ├── RunStopped           a run was asked to stop, and did: exit code 128 + the signal's number
    └── RunFailed            a run ended without a result: exit code 1
        └── MustStartAnew    ranks died, and the run can go on from a resume point alone

Other modules derive a few more, of use to them alone. A message states what is wrong, where (``file:line`` or a dotted
key), and what was expected. A message of a ``UserError`` may quote input, so it is made printable.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

_MOST_CHARACTERS = 600  # of a line of a message


HELD: dict[int, str] = {}
"""The folders that this process holds open (``harness.files.held``): file descriptor, and path as the user wrote it."""


def shown(text: object) -> str:
    """``text`` with the user's path of a held folder in place of each path that leads to it by its descriptor."""
    return re.sub(r"/proc/(?:self|\d+)/fd/(\d+)", lambda found: HELD.get(int(found[1]), found[0]), str(text))


class HarnessError(Exception):
    """Root of every error this package raises on purpose. Its message is :func:`shown`."""

    def __init__(self, message: str = "") -> None:
        super().__init__(shown(message))


class UserError(HarnessError):
    """An error in the user's input. The command line prints its message, one line for each mistake, and exits with 2.

    The lines of the message are made :func:`printable`.
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


def printable(text: str, most: int = _MOST_CHARACTERS) -> str:
    """``text`` as one line: control characters are escaped, and the middle of more than ``most`` characters is cut."""
    if not text.isprintable():
        text = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
    if len(text) <= most:
        return text
    half = (most - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


class RankLost(HarnessError):
    """A request failed because ranks are dead. Every other rank that was asked has answered.

    Attributes:
        ranks: names of the dead ranks, e.g. ``frozenset({"ps3"})``.
        replies: the other ranks' replies, by rank name. A reply that a dead rank sent before its death is left out.
        detail: the transport's error text by dead rank, if known; it differs between engines and machines.
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
    """A run was asked to stop, and did. ``step``: finished steps at the resume point that it left; None without one."""

    def __init__(self, step: int | None) -> None:
        self.step = step
        super().__init__("asked to stop" if step is None else f"asked to stop; a resume point of step {step} is kept")

    def __reduce__(self) -> tuple[type["RunStopped"], tuple[Any, ...]]:
        return RunStopped, (self.step,)


class RunFailed(HarnessError):
    """A run ended without a valid result."""


class MustStartAnew(RunFailed):
    """All ranks must start anew from a resume point: ``trainer0`` died, or a rank while it loaded its state."""
