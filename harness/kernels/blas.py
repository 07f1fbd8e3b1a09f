"""Matrix products of compiled code, by the BLAS that torch has loaded: MKL, through its Fortran interface.

Where torch was built with another BLAS, or does not export it, or the system has no POSIX semaphores, ``AVAILABLE`` is
False and nothing that calls :func:`sgemm` can be compiled. Source: netlib.org/blas, SGEMM.
"""

from pathlib import Path
from typing import Any

import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils

from harness.kernels.native import HAS_SEMAPHORES, link, typed_intrinsic

_LIBRARY = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
_SYMBOLS = {"harness_sgemm": "sgemm_", "harness_blas_threads": "MKL_Set_Num_Threads_Local"}

AVAILABLE = HAS_SEMAPHORES and link(_SYMBOLS, str(_LIBRARY))
"""Whether the compiled dense network can run here."""

blas_threads = types.ExternalFunction("harness_blas_threads", types.int32(types.int32))
"""Set how many threads the BLAS uses for calls of this thread; 0: the process's setting. Returns the value before."""


@typed_intrinsic
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
            """The address of a value as BLAS takes it: letters for flags, integers of 32 bits."""
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
