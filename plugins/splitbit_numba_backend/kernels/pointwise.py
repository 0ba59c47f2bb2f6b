"""Kernels that work element by element, sums of columns, and conversion to and from storage."""

from __future__ import annotations

from splitbit_numba_backend.kernels.activations import (
    gelu_of,
    gelu_slope,
    swish_and_slope,
    swish_of,
)
from splitbit_numba_backend.kernels.shares import ZERO, Pointer, clear, kernel, share
from splitbit_numba_backend.simd.pointers import load_first, store_first
from splitbit_numba_backend.simd.vector import LANES

# ---- of arrays; `count` elements of any shape


@kernel
def gelu(thread: int, threads: int, x: Pointer, out: Pointer, count: int) -> None:
    """Write gelu(x)."""
    start, stop = share(thread, threads, count, LANES)
    for i in range(start, stop, LANES):
        store_first(out, i, gelu_of(load_first(x, i, stop - i, ZERO)), stop - i)


@kernel
def gelu_backward(
    thread: int, threads: int, dout: Pointer, x: Pointer, dx: Pointer, count: int
) -> None:
    """Write dx = dout * slope(x); dx may be dout."""
    start, stop = share(thread, threads, count, LANES)
    for i in range(start, stop, LANES):
        n = stop - i
        slope = gelu_slope(load_first(x, i, n, ZERO))
        store_first(dx, i, load_first(dout, i, n, ZERO) * slope, n)


@kernel
def swiglu(thread: int, threads: int, gate: Pointer, up: Pointer, out: Pointer, count: int) -> None:
    """Write swish(gate) * up."""
    start, stop = share(thread, threads, count, LANES)
    for i in range(start, stop, LANES):
        n = stop - i
        swish = swish_of(load_first(gate, i, n, ZERO))
        store_first(out, i, swish * load_first(up, i, n, ZERO), n)


@kernel
def swiglu_backward(
    thread: int,
    threads: int,
    dout: Pointer,
    gate: Pointer,
    up: Pointer,
    dgate: Pointer,
    dup: Pointer,
    count: int,
) -> None:
    """Write dgate = dout up slope(gate) and dup = dout swish(gate)."""
    start, stop = share(thread, threads, count, LANES)
    for i in range(start, stop, LANES):
        n = stop - i
        g, d = load_first(gate, i, n, ZERO), load_first(dout, i, n, ZERO)
        swish, slope = swish_and_slope(g)
        store_first(dgate, i, d * load_first(up, i, n, ZERO) * slope, n)
        store_first(dup, i, d * swish, n)


@kernel
def add(thread: int, threads: int, x: Pointer, y: Pointer, out: Pointer, count: int) -> None:
    """Write x + y; out may be either."""
    start, stop = share(thread, threads, count, LANES)
    for i in range(start, stop, LANES):
        n = stop - i
        store_first(out, i, load_first(x, i, n, ZERO) + load_first(y, i, n, ZERO), n)


# ---- of rows


@kernel
def convert(
    thread: int,
    threads: int,
    x: Pointer,  # (N, C), rows ldx apart
    out: Pointer,  # (N, ldo)
    rows: int,
    width: int,
    ldx: int,
    ldo: int,
) -> None:
    """Copy rows from one element type to another; zeros between the width and ldo."""
    start, stop = share(thread, threads, rows, 1)
    for r in range(start, stop):
        row, copy = x + r * ldx, out + r * ldo
        for c in range(0, width, LANES):
            store_first(copy, c, load_first(row, c, width - c, ZERO), width - c)
        clear(copy, width, ldo)


@kernel
def column_sums(
    thread: int,
    threads: int,
    x: Pointer,  # (N, C), rows ld apart
    out: Pointer,  # (C,) float32
    rows: int,
    width: int,
    ld: int,
    accumulate: bool,
) -> None:
    """Write the sum of each column, as for the gradient of a bias, or add it to what is there.

    A column belongs to one thread, and its sum waits in the first cache, in `out` itself.
    """
    start, stop = share(thread, threads, width, LANES)
    if not accumulate:
        clear(out, start, stop)
    whole = rows // 4 * 4
    for r in range(0, whole, 4):  # four at a time: fewer trips to `out`, and less rounding
        first, second = x + r * ld, x + (r + 1) * ld
        third, fourth = x + (r + 2) * ld, x + (r + 3) * ld
        for c in range(start, stop, LANES):
            n = stop - c
            one = load_first(first, c, n, ZERO) + load_first(second, c, n, ZERO)
            other = load_first(third, c, n, ZERO) + load_first(fourth, c, n, ZERO)
            store_first(out, c, load_first(out, c, n, ZERO) + (one + other), n)
    for r in range(whole, rows):
        for c in range(start, stop, LANES):
            n = stop - c
            row = load_first(x + r * ld, c, n, ZERO)
            store_first(out, c, load_first(out, c, n, ZERO) + row, n)
