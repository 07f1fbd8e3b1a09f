"""Requests to ranks, and what a suspended step waits for.

The step loop is a coroutine. Where it awaits replies it is suspended, and gives a :class:`Wait` to
:class:`harness.run.trainer.Trainer`, which waits for the replies, recovers from the deaths that this finds, and goes on
with the coroutine. So a step that is under way is a value, and only the trainer sees a death. There is no event loop.
"""

from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from harness.cluster.protocol import Cluster, Reply, Request
from harness.core.errors import RankLost
from harness.core.plans import Progress, Rank
from harness.recovery.injections import Injections
from harness.recovery.recoveries import Recoveries

Replies = dict[Rank, Reply]


@dataclass(eq=False)
class Sent:
    """Requests that have been sent.

    ``token``: the cluster's, for those in flight; None if none are. ``replies``: those that count so far.
    """

    requests: Mapping[Rank, Request]
    token: Any
    replies: Replies = field(default_factory=dict)


@dataclass(frozen=True)
class Wait:
    """What a step awaits: the replies to ``sent``, in rank order.

    ``progress``: the position of the run to which recovered shards belong, if a death is found.
    """

    sent: Sent
    progress: Progress

    def __await__(self) -> Generator["Wait", Replies, Replies]:
        return (yield self)


class Requests:
    """Sends the requests of the step loop. A request may be sent again as it is: no rank applies it twice.

    ``injections``: planned faults, some of which strike when a request has been sent.
    """

    def __init__(self, cluster: Cluster, recoveries: Recoveries, injections: Injections) -> None:
        self._cluster = cluster
        self._recoveries, self._injections = recoveries, injections
        self._in_flight: list[Sent] = []
        self.ranks = cluster.ranks
        """All PS ranks, in order."""

    def ask(self, requests: Mapping[Rank, Request], progress: Progress) -> Wait:
        """Send requests. To be awaited at once."""
        return Wait(self.start(requests), progress)

    def ask_once(self, requests: Mapping[Rank, Request]) -> Replies | None:
        """Send requests to PS ranks once, and wait for the replies here; None if one of them is missing.

        Dead ranks are not replaced: the next request of a step finds them.
        """
        try:
            return self._cluster.call(requests)
        except RankLost as lost:
            return lost.replies if requests.keys() <= lost.replies.keys() else None

    def start(self, requests: Mapping[Rank, Request]) -> Sent:
        """Send requests, to be awaited later by :meth:`finish`."""
        for kind in self._recoveries:
            requests = kind.accompany(requests)
        sent = Sent(requests, self._cluster.start(requests))
        self._in_flight.append(sent)
        self._injections.strike_on_sending(sent.requests)
        return sent

    def finish(self, sent: Sent, progress: Progress) -> Wait:
        """The replies to ``sent``. To be awaited at once."""
        return Wait(sent, progress)

    @contextmanager
    def held(self, sent: Sent) -> Iterator[None]:
        """A context in which ``sent``, which was served, loses the replies of ranks that are replaced."""
        self._in_flight.append(sent)
        try:
            yield
        finally:
            if sent in self._in_flight:  # no rollback meanwhile
                self._in_flight.remove(sent)

    def ask_again(self, sent: Sent, progress: Progress) -> Wait:
        """Await requests that were served once more: ranks that died since are found, and replacements serve them."""
        self._in_flight.append(sent)
        return Wait(sent, progress)

    def await_replies(self, sent: Sent) -> Replies:
        """Wait until ``sent`` is served; replies in rank order. Requests without a reply are sent again first.

        Raises RankLost. The replies of living ranks are kept, and this method is to be called again after the recovery.
        """
        self._await(sent)
        self._in_flight.remove(sent)
        return {rank: sent.replies[rank] for rank in sent.requests}

    def _await(self, sent: Sent) -> None:
        """Wait for replies to ``sent``, and keep them. If none are in flight, ask again for the missing replies."""
        if sent.token is None:
            sent.token = self._cluster.start({k: v for k, v in sent.requests.items() if k not in sent.replies})
        token, sent.token = sent.token, None
        try:
            self._keep(sent, self._cluster.finish(token))
        except RankLost as lost:
            self._keep(sent, lost.replies)
            raise

    def _keep(self, sent: Sent, replies: Mapping[Rank, Reply]) -> None:
        for kind in self._recoveries:
            replies = kind.received(sent.requests, replies)
        sent.replies |= replies

    def drain(self, lost: RankLost) -> RankLost:
        """Wait for all other requests in flight, since they end with the generation. Returns what is lost by then."""
        for sent in self._in_flight:
            if sent.token is not None:
                try:
                    self._await(sent)
                except RankLost as later:
                    lost = later
        return lost

    def drop_replies(self, ranks: Collection[Rank]) -> None:
        """Drop the replies of ``ranks``, which have been replaced: their requests are sent again."""
        for sent in self._in_flight:
            for rank in ranks:
                sent.replies.pop(rank, None)

    def reset(self) -> None:
        """Forget all requests in flight. They must have been drained."""
        self._in_flight = []
