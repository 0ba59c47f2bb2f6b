"""Attention of the Numba backend against the NumPy backend, which defines it."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("numba")
from numba import njit

from splitbit_kit.api import Context
from splitbit_kit.engine.workspace import BufferPool
from splitbit_numba_backend.kernels import attention as kernels
from splitbit_numba_backend.simd.pointers import bfloat16_pointer, float32_pointer, int32_pointer
from splitbit_numpy_backend import attention as definition

Array = np.ndarray[Any, np.dtype[Any]]
STORAGE = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2}
"""of the norm; a bfloat16 has 8 bits, so each rounding errs by up to 2e-3 (inputs are exact here,
probabilities, score gradients and results are rounded)"""
GAP = 3  # unused columns at the end of each row, that must stay as they are
FILL = 0xFF  # of scratch and results: NaN in either type, so that what is read unwritten shows


def driver(pointer: Any) -> Any:
    """Return a compiled loop over the threads, one after another."""

    @njit(error_model="numpy")
    def run(backward, threads, places, starts, sequences, heads, kv_heads, size, stride, scratch):  # type: ignore[no-untyped-def]
        q, k, v = pointer(places[0]), pointer(places[1]), pointer(places[2])
        out, dout = pointer(places[3]), pointer(places[4])
        dq, dk, dv = pointer(places[5]), pointer(places[6]), pointer(places[7])
        lse = float32_pointer(places[8])
        own = int32_pointer(starts)
        for thread in range(threads):
            if backward:
                kernels.attention_backward(
                    thread, threads, q, stride, k, stride, v, stride, out, stride, dout, stride,
                    lse, dq, stride, dk, stride, dv, stride, own, sequences, heads, kv_heads,
                    size, pointer(scratch),
                )  # fmt: skip
            else:
                kernels.attention_forward(
                    thread, threads, q, stride, k, stride, v, stride, out, stride, lse, own,
                    sequences, heads, kv_heads, size, pointer(scratch),
                )  # fmt: skip

    return run


DRIVERS = {"float32": driver(float32_pointer), "bfloat16": driver(bfloat16_pointer)}


class Case(NamedTuple):
    """Shapes: what a training batch, a ragged one, and the corners look like."""

    starts: list[int]
    heads: int
    kv_heads: int
    size: int


class Result(NamedTuple):
    """What the two passes return."""

    out: Array
    lse: Array
    dq: Array
    dk: Array
    dv: Array


def draw(case: Case, storage: str, seed: int = 0) -> tuple[Array, Array]:
    """Return packed rows (N, (H + 2 K) D + GAP), and the gradient of the output likewise."""
    rng = np.random.default_rng(seed)
    columns = (case.heads + 2 * case.kv_heads) * case.size + GAP
    shape = (case.starts[-1], columns)
    return tuple(rng.standard_normal(shape).astype(STORAGE[storage]) for _ in range(2))  # type: ignore[return-value]


def split(case: Case, packed: Array) -> tuple[Array, Array, Array]:
    """Return q, k and v of packed rows."""
    h, kv = case.heads * case.size, case.kv_heads * case.size
    return packed[:, :h], packed[:, h : h + kv], packed[:, h + kv : h + 2 * kv]


def compute(case: Case, storage: str, packed: Array, dout: Array, threads: int = 1) -> Result:
    """Run both kernels, and check that they wrote nothing but their results."""
    kind = STORAGE[storage]
    out, grads = (np.full(packed.size * kind.itemsize, FILL, np.uint8) for _ in range(2))
    out, grads = (x.view(kind).reshape(packed.shape) for x in (out, grads))
    lse = np.full((len(packed), case.heads), np.nan, np.float32)
    starts = np.array(case.starts, np.int32)
    longest = int(np.diff(starts).max(initial=0))
    h = case.heads * case.size
    places = [x.ctypes.data for x in split(case, packed)]
    places += [out.ctypes.data, dout.ctypes.data]
    places += [x.ctypes.data for x in split(case, grads)] + [lse.ctypes.data]
    for backward in (False, True):
        needed = (kernels.forward_scratch, kernels.backward_scratch)[backward]
        size = needed(longest, case.size, kind.itemsize)
        memory = np.full(size + 128, FILL, np.uint8)
        aligned = -memory.ctypes.data % 64
        DRIVERS[storage](
            backward, threads, np.array(places), starts.ctypes.data, len(starts) - 1, case.heads,
            case.kv_heads, case.size, packed.shape[1], memory.ctypes.data + aligned,
        )  # fmt: skip
        assert (memory[aligned + size :] == FILL).all(), "scratch was overrun"
    assert np.isnan(out[:, h:].astype(np.float32)).all()
    assert np.isnan(grads[:, -GAP:].astype(np.float32)).all()
    return Result(out[:, :h], lse, *split(case, grads))


def define(case: Case, packed: Array, dout: Array) -> Result:
    """Return the same by the NumPy backend in float64; the log-sum-exp by its definition."""
    ctx = Context(BufferPool(), np.dtype(np.float64))
    q, k, v = (np.ascontiguousarray(x, np.float64) for x in split(case, packed))
    starts = np.array(case.starts, np.int32)
    out, saved = definition.attention(
        ctx, q, k, v, starts, heads=case.heads, kv_heads=case.kv_heads
    )
    own = np.ascontiguousarray(dout[:, : q.shape[1]], np.float64)
    grads = definition.attention_backward(ctx, own, saved, None)  # type: ignore[arg-type]
    lse = np.empty((len(q), case.heads))
    for first, stop in zip(case.starts, case.starts[1:], strict=False):
        for h in range(case.heads):
            mine = q[first:stop, h * case.size : (h + 1) * case.size]
            g = h // (case.heads // case.kv_heads)
            scores = mine @ k[first:stop, g * case.size : (g + 1) * case.size].T / case.size**0.5
            scores[np.triu_indices(stop - first, 1)] = -np.inf
            lse[first:stop, h] = np.logaddexp.reduce(scores, axis=1)
    return Result(out, lse, *grads)


def check(case: Case, storage: str) -> None:
    packed, dout = draw(case, storage)
    ours, theirs = compute(case, storage, packed, dout), define(case, packed, dout)
    for name, x, y in zip(Result._fields, ours, theirs, strict=True):
        error = np.linalg.norm(x.astype(np.float64) - y) / max(np.linalg.norm(y), 1e-30)
        assert error < TOLERANCE[storage], f"{name}: {error:.1e}"


@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("size", [1, 2, 7, 16, 32, 48, 64, 80, 128])
def test_head_sizes(size: int, storage: str) -> None:
    check(Case([0, 40, 41, 110], 2, 1, size), storage)


@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize(
    "case",
    [
        Case([0, 1], 1, 1, 16),
        Case([0, 0, 1, 1, 34, 34], 3, 3, 32),
        Case([0, 31, 63, 96, 129], 4, 2, 24),
        Case([0, 256, 257, 545], 4, 1, 32),
        Case([0, 0], 2, 1, 16),
        Case([0, 600], 2, 2, 64),
    ],
    ids=str,
)
def test_shapes(case: Case, storage: str) -> None:
    check(case, storage)


def test_long_context() -> None:
    check(Case([0, 4096], 1, 1, 16), "float32")


@pytest.mark.parametrize("storage", STORAGE)
def test_threads_change_no_bit(storage: str) -> None:
    case = Case([0, 70, 70, 71, 300, 331], 6, 3, 32)
    packed, dout = draw(case, storage)
    alone = compute(case, storage, packed, dout)
    for threads in (2, 3, 30):
        for name, x, y in zip(
            Result._fields, alone, compute(case, storage, packed, dout, threads), strict=True
        ):
            assert x.tobytes() == y.tobytes(), name


@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("part", ["q", "k", "v"])
def test_nan_is_not_hidden(part: str, storage: str) -> None:
    case = Case([0, 50, 90], 2, 1, 16)
    packed, dout = draw(case, storage)
    split(case, packed)["qkv".index(part)][20, 3] = np.nan
    results = compute(case, storage, packed, dout)
    out = results.out.astype(np.float32)
    assert np.isnan(out[20]).any()
    assert part == "q" or np.isnan(out[20:50, 3]).all(), "every later row sees it"
    for gradient in (results.dq, results.dk):
        assert np.isnan(gradient[20].astype(np.float32)).any()
    for result in results:
        assert np.isfinite(result[50:].astype(np.float32)).all(), "another sequence does not"


def test_scores_that_overflow_an_exponential() -> None:
    case = Case([0, 300], 1, 1, 32)
    packed, dout = draw(case, "float32")
    packed *= 20
    ours, theirs = compute(case, "float32", packed, dout), define(case, packed, dout)
    assert np.linalg.norm(ours.out - theirs.out) < 1e-4 * np.linalg.norm(theirs.out)
    assert np.abs(theirs.lse).max() > 100
