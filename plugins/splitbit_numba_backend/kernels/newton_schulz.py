"""Newton-Schulz: a matrix with its singular values brought near to 1, by multiplies alone."""

from __future__ import annotations

from splitbit_numba_backend.kernels.matmul import (
    FLOAT32,
    ROWS_BY_COLUMNS,
    ROWS_BY_ROWS,
    STORAGE,
    Epilogue,
    multiply,
)
from splitbit_numba_backend.kernels.pointwise import convert
from splitbit_numba_backend.kernels.shares import Pointer, kernel, share
from splitbit_numba_backend.simd.pointers import float32_pointer, get, load, put, store
from splitbit_numba_backend.simd.tiles import like
from splitbit_numba_backend.simd.vector import LANES, splat
from splitbit_numba_backend.threads import barrier


@kernel
def newton_schulz(
    storage: Pointer, thread: int, threads: int, control: int, matrix: int, x: int, y: int,
    gram: int, square: int, rows: int, columns: int, stride: int, gram_stride: int, steps: int,
    a: float, b: float, c: float, scratch: int,
) -> None:  # fmt: skip
    """Replace a matrix, `steps` times, by (a + b A + c A A) times itself, A = matrix matrix'.

    matrix: the address of (rows, columns) float32, no padding. x, y (rows, columns) and gram,
    square (rows, rows) are places in storage, with rows of `stride` and of `gram_stride`.
    """
    convert(
        thread, threads, float32_pointer(matrix), like(storage, x), rows, columns, columns, stride
    )
    for step in range(steps):
        barrier(control)
        multiply(
            thread, threads, ROWS_BY_ROWS, like(storage, x), stride, like(storage, x), stride,
            rows, rows, columns, Epilogue(STORAGE, gram, gram_stride, 0, 0, 0, 0, 0), scratch,
        )  # fmt: skip
        barrier(control)
        multiply(
            thread, threads, ROWS_BY_ROWS, like(storage, gram), gram_stride, like(storage, gram),
            gram_stride, rows, rows, rows,
            Epilogue(STORAGE, square, gram_stride, 0, 0, 0, 0, 0), scratch,
        )  # fmt: skip
        barrier(control)
        polynomial(
            thread, threads, like(storage, gram), like(storage, square), rows, gram_stride, a, b, c
        )
        barrier(control)
        to = Epilogue(STORAGE, y, stride, 0, 0, 0, 0, 0)
        if step + 1 == steps:
            to = Epilogue(FLOAT32, matrix, columns, 0, 0, 0, 0, 0)
        multiply(
            thread, threads, ROWS_BY_COLUMNS, like(storage, square), gram_stride,
            like(storage, x), stride, rows, columns, rows, to, scratch,
        )  # fmt: skip
        x, y = y, x


@kernel
def polynomial(
    thread: int, threads: int, gram: Pointer, square: Pointer, rows: int, stride: int, a: float,
    b: float, c: float,
) -> None:  # fmt: skip
    """square = a + b gram + c square."""
    start, stop = share(thread, threads, rows, 1)
    for r in range(start, stop):
        for i in range(r * stride, (r + 1) * stride, LANES):
            store(square, i, splat(b) * load(gram, i) + splat(c) * load(square, i))
        put(square, r * stride + r, get(square, r * stride + r) + a)
