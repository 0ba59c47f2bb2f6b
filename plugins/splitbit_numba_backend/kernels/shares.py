"""What all kernels have in common: how they are compiled, and how threads share the work.

Every thread runs the same function, f(thread, threads, ...), and takes its part of the rows,
columns or elements. Whoever needs a sum over rows adds up a number of chunks that depends on the
shapes alone, each chunk in order, and then the chunks in order: the result is the same to the bit
for any number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from splitbit_numba_backend.compiler import helper, inline, kernel  # noqa: F401 (all take them from here)
from splitbit_numba_backend.simd.pointers import store_first
from splitbit_numba_backend.simd.vector import LANES, splat

Pointer = Any  # a simd.pointers.Pointer, which only compiled code sees
Vector = Any  # a simd.vector.Vector

ZERO, ONE = np.float32(0), np.float32(1)

CHUNKS = 64  # at most: enough for any number of cores here, and few enough to add up at once


@helper
def share(thread: int, threads: int, count: int, unit: int) -> tuple[int, int]:
    """Return the first and the stop of one thread's share of `count`, in whole units if possible.

    A unit of sixteen float32 elements is a cache line: no two threads write to the same one.
    """
    units = (count + unit - 1) // unit
    return units * thread // threads * unit, min(units * (thread + 1) // threads * unit, count)


@helper
def chunk_size(count: int, unit: int) -> int:
    """Return how many of `count` things make a chunk: whole units, so that there are CHUNKS."""
    return max(1, (count + CHUNKS * unit - 1) // (CHUNKS * unit)) * unit


@helper
def chunk_count(count: int, unit: int) -> int:
    """Return how many chunks there are, at most CHUNKS."""
    size = chunk_size(count, unit)
    return (count + size - 1) // size


@inline
def clear(row: Pointer, start: int, stop: int) -> None:
    """Write zeros to the elements [start, stop)."""
    for c in range(start, stop, LANES):
        store_first(row, c, splat(ZERO), stop - c)
