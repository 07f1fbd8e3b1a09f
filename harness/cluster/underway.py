"""Requests and calls that ranks have not answered yet."""

from dataclasses import dataclass
from typing import Any

from torch.futures import Future

from harness.cluster.protocol import Reply
from harness.core.plans import Rank


@dataclass(frozen=True)
class Underway:
    """Requests in flight, and ranks to which sending failed, with the transport's error texts."""

    futures: dict[Rank, Future[Reply] | tuple[Future[Reply], ...]]
    detail: dict[Rank, str]


NOTHING = Underway({}, {})


@dataclass(frozen=True)
class Calls:
    """Calls in flight whose results do not matter, and ranks to which sending failed, with the error texts."""

    futures: dict[Rank, Future[Any]]
    detail: dict[Rank, str]

    def failing(self) -> dict[Rank, str]:
        """Wait for all; the ranks that failed, with the transport's error texts."""
        failed = dict(self.detail)
        for rank, future in self.futures.items():
            try:
                future.wait()
            except RuntimeError as error:
                failed[rank] = words_of(error)
        return failed


def words_of(error: RuntimeError) -> str:
    """The transport's error text, as one line of 200 characters at most."""
    return str(error).splitlines()[0][:200]
