"""Rows of tables, and the gradients that go back to them."""

from __future__ import annotations

from splitbit_numba_backend.kernels.shares import ZERO, Pointer, clear, kernel, share
from splitbit_numba_backend.simd.pointers import get, load_first, store_first
from splitbit_numba_backend.simd.vector import LANES


@kernel
def embedding(
    thread: int,
    threads: int,
    ids: Pointer,  # (N,) int32, each in 0 .. V-1
    table: Pointer,  # (V, C) float32
    out: Pointer,  # (N, C) float32
    rows: int,
    width: int,
) -> None:
    """Write out[n] = table[ids[n]]."""
    start, stop = share(thread, threads, rows, 1)
    for r in range(start, stop):
        row, copy = table + get(ids, r) * width, out + r * width
        for c in range(0, width, LANES):
            store_first(copy, c, load_first(row, c, width - c, ZERO), width - c)


@kernel
def embedding_sum(
    thread: int,
    threads: int,
    ids: Pointer,  # (N,) int32, each in 0 .. V-1
    table: Pointer,  # (V, C) float32
    positions: Pointer,  # (N,) int32, each in 0 .. T-1
    position_table: Pointer,  # (T, C) float32
    out: Pointer,  # (N, C) float32
    rows: int,
    width: int,
) -> None:
    """Write out[n] = table[ids[n]] + position_table[positions[n]]."""
    start, stop = share(thread, threads, rows, 1)
    for r in range(start, stop):
        token, copy = table + get(ids, r) * width, out + r * width
        position = position_table + get(positions, r) * width
        for c in range(0, width, LANES):
            n = width - c
            value = load_first(token, c, n, ZERO) + load_first(position, c, n, ZERO)
            store_first(copy, c, value, n)


@kernel
def embedding_backward(
    thread: int,
    threads: int,
    ids: Pointer,  # (N,) int32, each in 0 .. V-1
    dout: Pointer,  # (N, C) float32
    dtable: Pointer,  # (V, C) float32
    rows: int,
    width: int,
    vocabulary: int,
    accumulate: bool,
) -> None:
    """Add dout[n] to dtable[ids[n]], after clearing the table unless told to accumulate.

    A thread owns columns, in all rows: an id that occurs often is added up by one thread, in order.
    """
    start, stop = share(thread, threads, width, LANES)
    if not accumulate:
        for v in range(vocabulary):
            clear(dtable + v * width, start, stop)
    for r in range(rows):
        gradient, row = dout + r * width, dtable + get(ids, r) * width
        for c in range(start, stop, LANES):
            n = stop - c
            value = load_first(row, c, n, ZERO) + load_first(gradient, c, n, ZERO)
            store_first(row, c, value, n)
