"""What all ops of a built backend share: threads, compiled programs, scratch memory, weights.

A *program* runs on every thread at once and is made of kernels with barriers between them. It gets
one address, that of its arguments: 64-bit words, whose places each program's module names.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from splitbit_kit.api import Param
from splitbit_kit.api.backend import Array
from splitbit_numba_backend.compiler import program
from splitbit_numba_backend.simd import debug
from splitbit_numba_backend.simd.debug import DEBUG
from splitbit_numba_backend.threads import KERNEL, RLock, pool

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int32)  # of arrays between ops, and of ids
ALIGNMENT = 64
COLUMNS = 32  # rows of storage are padded to a multiple of these elements
NULL = 0


class Program(NamedTuple):
    """One program for each kind of storage: plain functions (thread, threads, args)."""

    fp32: Callable[[int, int, int], None]
    bf16: Callable[[int, int, int], None]


@functools.cache
def compiled(function: Callable[[int, int, int], None]) -> int:
    """Return the address of a compiled program, from the disk cache if it is there."""
    return int(program(KERNEL, function).address)


@functools.cache
def float_word(value: float) -> int:
    """Return the 64-bit word of a float argument."""
    (word,) = struct.unpack("<q", struct.pack("<d", value))
    return int(word)


def padded(width: int) -> int:
    """Return the elements of a row of storage."""
    return -(-width // COLUMNS) * COLUMNS


def address(array: Array) -> int:
    """Return where an array's memory begins. The caller keeps the array."""
    where: int
    if DEBUG:
        where = array.__array_interface__["data"][0]
        debug.arrays.append((where, where + array.nbytes))
        return where
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # a third of the time
    except (TypeError, ValueError):  # read-only, or empty
        where = array.__array_interface__["data"][0]
        return where


class Memory:
    """Places in one block of memory, found out before it is taken."""

    def __init__(self) -> None:
        self.size = 0

    def place(self, nbytes: int) -> int:
        """Return the offset of so many bytes, 64-byte aligned."""
        offset = self.size
        self.size += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return offset


class Runtime:
    """A built backend's precision, threads and what it remembers."""

    def __init__(self, precision: str, threads: int) -> None:
        self.precision = precision
        self.threads = threads
        self.item = 2 if precision == "bf16" else 4  # bytes of an element in storage
        self.pool = pool(threads)
        self.control = self.pool.control
        self._scratch = np.empty(0, np.uint8)
        self._weights: dict[int, _Weight] = {}
        self._angles: dict[tuple[int, float], Array] = {}
        self._tables: list[Array] = []

    def run(self, program: Program, args: Sequence[int]) -> None:
        """Run a program on all threads."""
        words = np.array(args, np.int64)
        function = program.bf16 if self.precision == "bf16" else program.fp32
        where, made = address(words), compiled(function)
        if DEBUG:
            debug.ready()
        self.pool.run(made, where)
        if DEBUG:
            debug.check()

    def scratch(self, nbytes: int) -> int:
        """Return the address of memory for all threads, nbytes for each, until the next call."""
        size = nbytes * self.threads + ALIGNMENT
        if self._scratch.size < size:
            self._scratch = np.empty(size, np.uint8)
        return -(-address(self._scratch) // ALIGNMENT) * ALIGNMENT

    @property
    def turn(self) -> RLock:
        """What an op holds while it runs: scratch memory and shadows are shared."""
        return debug.TURN if DEBUG else self.pool.mutex

    def vector(self, param: Param | None) -> int:
        """Return the address of a parameter in float32, or NULL."""
        if param is None:
            return NULL
        if DEBUG:
            address(param.array)
        return self._weight(param).address

    def matrix(self, param: Param) -> int:
        """Return the address of a weight in storage: itself, or its bfloat16 shadow."""
        weight = self._weight(param)
        if self.precision != "bf16":
            return self.vector(param)
        if weight.shadow is None:
            weight.shadow = np.empty(param.shape, np.uint16)
            weight.shadow_address = address(weight.shadow)
            weight.version = -1
        if weight.version != param.version:
            # round to nearest, ties to even, as the optimizer does when it writes the shadow
            bits = param.array.view(np.uint32)
            weight.shadow[...] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            weight.version = param.version
        if DEBUG:
            address(weight.shadow)
        return weight.shadow_address

    def renewed(self, param: Param, shadow: Array) -> None:
        """Take a shadow that an optimizer writes, of the version after the present one."""
        weight = self._weight(param)
        weight.shadow, weight.shadow_address = shadow, address(shadow)
        weight.version = param.version + 1

    def _weight(self, param: Param) -> _Weight:
        found = self._weights.get(id(param))
        if found is None or found.value is not param.value:
            found = self._weights[id(param)] = _Weight(param)
        return found

    def angles(self, size: int, base: float, last: int) -> int:
        """Return the address of the rotary table for positions up to `last`."""
        from splitbit_numba_backend.kernels.rotary import table

        found = self._angles.get((size, base))
        if found is None or len(found) <= last:
            count = max(256, 1 << (last + 1).bit_length())
            found = self._angles[size, base] = table(count, size, base)
            self._tables.append(found)  # a backward pass to come may hold the old one's address
        return address(found)


class _Weight:
    """What is known of one parameter. It keeps the handle, so that its id is not used again."""

    __slots__ = ("address", "param", "shadow", "shadow_address", "value", "version")

    def __init__(self, param: Param) -> None:
        self.param = param
        self.value = param.value
        self.address = address(param.array)
        self.shadow: Array | None = None
        self.shadow_address = NULL
        self.version = -1


def whole(array: Any, dtype: np.dtype[Any], written: bool = False) -> bool:
    """Return whether an array is one block of that type, aligned, and writable if need be."""
    flags = _WRITABLE if written else _READABLE
    return (
        isinstance(array, np.ndarray) and array.dtype == dtype and array.flags.num & flags == flags
    )


_READABLE = 0x101  # NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_ALIGNED: one look at all flags
_WRITABLE = _READABLE | 0x400  # NPY_ARRAY_WRITEABLE


def target(grads: Any, param: Param | None) -> tuple[int, int]:
    """Return (address, accumulate) of a parameter's gradient; (NULL, 0) where there is none."""
    if param is None or (place := grads.into(param)) is None:
        return NULL, 0
    view, accumulate = place
    if not whole(view, FLOAT, written=True) or view.shape != param.shape:
        raise ValueError(f"{param.name}: its gradient is no plain array of shape {param.shape}")
    return address(view), int(accumulate)
