"""Memory that is handed out, comes back by itself, and is handed out again."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

ALIGNMENT = 64  # bytes: a cache line, and an AVX-512 register


def aligned(shape: Sequence[int], dtype: Any, zero: bool = False) -> Array:
    """Return a new C-contiguous array that starts at a multiple of 64 bytes."""
    nbytes = prod(shape) * np.dtype(dtype).itemsize
    raw = (np.zeros if zero else np.empty)(nbytes + ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % ALIGNMENT
    array: Array = raw[first : first + nbytes].view(dtype).reshape(shape)
    return array


class _Block:
    """One piece of memory, or the loan of it: when the last array on it dies, it goes home.

    NumPy keeps the object whose `__array_interface__` it read alive as the array's base, so that
    the loan ends exactly when no view is left, and never earlier.
    """

    __slots__ = ("__array_interface__", "home", "memory")

    def __init__(self, memory: Array, home: list[Array]) -> None:
        self.memory = memory
        self.home = home
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": memory.shape,
            "data": (memory.ctypes.data, False),
        }

    def __del__(self) -> None:
        self.home.append(self.memory)


def _bucket(nbytes: int) -> int:
    """Return nbytes rounded up to one of eight steps an octave: at most 12.5 % is wasted."""
    step = max(ALIGNMENT, 1 << max(nbytes.bit_length() - 4, 0))
    return -(-nbytes // step) * step


class BufferPool:
    """A workspace (see `splitbit_kit.api.Workspace`) that keeps what it once allocated.

    After the first steps of a training run every request is met with memory already touched.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[Array]] = {}
        self.allocated_bytes = 0

    def take(self, shape: Sequence[int], dtype: Any) -> Array:
        """Return an uninitialised, C-contiguous, 64-byte aligned array, always a new object."""
        dtype = np.dtype(dtype)
        nbytes = prod(shape) * dtype.itemsize
        size = _bucket(max(nbytes, 1))
        free = self._free.setdefault(size, [])
        if free:
            memory = free.pop()
        else:
            memory = aligned((size,), np.uint8)
            self.allocated_bytes += size
        loan = np.asarray(_Block(memory, free))
        array: Array = loan[:nbytes].view(dtype).reshape(shape)
        return array
