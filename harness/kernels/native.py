"""Intrinsics that Numba lacks: prefetch, pointers, atomics, a clock, and functions of the system's C library."""

import ctypes
from collections.abc import Callable
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

for _symbol in ("clock_gettime", "sem_init", "sem_post", "sem_wait", "sched_yield", "pread", "pwritev"):
    # By names that clash with no library's.
    _address = ctypes.cast(getattr(ctypes.CDLL(None), _symbol), ctypes.c_void_p).value
    llvmlite.binding.add_symbol(f"harness_{_symbol}", _address)

_pointer = types.voidptr
pread = types.ExternalFunction("harness_pread", types.int64(types.int32, _pointer, types.uintp, types.int64))
"""Read from a file. Arguments: descriptor, address, bytes, offset. Returns the bytes that were read, or -1."""
pwritev = types.ExternalFunction("harness_pwritev", types.int64(types.int32, _pointer, types.int32, types.int64))
"""Write to a file. Arguments: descriptor, address of pairs (address, bytes), their number, offset. Returns as pread."""
yield_core = types.ExternalFunction("harness_sched_yield", types.int32())
"""Let the scheduler run another thread on this core."""
sem_init = types.ExternalFunction("harness_sem_init", types.int32(_pointer, types.int32, types.uint32))
"""Make a POSIX semaphore. Arguments: its address, 0 (only threads of this process share it), its initial value."""
sem_post = types.ExternalFunction("harness_sem_post", types.int32(_pointer))
sem_wait = types.ExternalFunction("harness_sem_wait", types.int32(_pointer))


def typed_intrinsic(function: Callable[..., Any]) -> Any:
    """Numba's decorator ``intrinsic``, with the type annotations that numba does not give it."""
    return intrinsic(function)


def _atomic(operation: str) -> Any:
    """Intrinsic: LLVM's atomic ``operation`` on the int64 at an address, sequentially consistent; the value before."""

    def atomic(_context: Any, address: Any, value: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
            return builder.atomic_rmw(operation, place, arguments[1], "seq_cst")

        return types.int64(types.uintp, types.int64), generate

    return typed_intrinsic(atomic)


fetch_add = _atomic("add")
exchange = _atomic("xchg")


@typed_intrinsic
def load(_context: Any, address: Any) -> Any:
    """Atomic load of the int64 at an address, sequentially consistent."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(place, "seq_cst", 8)

    return types.int64(types.uintp), generate


def _unaligned(num_bytes: int) -> Any:
    """Intrinsic: the little-endian number in ``num_bytes`` bytes at an address, aligned or not; uint64."""

    def load_them(_context: Any, address: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            place = builder.inttoptr(arguments[0], ir.IntType(8 * num_bytes).as_pointer())
            word = builder.load(place)
            word.align = 1
            return word if num_bytes == 8 else builder.zext(word, ir.IntType(64))

        return types.uint64(types.uintp), generate

    return typed_intrinsic(load_them)


load_1, load_4, load_8 = _unaligned(1), _unaligned(4), _unaligned(8)


@typed_intrinsic
def pointer(_context: Any, address: Any) -> Any:
    """Turn an address into a ``void *``, the type that C functions and ``carray`` take."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return _pointer(address), generate


@typed_intrinsic
def nanoseconds(_context: Any) -> Any:
    """The reading of the monotonic clock in ns, int64."""

    def generate(_context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        i32, i64 = ir.IntType(32), ir.IntType(64)
        time = cgutils.alloca_once(builder, i64, size=2)  # seconds, nanoseconds
        function_type = ir.FunctionType(i32, [i32, cgutils.voidptr_t])
        clock = cgutils.get_or_insert_function(builder.module, function_type, "harness_clock_gettime")
        builder.call(clock, [i32(1), builder.bitcast(time, cgutils.voidptr_t)])  # CLOCK_MONOTONIC
        seconds, rest = builder.load(time), builder.load(builder.gep(time, [i32(1)]))
        return builder.add(builder.mul(seconds, i64(1_000_000_000)), rest)

    return types.int64(), generate


@typed_intrinsic
def prefetch(_context: Any, address: Any) -> Any:
    """Ask the processor to load the cache line of an address, without waiting for it."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        i32 = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        to_read, to_all_caches, data = i32(0), i32(3), i32(1)
        builder.call(function, [builder.inttoptr(arguments[0], cgutils.voidptr_t), to_read, to_all_caches, data])
        return context.get_dummy_value()

    return types.none(types.uintp), generate
