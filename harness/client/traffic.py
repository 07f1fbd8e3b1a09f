"""Rows and bytes moved by a caching client, counted by the same rules for every client.

Bytes are those of all tensors on the wire: a row id 8, a value 4, a count of updates 4, a flag 1.
"""

from dataclasses import dataclass

ID_BYTES, VALUE_BYTES, COUNT_BYTES, FLAG_BYTES = 8, 4, 4, 1


@dataclass
class Traffic:
    """Rows and bytes moved between a cache and the PS ranks. ``dim``: values of a gradient; ``width``: of a row.

    ``sent_bytes`` go to the ranks, ``received_bytes`` come from them. ``uncached_bytes``: the bytes without a cache,
    with one deduplicated message a step and rank. ``peak_rows``: the most rows cached or in flight at one time.
    """

    dim: int
    width: int
    accessed_rows: int = 0
    fetched_rows: int = 0
    written_rows: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    uncached_bytes: int = 0
    peak_rows: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a row: its values and its optimizer's state."""
        return VALUE_BYTES * self.width

    def access(self, num_rows: int) -> None:
        """Count reads of distinct rows; without a cache each costs a lookup and the push of a gradient."""
        self.accessed_rows += num_rows
        moved_bytes = 2 * ID_BYTES + self.row_bytes + VALUE_BYTES * self.dim + COUNT_BYTES + FLAG_BYTES
        self.uncached_bytes += num_rows * moved_bytes

    def fetch(self, num_rows: int) -> None:
        """Count rows fetched from the ranks."""
        self.fetched_rows += num_rows
        self.sent_bytes += num_rows * ID_BYTES
        self.received_bytes += num_rows * self.row_bytes

    def write_back(self, num_rows: int) -> None:
        """Count rows that are sent to the ranks, each with its number of updates."""
        self.written_rows += num_rows
        self.sent_bytes += num_rows * (ID_BYTES + self.row_bytes + COUNT_BYTES)

    def push(self, num_rows: int) -> None:
        """Count gradients of ``num_rows`` rows that are sent to the ranks; each has a count and a flag beside it."""
        self.written_rows += num_rows
        self.sent_bytes += num_rows * (ID_BYTES + VALUE_BYTES * self.dim + COUNT_BYTES + FLAG_BYTES)

    def peak(self, num_rows: int) -> None:
        """Record that ``num_rows`` rows are cached or in flight, for ``peak_rows``."""
        self.peak_rows = max(self.peak_rows, num_rows)

    def summary(self) -> dict[str, float]:
        """The counts as fields of the Finished event's ``cache``."""
        return {
            "hit_rate": 1 - self.fetched_rows / self.accessed_rows if self.accessed_rows else 0.0,
            "accessed_rows": self.accessed_rows,
            "fetched_rows": self.fetched_rows,
            "written_rows": self.written_rows,
            "peak_rows": self.peak_rows,
            "bytes": self.sent_bytes + self.received_bytes,
            "sent_bytes": self.sent_bytes,
            "received_bytes": self.received_bytes,
            "uncached_bytes": self.uncached_bytes,
        }
