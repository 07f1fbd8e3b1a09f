"""Ahead-of-time compilation of loops by Numba, with machine code cached on disk.

A batch has some 3,000 accesses. An operation of numpy or torch on so few costs 5 to 50 us, most of it not arithmetic.
Compiled loops run without the interpreter lock, on one thread, and in the order that is written: no sum is reordered,
and a product is fused with a sum only where the code says so, so every machine computes the same bits.

Conventions of all files of this folder: arrays are in C order; a result is a new array unless its parameter is named
``out_…`` or the docstring says that an argument changes; no index is checked, the caller has made or checked them.

Machine code is cached in ``__pycache__``, or in ``NUMBA_CACHE_DIR`` if that is set, in a folder named by a digest of
all sources of this folder: a compiled loop holds code of other files too, and Numba looks at one file only.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import config as numba_settings

_F = TypeVar("_F", bound=Callable[..., Any])
_HERE = Path(__file__).parent

AHEAD = 16
"""How many rows or records ahead of their use loops prefetch. A larger number is no faster."""
FLOATS_PER_LINE = 16
"""float32 numbers of a cache line."""


def compiled_for(signature: Any) -> Callable[[_F], _F]:
    """Compile a function for these types when its module is imported: no step waits for a compiler.

    ``signature``: one of Numba's signatures, or a list of them. If no folder can be written to, or a cached file cannot
    be read, the function is compiled without a cache. The folder of such a file is emptied.
    """
    signatures = signature if isinstance(signature, list) else [signature]

    def compile_it(function: _F) -> _F:
        if CACHE_FOLDER is not None:
            try:
                return _compile(function, signatures, CACHE_FOLDER)
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001 - a torn file raises anything; a mistake in the function is raised below
                shutil.rmtree(CACHE_FOLDER, ignore_errors=True)
                with suppress(OSError):  # functions that follow are cached again
                    CACHE_FOLDER.mkdir()
        return _compile(function, signatures, None)

    return compile_it


def _compile(function: _F, signatures: Sequence[Any], cache_folder: Path | None) -> _F:
    """The compiled function. Numba reads the folder from its settings when it decorates the function."""
    settings: Any = numba_settings
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(cache_folder or "")
    try:
        compiled: Any = numba.njit(cache=cache_folder is not None, nogil=True)(function)
    finally:
        settings.CACHE_DIR = before
    for each in signatures:
        compiled.compile(each)
    compiled.disable_compile()
    return compiled


def is_cold() -> bool:
    """Whether importing the loops compiles them, which takes about 20 s: the cache is empty, or there is none."""
    return CACHE_FOLDER is None or not any(CACHE_FOLDER.rglob("*.nbi"))


def _make_cache_folder() -> Path | None:
    """The cache folder of the present sources; None if none can be written. Removes folders of older sources."""
    sources = sorted(_HERE.glob("*.py"))
    content = b"\0".join(part for source in sources for part in (source.name.encode(), source.read_bytes()))
    name = f"kernels-{hashlib.blake2b(content, digest_size=8).hexdigest()}"
    beside, elsewhere = _HERE / "__pycache__", Path("~/.cache/cpr-harness")
    asked = vars(numba_settings).get("CACHE_DIR")
    for parent in [Path(asked)] if asked else [beside, elsewhere]:
        with suppress(OSError, RuntimeError):  # not writable; no home
            folder = parent.expanduser() / name
            folder.mkdir(parents=True, exist_ok=True)
            if parent == beside:
                for old in set(parent.glob("kernels-*")) - {folder}:
                    shutil.rmtree(old, ignore_errors=True)
            if os.access(folder, os.W_OK):
                return folder
    return None


_settings: Any = numba_settings
_settings.DISABLE_JIT = 0  # intrinsics exist as machine code only
CACHE_FOLDER = _make_cache_folder()
