"""The embedding clients by ``cache.mode``. A new client is a subclass of ``EmbeddingClient`` and an entry here."""

from collections.abc import Callable

from harness.client.direct import DirectClient
from harness.client.embedding_client import ClientSpec, EmbeddingClient
from harness.client.lookahead import LookaheadClient
from harness.client.staleness import StaleClient
from harness.core.choices import CLIENT_NAMES, PartTable

CLIENTS: PartTable[Callable[[ClientSpec], EmbeddingClient]] = PartTable(
    CLIENT_NAMES, {"none": DirectClient, "lookahead": LookaheadClient, "stale": StaleClient}
)
