"""The workspace: memory comes back by itself, and never too early."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from splitbit_kit.engine.workspace import ALIGNMENT, BufferPool, _bucket, aligned

Array = np.ndarray[Any, np.dtype[Any]]

DTYPES = (np.float32, np.float64, np.float16, np.int32, np.int8, np.bool_)


def address(array: Array) -> int:
    """Return where an array's memory begins."""
    return int(array.ctypes.data)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (1,), (3, 7), (2, 3, 5), (1000,)])
def test_an_array_is_as_asked_for(shape: tuple[int, ...], dtype: Any) -> None:
    array = BufferPool().take(shape, dtype)
    assert array.shape == shape
    assert array.dtype == dtype
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert address(array) % ALIGNMENT == 0


def test_each_request_gets_a_new_object() -> None:
    pool = BufferPool()
    first, second = pool.take((4, 4), np.float32), pool.take((4, 4), np.float32)
    assert first is not second
    assert not np.may_share_memory(first, second)
    # the tape knows arrays by identity: what was handed out must die, not be handed out again
    seen, place = weakref.ref(first), address(first)
    del first
    assert seen() is None
    assert address(pool.take((4, 4), np.float32)) == place


def test_memory_is_used_again() -> None:
    pool = BufferPool()
    place = address(pool.take((100,), np.float32))
    assert address(pool.take((10, 10), np.float32)) == place
    assert address(pool.take((50,), np.float64)) == place
    assert pool.allocated_bytes == _bucket(400)


def test_memory_returns_only_when_the_last_view_is_gone() -> None:
    pool = BufferPool()
    array = pool.take((8, 8), np.float32)
    place = address(array)
    views = [array[2:4], array.T, array.reshape(4, 16)[1], array.view(np.int32), memoryview(array)]
    del array
    while views:
        assert address(pool.take((8, 8), np.float32)) != place
        views.pop(0)
    taken = [pool.take((8, 8), np.float32) for _ in range(2)]
    assert place in map(address, taken)


def test_memory_returns_without_the_garbage_collector() -> None:
    pool = BufferPool()
    gc.disable()
    try:
        for _ in range(10):
            pool.take((1000,), np.float64)[3:].reshape(-1)
    finally:
        gc.enable()
    assert pool.allocated_bytes == _bucket(8000)


def test_arrays_outlive_their_pool() -> None:
    array = BufferPool().take((1000,), np.int32)
    array[...] = np.arange(1000)
    gc.collect()
    np.testing.assert_array_equal(array, np.arange(1000))


def test_little_is_wasted() -> None:
    for nbytes in (*range(1, 5000), 2**20, 2**20 + 1, 10**9):
        size = _bucket(nbytes)
        assert nbytes <= size <= max(nbytes * 1.125, nbytes + ALIGNMENT - 1)
        assert size % ALIGNMENT == 0


def test_aligned_zeroes_when_asked() -> None:
    array = aligned((3, 5), np.float64, zero=True)
    assert address(array) % ALIGNMENT == 0
    assert not array.any()


class Loans(RuleBasedStateMachine):
    """Take arrays, view them, drop them; every array keeps what was written to it."""

    arrays = Bundle("arrays")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BufferPool()
        self.live: dict[int, tuple[Array, int]] = {}
        self.count = 0

    @rule(target=arrays, rows=st.integers(0, 40), columns=st.integers(1, 4))
    def take(self, rows: int, columns: int) -> int:
        self.count += 1
        array = self.pool.take((rows, columns), np.int32)
        array[...] = self.count
        self.live[self.count] = array, self.count
        return self.count

    @rule(target=arrays, source=arrays, start=st.integers(0, 5))
    def view(self, source: int, start: int) -> int:
        self.count += 1
        array, mark = self.live[source]
        self.live[self.count] = array[start:].T, mark
        return self.count

    @rule(array=consumes(arrays))
    def drop(self, array: int) -> None:
        del self.live[array]

    @invariant()
    def nothing_is_overwritten(self) -> None:
        for array, mark in self.live.values():
            assert (array == mark).all()


Loans.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestLoans = Loans.TestCase
