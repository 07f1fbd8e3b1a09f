"""What compiled loops call that Numba does not know: the BLAS that torch has loaded, semaphores, a prefetch.

Where a build of torch does not give out its BLAS, or it is not MKL, or the system has no POSIX semaphores,
``AVAILABLE`` is False, and only :func:`prefetch` may be called.

Products go by the Fortran interface (netlib.org/blas, SGEMM).
"""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_SYMBOLS = {
    "harness_sgemm": "sgemm_",
    "harness_blas_threads": "MKL_Set_Num_Threads_Local",
    "harness_clock": "clock_gettime",
    "harness_sem_init": "sem_init",
    "harness_sem_post": "sem_post",
    "harness_sem_wait": "sem_wait",
    "harness_yield": "sched_yield",
}
"""How compiled code calls them: under names of ours, which no other library can have taken."""


def _find() -> bool:
    """Tell the compiler where they are. Whether all were found."""
    try:
        # With it come the libraries that it needs itself, the system's among them.
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        found = {name: ctypes.cast(getattr(library, symbol), ctypes.c_void_p) for name, symbol in _SYMBOLS.items()}
    except (OSError, AttributeError):
        return False
    for name, function in found.items():
        assert function.value is not None
        llvmlite.binding.add_symbol(name, function.value)
    return True


AVAILABLE = _find()

SOURCE_STAMP = Path(__file__).stat().st_mtime_ns, Path(__file__).stat().st_size
"""Of this file, whose code gets into that of others: Numba keeps what it compiled, and looks at those others only."""

_pointer = types.voidptr
blas_threads = types.ExternalFunction("harness_blas_threads", types.int32(types.int32))
"""Have the BLAS use so many threads where this one calls it; 0: as many as all do. Gives what was set before."""
give_way = types.ExternalFunction("harness_yield", types.int32())
"""Let another thread have this core."""
sem_init = types.ExternalFunction("harness_sem_init", types.int32(_pointer, types.int32, types.uint32))
"""Make a POSIX semaphore at an address; then 0, and how often :data:`sem_wait` returns at once."""
sem_post = types.ExternalFunction("harness_sem_post", types.int32(_pointer))
sem_wait = types.ExternalFunction("harness_sem_wait", types.int32(_pointer))


def _intrinsic(function: Callable[..., Any]) -> Any:
    """What compiled functions call with values of those types of which ``function`` is told."""
    return intrinsic(function)


def _atomic(operation: str) -> Any:
    """``operation`` of LLVM with an int64 at an address and a value, at once for all threads; gives what was there.

    Whoever sees the new value sees all that this thread wrote before.
    """

    def atomic(_context: Any, address: Any, value: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
            return builder.atomic_rmw(operation, place, arguments[1], "seq_cst")

        return types.int64(types.uintp, types.int64), generate

    return _intrinsic(atomic)


fetch_add = _atomic("add")
exchange = _atomic("xchg")


@_intrinsic
def load(_context: Any, address: Any) -> Any:
    """The int64 at an address, which other threads change."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(place, "seq_cst", 8)

    return types.int64(types.uintp), generate


@_intrinsic
def pointer(_context: Any, address: Any) -> Any:
    """An address, to call a function with."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return _pointer(address), generate


@_intrinsic
def nanoseconds(_context: Any) -> Any:
    """Of a clock that only goes forward, int64."""

    def generate(_context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        i32, i64 = ir.IntType(32), ir.IntType(64)
        time = cgutils.alloca_once(builder, i64, size=2)  # seconds, nanoseconds
        function_type = ir.FunctionType(i32, [i32, cgutils.voidptr_t])
        clock = cgutils.get_or_insert_function(builder.module, function_type, "harness_clock")
        builder.call(clock, [i32(1), builder.bitcast(time, cgutils.voidptr_t)])  # CLOCK_MONOTONIC
        seconds, rest = builder.load(time), builder.load(builder.gep(time, [i32(1)]))
        return builder.add(builder.mul(seconds, i64(1_000_000_000)), rest)

    return types.int64(), generate


@_intrinsic
def prefetch(_context: Any, address: Any) -> Any:
    """Have the processor bring what stands at an address near, without waiting for it."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        i32 = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        to_read, to_all_caches, data = i32(0), i32(3), i32(1)
        builder.call(function, [builder.inttoptr(arguments[0], cgutils.voidptr_t), to_read, to_all_caches, data])
        return context.get_dummy_value()

    return types.none(types.uintp), generate


@_intrinsic
def sgemm(  # noqa: PLR0917 - BLAS takes values by place
    _context: Any,
    transposes_a: Any,
    transposes_b: Any,
    m: Any,
    n: Any,
    k: Any,
    alpha: Any,
    a: Any,
    lda: Any,
    b: Any,
    ldb: Any,
    beta: Any,
    c: Any,
    ldc: Any,
) -> Any:
    """C <- alpha op(A) op(B) + beta C of float32 matrices in Fortran's order; ``a``, ``b``, ``c`` are addresses."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def by_reference(value: Any, type_: Any) -> Any:
            """BLAS wants it so: letters for flags, and integers of 32 bits."""
            if type_ == types.boolean:
                letters = (ir.IntType(8)(ord(letter)) for letter in "TN")
                value = builder.select(builder.trunc(value, ir.IntType(1)), *letters)
            elif type_ == types.int64:
                value = builder.trunc(value, ir.IntType(32))
            return builder.bitcast(cgutils.alloca_once_value(builder, value), cgutils.voidptr_t)

        passed = [
            builder.inttoptr(value, cgutils.voidptr_t) if type_ == types.uintp else by_reference(value, type_)
            for value, type_ in zip(arguments, signature.args, strict=True)
        ]
        function_type = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t] * len(passed))
        builder.call(cgutils.get_or_insert_function(builder.module, function_type, "harness_sgemm"), passed)
        return context.get_dummy_value()

    flag, integer, real, address = types.boolean, types.int64, types.float32, types.uintp
    sizes = (integer, integer, integer)
    matrices = (real, address, integer, address, integer, real, address, integer)
    return types.none(flag, flag, *sizes, *matrices), generate
