"""Panels of a right operand, and blocks of a left one: what `simd.tiles` multiplies.

A panel holds 32 columns of the right operand as [units][32] (see `simd.tiles`), its depth filled
with zeros up to whole steps of `STEP` units, so that products need no case for the end. Where a
block of sixteen units is not whole, it is copied to `edge` (2 KB of scratch) and filled with zeros
there; nothing beyond a matrix is read.
"""

from __future__ import annotations

from splitbit_numba_backend.compiler import helper
from splitbit_numba_backend.kernels.shares import ZERO, Pointer, kernel
from splitbit_numba_backend.simd.pointers import load_first, store
from splitbit_numba_backend.simd.tiles import (
    COLUMNS,
    STEP,
    interleave,
    like,
    per_unit,
    transpose,
    transpose_columns,
)

EDGE_BYTES = 2048


@helper
def padded_units(depth: int, per_unit: int) -> int:
    """Return the units of a panel: those that `depth` elements need, in whole steps."""
    step = STEP * per_unit
    return (depth + step - 1) // step * STEP


@kernel
def copy_block(
    source: Pointer, stride: int, rows: int, columns: int, out: Pointer, out_rows: int, width: int
) -> None:
    """Copy (rows, columns), or what of it fits, to out (out_rows, width); the rest becomes zeros.

    The width is a multiple of 16.
    """
    for r in range(out_rows):
        for c in range(0, width, 16):
            count = columns - c if r < rows else 0
            store(out, r * width + c, load_first(source, r * stride + c, count, ZERO))


@kernel
def pack_rows(
    source: Pointer, stride: int, rows: int, depth: int, panel: Pointer, edge: int
) -> None:
    """Make up to 32 rows the columns of a panel: panel[k, n] = source[n, k].

    So the right operand W' of x W' is read from W (N, K) as it is stored.
    """
    step = STEP * per_unit(source)
    for half in range(0, COLUMNS, 16):
        for k in range(0, depth, step):
            block, apart = source + (half * stride + k), stride
            if rows < half + 16 or depth < k + step:
                block, apart = like(source, edge), step
                copy_block(
                    source + (half * stride + k), stride, rows - half, depth - k, block, 16, step
                )
            transpose(block, apart, panel + (k // per_unit(source) * COLUMNS + half), COLUMNS)


@kernel
def pack_columns(
    source: Pointer, stride: int, depth: int, columns: int, panel: Pointer, edge: int
) -> None:
    """Make up to 32 columns those of a panel: panel[k, n] = source[k, n]."""
    step = STEP * per_unit(source)
    for k in range(0, depth, step):
        block, apart = source + k * stride, stride
        if columns < COLUMNS or depth < k + step:
            block, apart = like(source, edge), COLUMNS
            copy_block(source + k * stride, stride, depth - k, columns, block, step, COLUMNS)
        for unit in range(STEP):
            interleave(
                block + unit * per_unit(source) * apart,
                apart,
                panel + (k // per_unit(source) + unit) * COLUMNS,
            )


@kernel
def pack_transposed(
    source: Pointer, stride: int, depth: int, out: Pointer, units: int, edge: int
) -> None:
    """Transpose 32 columns into rows: out[n, k] = source[k, n], out (32, units) of whole units.

    So the left operand dy' of dy' x is made from dy (M, N). All 32 columns are read.
    """
    step = STEP * per_unit(source)
    for k in range(0, depth, step):
        for half in range(0, COLUMNS, 16):
            block, apart = source + (k * stride + half), stride
            if depth < k + step:
                block, apart = like(source, edge), 16
                copy_block(source + (k * stride + half), stride, depth - k, 16, block, step, 16)
            transpose_columns(block, apart, out + (half * units + k // per_unit(source)), units)
