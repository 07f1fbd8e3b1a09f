"""Whether the trainer has the data that the supervisor verified: they may be on different hosts."""

import socket
from collections.abc import Callable
from pathlib import Path

from harness.cluster.effects import Effects
from harness.cluster.protocol import Cluster
from harness.core.errors import DataError
from harness.core.plans import CHIEF
from harness.data.digest import verify
from harness.data.records import read_meta

Job = Callable[[Cluster, Effects], None]


def with_data(path: str, digest: str, job: Job, cluster: Cluster, effects: Effects) -> None:
    """``job(cluster, effects)``, if the folder ``path`` holds the data of this digest here. Raises DataError.

    Its records are read whole once, as :func:`harness.data.digest.verify` does.
    """
    refuse_other_data(Path(path), digest)
    job(cluster, effects)


def refuse_other_data(folder: Path, digest: str) -> None:
    """Raise DataError unless ``folder`` holds the data of this digest; the line names this host."""
    try:
        meta = read_meta(folder)
        if meta.digest == digest:
            return verify(folder, meta)
        why = f"got data of digest {meta.digest}"
    except (DataError, OSError) as error:
        why = str(error)
    raise DataError(
        f"data.path: expected the supervisor's data (digest {digest}) in {folder.absolute()} on {socket.gethostname()} "
        f"of {CHIEF}: {why}"
    )
