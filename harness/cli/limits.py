"""What ``ulimit -v`` leaves of the address space, and what a command needs of it. Imports no library.

Below its needs a library raises what it likes, ends the process or waits for ever, so a command is refused before it
imports one.
"""

import errno
import os
import re
import resource

_LIBRARIES_BYTES = {"run_commands": 1.5e9, "reproduce": 1.5e9, "data_commands": 0.6e9}
"""Address space of a process of a command, by its module: libraries, and stacks and arenas of threads. Data and tables
are not in it. For other commands it is ``_OTHER_BYTES``."""
_OTHER_BYTES = 0.3e9
_CORE_BYTES = 0.08e9  # the two OpenBLAS of numpy and scipy take a stack and a buffer for each core

_NO_MEMORY = re.compile("MemoryError|failed to map segment|an(no|')t allocate memory")


def shortage(call: str) -> str | None:
    """What to say if this process may have less address space than the command ``call`` needs; else None."""
    limit_bytes = _limit_bytes()
    own_bytes = _LIBRARIES_BYTES.get(call.partition(":")[0], _OTHER_BYTES)
    needed_bytes = own_bytes + _CORE_BYTES * len(os.sched_getaffinity(0))
    if limit_bytes is None or limit_bytes >= needed_bytes:
        return None
    return (
        f"ulimit -v: expected at least {needed_bytes // 1024:,.0f} (kB of memory of each process of this command, "
        f"besides its data and model), got {limit_bytes // 1024:,}; `ulimit -v unlimited` removes the limit"
    )


def exhaustion(error: BaseException) -> str | None:
    """What to say if ``error``, or one that led to it, is that there is no more memory; else None."""
    while True:
        line = next(iter(str(error).splitlines()), type(error).__name__)
        is_errno = isinstance(error, OSError) and error.errno == errno.ENOMEM
        if isinstance(error, MemoryError) or is_errno or _NO_MEMORY.search(line):
            return f"out of memory: {line}{remark('MemoryError')}"
        if (earlier := error.__cause__ or error.__context__) is None:
            return None
        error = earlier


def remark(text: str) -> str:
    """The limit of this process, if there is one, and if ``text`` says of any process that it has no more memory."""
    limit_bytes = _limit_bytes()
    return f" (ulimit -v is {limit_bytes // 1024:,})" if limit_bytes is not None and _NO_MEMORY.search(text) else ""


def _limit_bytes() -> int | None:
    limit_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit_bytes == resource.RLIM_INFINITY else limit_bytes
