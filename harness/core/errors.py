"""The error tree.

    HarnessError
    ├── UserError            bad input: one line on stderr, exit code 2
    │   ├── ConfigError      a key, a value, a YAML file, the command line
    │   ├── DataError        a TSV row, a prepared data folder
    │   ├── TraceError       a failure trace
    │   └── StoreError       a checkpoint, a run folder
    ├── RankLost             ranks died; every other rank has answered. Recovery handles it; users never see it
    ├── RankFailed           the code of a rank raised: a bug in this package, not a failure under study
    └── RunFailed            a run ended without a result: exit code 1

A message says what is wrong, where (``file:line`` or a dotted key), and what would be right.
"""

from collections.abc import Iterable, Mapping
from typing import Any


class HarnessError(Exception):
    """Root of every error this package raises on purpose."""


class UserError(HarnessError):
    """Input that the user can put right. The command line prints it as one line and exits with 2."""


class ConfigError(UserError):
    """A configuration that cannot be used."""


class DataError(UserError):
    """Click logs, raw or prepared, that cannot be used."""


class TraceError(UserError):
    """A failure trace that cannot be used."""


class StoreError(UserError):
    """A checkpoint or run folder that cannot be used."""


class RankLost(HarnessError):
    """Requests failed because ranks are dead. Every rank that is not named here has answered.

    Attributes:
        ranks: the names of the dead, e.g. ``frozenset({"ps3"})``.
        replies: replies of the other ranks, by rank.
        detail: the transport's error text, one string per dead rank (part of the machine, not of the run).
    """

    def __init__(
        self, ranks: Iterable[str], replies: Mapping[str, Any], detail: Mapping[str, str] | None = None
    ) -> None:
        self.ranks = frozenset(ranks)
        self.replies = dict(replies)
        self.detail = dict(detail or {})
        super().__init__(f"lost {', '.join(sorted(self.ranks))}")

    def __reduce__(self) -> tuple[type["RankLost"], tuple[Any, ...]]:
        """Pickle by the arguments: an exception's own way passes the message alone."""
        return RankLost, (self.ranks, self.replies, self.detail)


class RankFailed(HarnessError):
    """A rank is alive but its code raised; the message carries the remote traceback."""


class RunFailed(HarnessError):
    """A run could not be finished."""
