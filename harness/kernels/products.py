"""Matrix products of float32 for compiled code, with the same bits on every processor.

Each element of a product is one chain of fused multiply-adds over k, in ascending order and from zero. A BLAS cuts k in
blocks whose length depends on the processor and on the sizes, and so do its bits. Here vector width and tile change the
speed only.

Method: a panel of the right matrix is copied so that the innermost loop reads it in order, and a tile of the result
stays in registers over the whole of k. Source: Goto, van de Geijn, Anatomy of High-Performance Matrix Multiplication,
2008, without its blocks of k: the matrices of DLRM are small enough.
"""

import platform
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from harness.kernels.native import typed_intrinsic

_FEATURES = llvmlite.binding.get_host_cpu_features()

AVAILABLE = bool(_FEATURES.get("fma")) or platform.machine() == "aarch64"
"""Whether the compiled dense network can run here: the processor has fused multiply-adds."""

_FLOAT, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_BYTES = 4  # of a float


@dataclass(frozen=True)
class Tile:
    """A part of a result that stays in registers: ``num_rows`` rows of ``num_vectors`` vectors of ``lanes`` floats."""

    lanes: int
    num_vectors: int
    num_rows: int

    @property
    def width(self) -> int:
        """Columns of a tile and of a panel."""
        return self.lanes * self.num_vectors

    @cached_property
    def multiply(self) -> Any:
        """Compiled function: out <- left right or, if ``adds``, out <- out + factor (left right).

        The product is rounded as the module says; the sum with ``out`` is one more fused multiply-add, rounded once.

        Arguments: m, n, k (at least 1); address, row step and column step of left (m, k) and of right (k, n); address
        and row step of out (m, n); factor; adds. A step is the distance in bytes of neighbouring rows or columns, so an
        operand may be a transposed view. One of the steps of right must be 4; the column step of out is 4.
        """
        multiply_tile, copy_rows, copy_columns = self._multiply_tile(), self._copy_rows(), self._copy_columns()
        num_rows, width, lanes = self.num_rows, self.width, self.lanes

        @numba.njit(nogil=True, error_model="numpy")
        def multiply(  # noqa: PLR0917 - compiled functions take values by place
            m: int,
            n: int,
            k: int,
            left: Any,
            left_row_step: int,
            left_column_step: int,
            right: Any,
            right_row_step: int,
            right_column_step: int,
            out: Any,
            out_row_step: int,
            factor: Any,
            adds: Any,
        ) -> None:
            memory = np.empty((k + lanes) * width + 16, np.float32)
            panel = np.uintp(memory.ctypes.data + (-memory.ctypes.data & 63))
            for j in range(0, n, width):
                num_columns = min(width, n - j)
                first = np.uintp(right + j * right_column_step)
                if right_column_step == _BYTES:
                    copy_rows(first, right_row_step, k, num_columns, panel)
                else:
                    copy_columns(first, right_column_step, k, num_columns, panel)
                for i in range(0, m, num_rows):
                    multiply_tile(
                        k,
                        np.uintp(left + i * left_row_step),
                        left_row_step,
                        left_column_step,
                        panel,
                        np.uintp(out + i * out_row_step + j * _BYTES),
                        out_row_step,
                        min(num_rows, m - i),
                        num_columns,
                        np.float32(factor),
                        adds,
                    )
            memory[0] = 0  # the panel is read by its address: the array must live until here

        return multiply

    @property
    def _vector(self) -> ir.VectorType:
        return ir.VectorType(_FLOAT, self.lanes)

    def _multiply_tile(self) -> Any:
        """Intrinsic: computes a tile of the result, and writes ``num_rows`` rows and ``num_columns`` columns of it."""
        integer, address = types.int64, types.uintp

        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            """Emit it: the whole tile is computed; rows and columns beyond those wanted are not written.

            ``row_step``, ``k_step``, ``out_step``: bytes from one row of left, column of left, row of out to the next.
            """
            k, left, row_step, k_step, panel, out, out_step, num_wanted, num_columns, factor, adds = arguments
            # Rows of left beyond the last wanted one may not exist: that one is read again in their place.
            rows = [
                builder.add(left, builder.mul(_or_last(builder, row, num_wanted), row_step))
                for row in range(self.num_rows)
            ]
            sums = self._sums(builder, k, rows, k_step, panel)
            masks = self._masks(builder, num_columns)
            factors = _repeat(builder, factor, self._vector)
            for row in range(self.num_rows):
                with builder.if_then(builder.icmp_signed("<", _I64(row), num_wanted)):
                    places = self._places(builder, builder.add(out, builder.mul(_I64(row), out_step)))
                    with builder.if_else(builder.trunc(adds, ir.IntType(1))) as (then, otherwise):
                        with then:
                            for place, mask, value in zip(places, masks, sums[row], strict=True):
                                before = self._load(builder, place, mask)
                                self._store(builder, self._fma(builder, factors, value, before), place, mask)
                        with otherwise:
                            for place, mask, value in zip(places, masks, sums[row], strict=True):
                                self._store(builder, value, place, mask)
            return context.get_dummy_value()

        @typed_intrinsic
        def multiply_tile(  # noqa: PLR0917 - compiled functions take values by place
            _context: Any,
            k: Any,
            left: Any,
            row_step: Any,
            k_step: Any,
            panel: Any,
            out: Any,
            out_step: Any,
            num_rows: Any,
            num_columns: Any,
            factor: Any,
            adds: Any,
        ) -> Any:
            sides = (integer, address, integer, integer, address, address, integer)
            return types.none(*sides, integer, integer, types.float32, types.boolean), generate

        return multiply_tile

    def _sums(self, builder: Any, k: Any, rows: list[Any], k_step: Any, panel: Any) -> list[list[Any]]:
        """Emit the loop over k (at least 1), and return the tile's sums: for each row its vectors.

        ``rows``: addresses of the rows of left. ``k_step``: bytes from an element of such a row to the next. ``panel``:
        address of the copied panel of right, one line of ``width`` floats for each k.
        """
        before = builder.block
        loop, end = builder.append_basic_block("multiply"), builder.append_basic_block("multiplied")
        builder.branch(loop)
        builder.position_at_end(loop)

        def loop_variable(first: Any, type_: Any = _I64) -> Any:
            variable = builder.phi(type_)
            variable.add_incoming(first, before)
            return variable

        index, left_offset, panel_line = loop_variable(_I64(0)), loop_variable(_I64(0)), loop_variable(panel)
        zero = ir.Constant(self._vector, [0.0] * self.lanes)
        sums = [[loop_variable(zero, self._vector) for _ in range(self.num_vectors)] for _ in rows]
        right = [builder.load(place, align=_BYTES * self.lanes) for place in self._places(builder, panel_line)]
        next_sums = []
        for row, row_sums in zip(rows, sums, strict=True):
            number = builder.load(_pointer(builder, builder.add(row, left_offset), _FLOAT), align=_BYTES)
            left = _repeat(builder, number, self._vector)
            next_sums.append([self._fma(builder, left, *pair) for pair in zip(right, row_sums, strict=True)])
        for row_sums, row_next in zip(sums, next_sums, strict=True):
            for variable, value in zip(row_sums, row_next, strict=True):
                variable.add_incoming(value, loop)
        next_index = builder.add(index, _I64(1))
        index.add_incoming(next_index, loop)
        left_offset.add_incoming(builder.add(left_offset, k_step), loop)
        panel_line.add_incoming(builder.add(panel_line, _I64(_BYTES * self.width)), loop)
        builder.cbranch(builder.icmp_signed("<", next_index, k), loop, end)
        builder.position_at_end(end)
        return next_sums

    def _copy_rows(self) -> Any:
        """Intrinsic: copies a panel from a matrix with contiguous rows."""

        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            source, row_step, k, num_columns, panel = arguments
            masks = self._masks(builder, num_columns)
            with cgutils.for_range(builder, k) as loop:
                row = builder.add(source, builder.mul(loop.index, row_step))
                line = builder.add(panel, builder.mul(loop.index, _I64(_BYTES * self.width)))
                for place, mask, to in zip(self._places(builder, row), masks, self._places(builder, line), strict=True):
                    builder.store(self._load(builder, place, mask), to, align=_BYTES * self.lanes)
            return context.get_dummy_value()

        @typed_intrinsic
        def copy_rows(_context: Any, source: Any, row_step: Any, k: Any, num_columns: Any, panel: Any) -> Any:
            return _COPY, generate

        return copy_rows

    def _copy_columns(self) -> Any:
        """Intrinsic: copies a panel from a matrix with contiguous columns, transposed in registers."""

        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            source, column_step, k, num_columns, panel = arguments
            num_blocks = builder.sdiv(builder.add(k, _I64(self.lanes - 1)), _I64(self.lanes))
            with cgutils.for_range(builder, num_blocks) as loop:
                first = builder.mul(loop.index, _I64(self.lanes))
                mask = self._mask(builder, builder.sub(k, first), 0)
                for vector in range(self.num_vectors):
                    columns = []
                    for column in range(vector * self.lanes, (vector + 1) * self.lanes):
                        start = builder.mul(_or_last(builder, column, num_columns), column_step)
                        place = builder.add(builder.add(source, start), builder.mul(first, _I64(_BYTES)))
                        columns.append(self._load(builder, _pointer(builder, place, self._vector), mask))
                    for row, value in enumerate(self._transposed(builder, columns)):
                        line = builder.mul(builder.add(first, _I64(row)), _I64(_BYTES * self.width))
                        to = self._places(builder, builder.add(panel, line))[vector]
                        builder.store(value, to, align=_BYTES * self.lanes)
            return context.get_dummy_value()

        @typed_intrinsic
        def copy_columns(_context: Any, source: Any, column_step: Any, k: Any, num_columns: Any, panel: Any) -> Any:
            return _COPY, generate

        return copy_columns

    def _transposed(self, builder: Any, vectors: list[Any]) -> list[Any]:
        """Transpose as many vectors as lanes: log2(lanes) times, vector i is interleaved with vector i + lanes / 2."""
        half = self.lanes // 2
        order = ir.VectorType(_I32, self.lanes)
        low, high = (
            ir.Constant(order, [begin + lane // 2 + lane % 2 * self.lanes for lane in range(self.lanes)])
            for begin in (0, half)
        )
        for _ in range(self.lanes.bit_length() - 1):
            pairs = zip(vectors[:half], vectors[half:], strict=True)
            vectors = [builder.shuffle_vector(*pair, which) for pair in pairs for which in (low, high)]
        return vectors

    def _places(self, builder: Any, address: Any) -> list[Any]:
        """Pointers to the vectors of a tile's row that begins at an address."""
        steps = range(0, _BYTES * self.width, _BYTES * self.lanes)
        return [_pointer(builder, builder.add(address, _I64(step)), self._vector) for step in steps]

    def _masks(self, builder: Any, num_columns: Any) -> list[Any]:
        """For each vector of a tile's row a mask of the columns below ``num_columns``."""
        return [self._mask(builder, num_columns, vector * self.lanes) for vector in range(self.num_vectors)]

    def _mask(self, builder: Any, limit: Any, first: int) -> Any:
        numbers = ir.VectorType(_I64, self.lanes)
        lanes = ir.Constant(numbers, list(range(first, first + self.lanes)))
        return builder.icmp_signed("<", lanes, _repeat(builder, limit, numbers))

    def _fma(self, builder: Any, left: Any, right: Any, summand: Any) -> Any:
        return self._call(builder, f"llvm.fma.v{self.lanes}f32", self._vector, left, right, summand)

    def _load(self, builder: Any, place: Any, mask: Any) -> Any:
        """Load the lanes of a mask; the others are 0, and their memory is not read."""
        zero = ir.Constant(self._vector, [0.0] * self.lanes)
        name = f"llvm.masked.load.v{self.lanes}f32.p0"
        return self._call(builder, name, self._vector, place, _I32(_BYTES), mask, zero)

    def _store(self, builder: Any, value: Any, place: Any, mask: Any) -> None:
        name = f"llvm.masked.store.v{self.lanes}f32.p0"
        self._call(builder, name, ir.VoidType(), value, place, _I32(_BYTES), mask)

    @staticmethod
    def _call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
        function = ir.FunctionType(result, [argument.type for argument in arguments])
        return builder.call(cgutils.get_or_insert_function(builder.module, function, name), arguments)


_COPY = types.none(types.uintp, types.int64, types.int64, types.int64, types.uintp)


def _pointer(builder: Any, address: Any, type_: Any) -> Any:
    return builder.inttoptr(address, type_.as_pointer())


def _or_last(builder: Any, number: int, count: Any) -> Any:
    """``number`` or ``count - 1``, the lesser."""
    is_below = builder.icmp_signed("<", _I64(number), count)
    return builder.select(is_below, _I64(number), builder.sub(count, _I64(1)))


def _repeat(builder: Any, value: Any, vector: ir.VectorType) -> Any:
    """A vector with ``value`` in each lane."""
    none = ir.Constant(vector, ir.Undefined)
    single = builder.insert_element(none, value, _I32(0))
    return builder.shuffle_vector(single, none, ir.Constant(ir.VectorType(_I32, vector.count), [0] * vector.count))


TILES = {"512 bits": Tile(16, 2, 8), "256 bits": Tile(8, 2, 6)}
"""Tiles by vector width. On an AMD EPYC (Zen 5), 8 rows beat 12, and 2 vectors beat 3 and 4."""

_TILE = TILES["512 bits" if _FEATURES.get("avx512f") else "256 bits"]
multiply = _TILE.multiply
"""The product of compiled code; see :attr:`Tile.multiply`."""
TILE_COLUMNS = _TILE.width
"""Columns that are computed together. A part of so many takes longer to store than all of them."""
