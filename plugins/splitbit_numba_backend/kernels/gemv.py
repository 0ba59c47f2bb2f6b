"""A few rows times a weight: y = x W' + b (+ given), for decoding, where packing W would cost more.

The weight is read once, as it is stored, by rows; a few rows of x are multiplied by each part of it
while that is in the first cache.
"""

from __future__ import annotations

import numpy as np

from splitbit_numba_backend.kernels.shares import ZERO, Pointer, kernel, share
from splitbit_numba_backend.simd.pointers import address, get, load, load_first, put
from splitbit_numba_backend.simd.vector import LANES, splat, total

FEW = 4  # rows up to which this is faster than `matmul.multiply`
TOGETHER = np.intp(4)  # rows of the weight: as many sums that do not wait for one another


@kernel
def multiply_few(
    thread: int,
    threads: int,
    x: Pointer,  # (N, I) float32 or bfloat16
    weight: Pointer,  # (O, I) float32 or bfloat16
    bias: Pointer,  # (O,) float32, or null
    given: Pointer,  # (N, O) float32, or null
    out: Pointer,  # (N, O) float32
    rows: int,
    inputs: int,
    outputs: int,
) -> None:
    """Write this thread's columns of x W' + b + given."""
    start, stop = share(thread, threads, outputs, LANES)
    whole = inputs // LANES * LANES
    for o in range(start, stop, TOGETHER):
        # at the end some rows are computed twice rather than others in another order
        o1, o2, o3 = min(o + 1, stop - 1), min(o + 2, stop - 1), min(o + 3, stop - 1)
        w, w1 = weight + o * inputs, weight + o1 * inputs
        w2, w3 = weight + o2 * inputs, weight + o3 * inputs
        for r in range(rows):
            row = x + r * inputs
            s, s1, s2, s3 = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
            for i in range(0, whole, LANES):
                value = load(row, i)
                s = s + value * load(w, i)
                s1 = s1 + value * load(w1, i)
                s2 = s2 + value * load(w2, i)
                s3 = s3 + value * load(w3, i)
            if whole < inputs:
                n = inputs - whole
                value = load_first(row, whole, n, ZERO)
                s = s + value * load_first(w, whole, n, ZERO)
                s1 = s1 + value * load_first(w1, whole, n, ZERO)
                s2 = s2 + value * load_first(w2, whole, n, ZERO)
                s3 = s3 + value * load_first(w3, whole, n, ZERO)
            put_sum(out, r * outputs + o, total(s), bias, o, given)
            put_sum(out, r * outputs + o1, total(s1), bias, o1, given)
            put_sum(out, r * outputs + o2, total(s2), bias, o2, given)
            put_sum(out, r * outputs + o3, total(s3), bias, o3, given)


@kernel
def put_sum(
    out: Pointer, place: int, value: float, bias: Pointer, column: int, given: Pointer
) -> None:
    """Write value + bias[column] + given[place], of which the last two may be null."""
    if address(bias) != 0:
        value = value + get(bias, column)
    if address(given) != 0:
        value = value + get(given, place)
    put(out, place, value)
