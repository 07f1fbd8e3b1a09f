"""The contract of a store: the place where a run keeps its checkpoints (docs/EXTENDING.md has one of your own).

A checkpoint is a base and deltas of each shard, the dense network, and the manifest that names them. The PS ranks and
the trainer write their own contents, all at once; the supervisor commits the manifest, last.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from harness.core.plans import Rank
from harness.core.resumable import Resumable, State
from harness.store.manifest import RAW, FileRecord, Manifest
from harness.store.rows import Part, RowSource


class StoreHooks:
    """What a store may do besides: no-ops by default. The supervisor calls all but :meth:`held`."""

    root: Path | None
    """The folder that all ranks must share; None: there is none."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root

    def open(self) -> None:
        """Prepare for the first write. No rank is there yet."""

    def close(self) -> None:
        """Finish what is done in the background, and remove what killed writers have left. No rank is there any more.

        Called at the end of a run, also after an error.
        """

    def pin(self, sequences: Iterable[int]) -> None:
        """Have later commits keep the checkpoints ``sequences``, and none of a former call, besides the newest ones."""

    def rewind(self, sequence: int | None) -> None:
        """Make checkpoint ``sequence`` the newest one again, without the later ones; None: there is no checkpoint."""

    def check(self, sequence: int) -> None:
        """Raise StoreError unless checkpoint ``sequence`` is there, whole. A run is about to be resumed."""

    def edit_newest_file(self, rank: Rank, change: Callable[[bytes], bytes]) -> str | None:
        """See :meth:`harness.core.faults.FileFaults.edit_newest_file`. None: there is nothing that could be changed."""
        return None

    def flip_bit(self, rank: Rank, number: int) -> tuple[str, int] | None:
        """See :meth:`harness.core.faults.FileFaults.flip_bit`. None: there is nothing that could be changed."""
        return None

    def held(self, rank: Rank) -> Resumable:
        """What this store holds of ``rank`` in memory alone, to be kept in resume points: by default nothing."""
        return Resumable()


class Store(StoreHooks, ABC):
    """Keeps the checkpoints of one run.

    One save is under way at a time. Its contents have its ``sequence`` number, which is above those of all commits.
    They count once the manifest is committed. On engine ``rpc`` each process has a copy of the store, made by pickle.
    Methods raise StoreError that names the content which they cannot write or read.
    """

    @abstractmethod
    def write_base(self, rank: Rank, sequence: int, step: int, rows: RowSource, *, encoding: str = RAW) -> FileRecord:
        """Write the whole shard as of ``step``, and return its record. Calls ``rows.begin()`` before the first read."""

    @abstractmethod
    def write_delta(
        self, rank: Rank, sequence: int, step: int, rows: RowSource, parts: Iterable[Part], *, encoding: str = RAW
    ) -> FileRecord:
        """Write the rows that ``parts`` select, as :meth:`write_base`. No row is in two parts; there may be none."""

    @abstractmethod
    def write_dense(
        self, rank: Rank, sequence: int, step: int, tensors: Mapping[str, Tensor], extra: State
    ) -> FileRecord:
        """Write the dense network, and ``extra`` for readers of the checkpoint. The tensors may change afterwards."""

    @abstractmethod
    def read_rows(self, records: Sequence[FileRecord], rows_MD: Tensor) -> None:
        """Set ``rows_MD`` to the newest saved version of each row. ``records``: a base and its deltas, oldest first.

        After an error some rows are overwritten and some are not: another checkpoint must be read before their use.
        """

    @abstractmethod
    def read_dense(self, record: FileRecord) -> dict[str, Tensor]:
        """The tensors that :meth:`write_dense` wrote, on the CPU. The caller does not change them."""

    @abstractmethod
    def compact(self, records: Sequence[FileRecord], sequence: int) -> FileRecord:
        """Merge a base and its deltas into a new base of save ``sequence``, in the raw encoding; return its record.

        ``records`` are the first ones of the newest checkpoint's, which can still be read afterwards.
        """

    @abstractmethod
    def discard(self, rank: Rank, sequence: int) -> None:
        """Remove what ``rank`` wrote for save ``sequence``, which was not committed. A no-op if there is nothing."""

    @abstractmethod
    def commit(self, manifest: Manifest) -> None:
        """Make ``manifest`` the newest checkpoint. What it does not name may be dropped. Called by the supervisor.

        After an error the previous checkpoint is still valid.
        """
