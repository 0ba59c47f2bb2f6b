"""Attention with a cache, against the NumPy backend, which defines it."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("numba")
from numba import njit

from splitbit_kit.api import Context
from splitbit_kit.engine.workspace import BufferPool
from splitbit_numba_backend.kernels import decode as kernels
from splitbit_numba_backend.simd.pointers import bfloat16_pointer, float32_pointer, int32_pointer
from splitbit_numpy_backend import attention as definition

Array = np.ndarray[Any, np.dtype[Any]]
STORAGE = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2}  # of the norm, as in test_attention
FILL = 0xFF  # of scratch and results: NaN in either type, so that what is read unwritten shows


def driver(pointer: Any) -> Any:
    """Return a compiled loop over the threads, one after another."""

    @njit(error_model="numpy")
    def run(threads, rows, starts, lengths, sequences, shape, cache, blocks, scratch):  # type: ignore[no-untyped-def]
        q, k, v, out = pointer(rows[0]), pointer(rows[1]), pointer(rows[2]), pointer(rows[3])
        keys, values = pointer(cache[0]), pointer(cache[1])
        heads, kv_heads, size = shape
        wide, narrow = heads * size, kv_heads * size
        for thread in range(threads):
            kernels.cached_attention(
                thread, threads, q, wide, k, narrow, v, narrow, out, wide, int32_pointer(starts),
                int32_pointer(lengths), sequences, heads, kv_heads, size, keys, values, blocks,
                pointer(scratch),
            )  # fmt: skip

    return run


DRIVERS = {"float32": driver(float32_pointer), "bfloat16": driver(bfloat16_pointer)}


class Shape(NamedTuple):
    """The heads of a model."""

    heads: int
    kv_heads: int
    size: int


def caches(shape: Shape, sequences: int, capacity: int, storage: str) -> tuple[Any, Any]:
    """Return an empty cache of ours, full of rubbish, and one of the NumPy backend in float64."""
    common = {
        "sequences": sequences,
        "capacity": capacity,
        "kv_heads": shape.kv_heads,
        "head_size": shape.size,
    }
    ours = kernels.Cache(**common, dtype=STORAGE[storage])
    ours.k[...], ours.v[...] = np.nan, np.nan
    return ours, definition.Cache(**common, dtype=np.float64)


def compute(shape: Shape, cache: Any, rows: list[Array], starts: Array, threads: int = 1) -> Array:
    """Run the kernel on rows q, k, v, as an op would; check that scratch is not overrun."""
    grown = cache.grown(starts)
    q, k, v = rows
    out = np.full(q.nbytes, FILL, np.uint8).view(q.dtype).reshape(q.shape)
    group = shape.heads // shape.kv_heads
    needed = kernels.cached_scratch(int(grown.max()), shape.size, group, q.itemsize)
    memory = np.full(needed + 128, FILL, np.uint8)
    aligned = -memory.ctypes.data % 64
    kind = "float32" if q.dtype == np.float32 else "bfloat16"
    DRIVERS[kind](
        threads, tuple(x.ctypes.data for x in (q, k, v, out)), starts.ctypes.data,
        cache.lengths.ctypes.data, len(starts) - 1, tuple(shape),
        (cache.k.ctypes.data, cache.v.ctypes.data), cache.blocks, memory.ctypes.data + aligned,
    )  # fmt: skip
    assert (memory[aligned + needed :] == FILL).all(), "scratch was overrun"
    cache.lengths = grown
    return out


def define(shape: Shape, cache: Any, rows: list[Array], starts: Array) -> Array:
    ctx = Context(BufferPool(), np.dtype(np.float64), grad=False)
    exact = [x.astype(np.float64) for x in rows]
    return definition.attention(
        ctx, *exact, starts, cache, heads=shape.heads, kv_heads=shape.kv_heads
    )[0]


def draw(shape: Shape, lengths: list[int], storage: str, seed: int) -> tuple[list[Array], Array]:
    rng = np.random.default_rng(seed)
    starts = np.array([0, *np.cumsum(lengths)], np.int32)
    columns = (shape.heads, shape.kv_heads, shape.kv_heads)
    rows = [rng.standard_normal((starts[-1], h * shape.size)) for h in columns]
    return [x.astype(STORAGE[storage]) for x in rows], starts


def check(ours: Array, theirs: Array, storage: str) -> None:
    error = np.linalg.norm(ours.astype(np.float64) - theirs) / np.linalg.norm(theirs)
    assert error < TOLERANCE[storage], f"{error:.1e}"


# prompts, single tokens (some sequences silent), a few at once, a second long piece
STEPS = [[40, 5, 1], [1, 1, 1], [1, 0, 1], [3, 2, 4], [0, 33, 70], [1, 1, 1]]


@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("size", [1, 2, 7, 16, 32, 48, 64, 80, 128])
def test_generation(size: int, storage: str) -> None:
    shape = Shape(4, 2, size)
    cache, reference = caches(shape, 3, 78, storage)
    for step, lengths in enumerate(STEPS):
        rows, starts = draw(shape, lengths, storage, step)
        theirs = define(shape, reference, rows, starts)
        check(compute(shape, cache, rows, starts), theirs, storage)
        np.testing.assert_array_equal(cache.lengths, reference.lengths)


@pytest.mark.parametrize("storage", STORAGE)
def test_threads_change_no_bit(storage: str) -> None:
    shape = Shape(6, 3, 24)
    alone, _ = caches(shape, 3, 78, storage)
    shared = {threads: caches(shape, 3, 78, storage)[0] for threads in (2, 3, 30)}
    for step, lengths in enumerate(STEPS):
        rows, starts = draw(shape, lengths, storage, step)
        expected = compute(shape, alone, rows, starts).tobytes()
        for threads, cache in shared.items():
            assert compute(shape, cache, rows, starts, threads).tobytes() == expected


@pytest.mark.parametrize("storage", STORAGE)
def test_append_in_python_is_what_the_kernel_does(storage: str) -> None:
    shape = Shape(2, 2, 10)
    cache, other = (caches(shape, 2, 50, storage)[0] for _ in range(2))
    for lengths in ([3, 40], [1, 1]):
        rows, starts = draw(shape, lengths, storage, 0)
        compute(shape, cache, rows, starts)
        other.append(*rows[1:], starts)
        np.testing.assert_array_equal(cache.lengths, other.lengths)
    probe, starts = draw(shape, [1, 1], storage, 1)
    first, second = (compute(shape, c, probe, starts) for c in (cache, other))
    assert first.tobytes() == second.tobytes()


def test_truncated_tokens_are_forgotten() -> None:
    shape = Shape(2, 1, 16)
    cache, reference = caches(shape, 1, 64, "float32")
    rows, starts = draw(shape, [20], "float32", 0)
    compute(shape, cache, rows, starts)
    define(shape, reference, rows, starts)
    bad, one = draw(shape, [1], "float32", 1)
    bad[2][:] = np.nan
    assert np.isnan(compute(shape, cache, bad, one)).all()
    cache.truncate(9)
    reference.truncate(9)
    rows, starts = draw(shape, [1], "float32", 2)
    check(compute(shape, cache, rows, starts), define(shape, reference, rows, starts), "float32")


def test_an_overflow_is_refused_and_adds_nothing() -> None:
    shape = Shape(1, 1, 4)
    cache, _ = caches(shape, 2, 5, "float32")
    rows, starts = draw(shape, [3, 6], "float32", 0)
    with pytest.raises(ValueError, match="6 tokens exceed the cache's capacity of 5"):
        cache.append(*rows[1:], starts)
    np.testing.assert_array_equal(cache.lengths, [0, 0])
