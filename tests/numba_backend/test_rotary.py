"""Rotary positions of the Numba backend against the NumPy backend, which defines them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("numba")
from numba import njit

from splitbit_kit.api import Context
from splitbit_kit.engine.workspace import BufferPool
from splitbit_numba_backend.kernels import rotary as kernels
from splitbit_numba_backend.simd.pointers import bfloat16_pointer, float32_pointer, int32_pointer
from splitbit_numpy_backend import rotary as definition

Array = np.ndarray[Any, np.dtype[Any]]
STORAGE = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
TOLERANCE = {"float32": 1e-6, "bfloat16": 4e-3}  # of the norm; a bfloat16 has 8 bits


def driver(pointer: Any) -> Any:
    """Return a compiled loop over the threads, one after another."""

    @njit(error_model="numpy")
    def run(threads, x, x_stride, out, out_stride, rows, heads, size, positions, angles, direction):  # type: ignore[no-untyped-def]
        for thread in range(threads):
            kernels.rotary(
                thread, threads, pointer(x), x_stride, pointer(out), out_stride, rows, heads, size,
                int32_pointer(positions), float32_pointer(angles), direction,
            )  # fmt: skip

    return run


DRIVERS = {"float32": driver(float32_pointer), "bfloat16": driver(bfloat16_pointer)}


def turn(
    x: Array, out: Array, positions: Array, heads: int, size: int, direction: int, threads: int = 1
) -> None:
    angles = kernels.table(int(positions.max(initial=0)) + 1, size, 10_000.0)
    kind = "float32" if x.dtype == np.float32 else "bfloat16"
    strides = [array.strides[0] // array.itemsize for array in (x, out)]
    DRIVERS[kind](
        threads, x.ctypes.data, strides[0], out.ctypes.data, strides[1], len(x), heads, size,
        positions.ctypes.data, angles.ctypes.data, direction,
    )  # fmt: skip


def check(ours: Array, theirs: Array, storage: str) -> None:
    error = np.linalg.norm(ours.astype(np.float64) - theirs) / np.linalg.norm(theirs)
    assert error < TOLERANCE[storage]


@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("size", [2, 14, 16, 32, 48, 64, 80, 128])
def test_definition_forward_and_backward(size: int, storage: str) -> None:
    rng = np.random.default_rng(size)
    rows, heads = 9, 3
    positions = rng.integers(0, 5000, rows).astype(np.int32)
    x = rng.standard_normal((rows, heads * size)).astype(STORAGE[storage])
    ctx = Context(BufferPool(), np.dtype(np.float64))
    theirs, saved = definition.rotary(ctx, x.astype(np.float64), positions, heads=heads)
    out = np.empty_like(x)
    turn(x, out, positions, heads, size, 1)
    check(out, theirs, storage)
    (theirs,) = definition.rotary_backward(ctx, x.astype(np.float64), saved, None)  # type: ignore[arg-type]
    turn(x, out, positions, heads, size, -1)
    check(out, theirs, storage)


@pytest.mark.parametrize("storage", STORAGE)
def test_in_place_on_columns_of_packed_rows(storage: str) -> None:
    rng = np.random.default_rng(0)
    rows, heads, size = 6, 2, 10
    packed = rng.standard_normal((rows, 50)).astype(STORAGE[storage])
    positions = np.arange(rows, dtype=np.int32)
    before = packed.copy()
    columns = slice(7, 7 + heads * size)
    out = np.empty((rows, heads * size), packed.dtype)
    turn(before[:, columns], out, positions, heads, size, 1)
    turn(packed[:, columns], packed[:, columns], positions, heads, size, 1)
    assert packed[:, columns].tobytes() == out.tobytes()
    packed[:, columns] = before[:, columns]
    assert packed.tobytes() == before.tobytes(), "it wrote outside its columns"


def test_threads_change_no_bit() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((11, 64)).astype(np.float32)
    positions = rng.integers(0, 100, 11).astype(np.int32)
    alone, shared = np.empty_like(x), np.empty_like(x)
    turn(x, alone, positions, 2, 32, 1)
    for threads in (2, 3, 30):
        shared[:] = np.nan
        turn(x, shared, positions, 2, 32, 1, threads)
        assert shared.tobytes() == alone.tobytes()


def test_nan_is_not_hidden() -> None:
    x = np.ones((3, 32), np.float32)
    x[1, 4] = np.nan
    out = np.empty_like(x)
    turn(x, out, np.arange(3, dtype=np.int32), 1, 32, 1)
    assert np.isnan(out[1, [4, 20]]).all() and np.isfinite(out[[0, 2]]).all()
