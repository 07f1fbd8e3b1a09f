"""The rights of files, as they hold for others than root."""

import os
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

_NOBODY = 65534


@contextmanager
def unprivileged(folder: Path) -> Iterator[None]:
    """Work in ``folder``, by relative paths, as another user if this one is root, whom no right stops."""
    user = os.geteuid()
    folder.chmod(0o755)
    with chdir(folder):
        os.seteuid(user or _NOBODY)
        try:
            yield
        finally:
            os.seteuid(user)
