"""What the blocks' programs have in common: the first words of their arguments, and gradients."""

from __future__ import annotations

import functools

from splitbit_numba_backend.kernels.matmul import (
    ADD,
    COLUMNS_BY_COLUMNS,
    FLOAT32,
    ROWS_BY_COLUMNS,
    ROWS_BY_ROWS,
    Epilogue,
    multiply,
    scratch_bytes,
)
from splitbit_numba_backend.kernels.pointwise import column_sums
from splitbit_numba_backend.kernels.shares import Pointer, clear, kernel, share
from splitbit_numba_backend.simd.pointers import argument, float32_pointer

# the first words of every block's arguments
CONTROL, SCRATCH, SCRATCH_BYTES, ROWS, FIRST = range(5)


@functools.cache
def product_scratch(item: int, *depths: int) -> int:
    """Return the bytes of scratch memory that products of these depths need, of any kind."""
    kinds = (ROWS_BY_ROWS, ROWS_BY_COLUMNS, COLUMNS_BY_COLUMNS)
    return max(scratch_bytes(kind, depth, item) for kind in kinds for depth in depths)


@kernel
def scratch_of(thread: int, args: int) -> int:
    """Return the address of a thread's own scratch memory."""
    return argument(args, SCRATCH) + thread * argument(args, SCRATCH_BYTES)


@kernel
def clear_padding(
    thread: int, threads: int, x: Pointer, rows: int, width: int, stride: int, row_stride: int
) -> None:
    """Write zeros behind each row: multiplies read there, and what memory held may be NaN."""
    if width < stride:
        start, stop = share(thread, threads, rows, 1)
        for r in range(start, stop):
            clear(x + r * row_stride, width, stride)


@kernel
def weight_gradient(
    thread: int, threads: int, args: int, out: int, accumulate: int, dy: Pointer, dy_stride: int,
    wide: int, x: Pointer, x_stride: int, deep: int,
) -> None:  # fmt: skip
    """dW (wide, deep) (+)= dy' x, unless the weight is frozen. out, accumulate: words of args."""
    if argument(args, out) != 0:
        kind = ADD if argument(args, accumulate) != 0 else FLOAT32
        multiply(
            thread, threads, COLUMNS_BY_COLUMNS, dy, dy_stride, x, x_stride, wide, deep,
            argument(args, ROWS), Epilogue(kind, argument(args, out), deep, 0, 0, 0, 0, 0),
            scratch_of(thread, args),
        )  # fmt: skip


@kernel
def bias_gradient(
    thread: int, threads: int, args: int, out: int, accumulate: int, dy: Pointer, stride: int,
    wide: int,
) -> None:  # fmt: skip
    """db (+)= the sum of dy's rows, if there is a bias and it is not frozen."""
    if argument(args, out) != 0:
        column_sums(
            thread, threads, dy, float32_pointer(argument(args, out)), argument(args, ROWS), wide,
            stride, argument(args, accumulate) != 0,
        )  # fmt: skip
