"""Calls of functions on other ranks that have not been answered yet."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.futures import Future

from harness.cluster.protocol import Reply
from harness.cluster.wire import reply_of
from harness.core.plans import Rank


@dataclass(frozen=True)
class Underway:
    """Calls in flight, several or one to a rank, and ranks to which sending failed, with the error texts."""

    futures: Mapping[Rank, Future[Any] | tuple[Future[Any], ...]] = field(default_factory=dict)
    detail: Mapping[Rank, str] = field(default_factory=dict)

    def replies(self) -> tuple[dict[Rank, Reply], dict[Rank, str]]:
        """Wait for all; the replies, a tuple of those of several, and the transport's error texts, by rank."""
        replies: dict[Rank, Reply] = {}
        detail = dict(self.detail)
        for rank, future in self.futures.items():
            # A rank's own exceptions travel as Failure values, so an error raised here is the transport's:
            # end of file, broken pipe, connection refused, or no answer within the timeout.
            try:
                replies[rank] = (
                    tuple(reply_of(each.wait()) for each in future)
                    if isinstance(future, tuple)
                    else reply_of(future.wait())
                )
            except RuntimeError as error:
                detail[rank] = words_of(error)
        return replies, detail


def words_of(error: RuntimeError) -> str:
    """The transport's error text, as one line of 200 characters at most."""
    return str(error).splitlines()[0][:200]
