"""The embedding clients by ``cache.mode``. To add one: a class (``client.protocol``), a function here, one entry."""

from collections.abc import Callable
from dataclasses import dataclass

from harness.client.direct import DirectClient
from harness.client.lookahead import LookaheadClient
from harness.client.protocol import ClientSpec, EmbeddingClient
from harness.client.stale import StaleClient
from harness.config.model import CacheConfig
from harness.core.names import CLIENT_NAMES, PartTable
from harness.core.pls import UpdateCounter
from harness.core.trackers import Tracker


@dataclass(frozen=True, kw_only=True)
class CacheSpec:
    """The further parameters of a caching client, besides its ``ClientSpec``.

    ``count_updates`` counts updates as the ledger does. ``tracker``: class of the ranks' tracker, for the calls that it
    needs.
    """

    config: CacheConfig
    count_updates: UpdateCounter
    tracker: type[Tracker]


def _direct(spec: ClientSpec, cache: CacheSpec) -> EmbeddingClient:
    return DirectClient(spec)


def _lookahead(spec: ClientSpec, cache: CacheSpec) -> EmbeddingClient:
    return LookaheadClient(
        spec,
        lookahead=cache.config.lookahead,
        max_rows=cache.config.max_rows,
        count_updates=cache.count_updates,
        needs_samples=cache.tracker.needs_samples,
        needs_touches=cache.tracker.needs_touches,
        needs_norms=cache.tracker.needs_norms,
    )


def _stale(spec: ClientSpec, cache: CacheSpec) -> EmbeddingClient:
    return StaleClient(
        spec,
        staleness=cache.config.staleness,
        num_workers=cache.config.workers,
        max_rows=cache.config.max_rows,
        count_updates=cache.count_updates,
    )


CLIENTS: PartTable[Callable[[ClientSpec, CacheSpec], EmbeddingClient]] = PartTable(
    CLIENT_NAMES, {"none": _direct, "lookahead": _lookahead, "stale": _stale}
)
