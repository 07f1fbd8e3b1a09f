"""Fault ``torn``, for the column ``fault`` of a trace: ``20,ps1,torn``."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from harness.core.faults import FAULTS, Effect, Effects, Fault, FileFaults, PlannedFault, RankFaults
from harness.core.plans import Rank


class Torn(Fault):
    """The newest file of each rank loses its second half, as after a crash of a machine that syncs nothing."""

    damage: ClassVar[str] = "its second half was cut off"
    details: ClassVar[Mapping[str, Any]] = {"path": str}
    words: ClassVar[str] = "{path} cut in half"

    def strike(self, planned: PlannedFault, on: Sequence[Rank], ranks: RankFaults, files: FileFaults) -> Effects:
        """See Fault.strike."""
        paths = {rank: files.edit_newest_file(rank, lambda data: data[: len(data) // 2]) for rank in on}
        return {rank: Effect({"path": path}) for rank, path in paths.items() if path}


FAULTS["torn"] = Torn
