"""Rotary position embedding: halves of each head turned by angles that positions give.

    (a, b) -> (a cos t - b sin t, b cos t + a sin t)      t = position base^(-2i / D)

The backward pass turns by the opposite angles. Cosines and sines come from a table, which `table`
makes in float64, once for a model: sines are slow, and a float32 angle of thousands of radians has
lost the digits that matter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from splitbit_numba_backend.kernels.shares import ZERO, Pointer, kernel, share
from splitbit_numba_backend.simd.pointers import get, load_first, store_first
from splitbit_numba_backend.simd.vector import LANES, splat

Array = np.ndarray[Any, np.dtype[Any]]


def table(positions: int, size: int, base: float) -> Array:  # -> (positions, 2, D / 2)
    """Return cosines and sines of the angles of positions 0 .. positions - 1, as float32."""
    angles = np.outer(np.arange(positions), base ** (-np.arange(0, size, 2) / size))
    return np.stack((np.cos(angles), np.sin(angles)), axis=1).astype(np.float32)


@kernel
def rotary(
    thread: int,
    threads: int,
    x: Pointer,  # (N, H * D), rows x_stride elements apart
    x_stride: int,
    out: Pointer,  # (N, H * D); x itself, to turn it in place
    out_stride: int,
    rows: int,  # N
    heads: int,  # H
    size: int,  # D
    positions: Pointer,  # (N,) int32, all inside the table
    angles: Pointer,  # (positions, 2, D / 2) float32, made by `table`
    direction: int,  # 1, or -1 for the gradient
) -> None:
    """Turn each row by its position's angles, forwards or back."""
    half = size // 2
    sign = splat(np.float32(direction))
    start, stop = share(thread, threads, rows, 1)
    for row in range(start, stop):
        cosines = angles + get(positions, row) * size
        sines = cosines + half
        for head in range(heads):
            low, to_low = x + (row * x_stride + head * size), out + (row * out_stride + head * size)
            high, to_high = low + half, to_low + half
            for i in range(0, half, LANES):
                count = half - i
                cos = load_first(cosines, i, count, ZERO)
                sin = load_first(sines, i, count, ZERO) * sign
                a = load_first(low, i, count, ZERO)
                b = load_first(high, i, count, ZERO)
                store_first(to_low, i, a * cos - b * sin, count)
                store_first(to_high, i, b * cos + a * sin, count)
