"""Memory that is handed out, comes back by itself, and is handed out again."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

ALIGNMENT = 64  # bytes: a cache line, and an AVX-512 register
MOST_PLACES = 4096


def aligned(shape: Sequence[int], dtype: Any, zero: bool = False) -> Array:
    """Return a new C-contiguous array that starts at a multiple of 64 bytes."""
    nbytes = prod(shape) * np.dtype(dtype).itemsize
    raw = (np.zeros if zero else np.empty)(nbytes + ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % ALIGNMENT
    array: Array = raw[first : first + nbytes].view(dtype).reshape(shape)
    return array


class _Memory(np.ndarray[Any, np.dtype[Any]]):
    """Bytes that are lent out. A type of its own: NumPy looks through bases of its own type only,
    so what is handed out keeps the loan alive, not just the memory."""

    loan: Any = None  # the reference that tells of the loan's end must itself live until then


class _Loan(np.ndarray[Any, np.dtype[Any]]):
    """The base of an array that is handed out: it dies with the last view, and never earlier."""


class _Ending(weakref.ref[_Loan]):
    """Put into the list of free memory when its loan dies, by `list.append` itself.

    That saves a Python call at each return, about a third of what a loan costs.
    """

    __slots__ = ("memory",)

    memory: _Memory


def _bucket(nbytes: int) -> int:
    """Return nbytes rounded up to one of eight steps an octave: at most 12.5 % is wasted."""
    step = max(ALIGNMENT, 1 << max(nbytes.bit_length() - 4, 0))
    return -(-nbytes // step) * step


class BufferPool:
    """A workspace (see `splitbit_kit.api.Workspace`) that keeps what it once allocated.

    After the first steps of a training run every request is met with memory already touched.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[_Ending]] = {}  # by size in bytes
        self._places: dict[Any, tuple[list[_Ending], int]] = {}  # by shape and dtype
        self._memories: list[_Memory] = []  # held here too: a loan in a cycle still comes home
        self.allocated_bytes = 0

    def take(self, shape: Sequence[int], dtype: Any) -> Array:
        """Return an uninitialised, C-contiguous, 64-byte aligned array, always a new object."""
        shape = tuple(shape)
        free, size = self._places.get((shape, dtype)) or self._place(shape, dtype)
        memory = free.pop().memory if free else self._allocate(size)
        loan = memory.view(_Loan)
        memory.loan = ending = _Ending(loan, free.append)
        ending.memory = memory
        return np.ndarray(shape, dtype, loan)

    def _place(self, shape: tuple[int, ...], dtype: Any) -> tuple[list[_Ending], int]:
        """Return the free memory for a shape, and its size."""
        size = _bucket(max(prod(shape) * np.dtype(dtype).itemsize, 1))
        if len(self._places) > MOST_PLACES:  # shapes that do not come back
            self._places.clear()
        place = self._places[shape, dtype] = self._free.setdefault(size, []), size
        return place

    def _allocate(self, size: int) -> _Memory:
        memory = aligned((size,), np.uint8).view(_Memory)
        self._memories.append(memory)
        self.allocated_bytes += size
        return memory
