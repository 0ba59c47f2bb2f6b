"""Element-wise kernels against the NumPy backend in float64."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np
import pytest
from elementwise_support import (
    BF16,
    F32,
    SIZES,
    STORAGE,
    Array,
    padded,
    place,
    room,
    run,
)

from splitbit_numba_backend.kernels import pointwise

RNG = np.random.default_rng(4)
THREADS = (1, 2, 3)


def draw(*shape: int) -> Array:
    return place(RNG.standard_normal(shape) * 3)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def gelu(x: Array) -> tuple[Array, Array]:
    """Return the value and the slope, in float64."""
    x = x.astype(np.float64)
    tanh = np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))
    inner = sqrt(2 / pi) * (1 + 3 * 0.044715 * x**2)
    return x / 2 * (1 + tanh), (1 + tanh) / 2 + x / 2 * (1 - tanh**2) * inner


def on_every_share(kernel: Any, size: int, *inputs: Array, outputs: int = 1) -> list[Array]:
    """Return the results, which must be the same to the bit for each number of threads."""
    found = []
    for threads in THREADS:
        results = [room(size) for _ in range(outputs)]
        run(kernel, threads, *inputs, *results, size)
        found.append(results)
    for results in found[1:]:
        for result, expected in zip(results, found[0], strict=True):
            assert result.tobytes() == expected.tobytes()
    return found[0]


@pytest.mark.parametrize("size", SIZES)
def test_gelu(size: int) -> None:
    x, dout = draw(size), draw(size)
    value, slope = gelu(x)
    (out,) = on_every_share(pointwise.gelu, size, x)
    np.testing.assert_allclose(out, value, atol=1e-6, rtol=1e-6)
    (dx,) = on_every_share(pointwise.gelu_backward, size, dout, x)
    np.testing.assert_allclose(dx, dout * slope, atol=4e-6, rtol=2e-6)


@pytest.mark.parametrize("size", SIZES)
def test_swiglu(size: int) -> None:
    gate, up, dout = draw(size), draw(size), draw(size)
    s = sigmoid(gate)
    (out,) = on_every_share(pointwise.swiglu, size, gate, up)
    np.testing.assert_allclose(out, gate * s * up, atol=1e-6, rtol=1e-6)
    dgate, dup = on_every_share(pointwise.swiglu_backward, size, dout, gate, up, outputs=2)
    slope = s * (1 + gate * (1 - s))
    np.testing.assert_allclose(dgate, dout * up * slope, atol=1e-5, rtol=2e-6)
    np.testing.assert_allclose(dup, dout * gate * s, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_add(size: int) -> None:
    x, y = draw(size), draw(size)
    (out,) = on_every_share(pointwise.add, size, x, y)
    np.testing.assert_array_equal(out, x + y)


@pytest.mark.parametrize("kernel", [pointwise.gelu, pointwise.swiglu], ids=["gelu", "swiglu"])
def test_far_from_zero(kernel: Any) -> None:
    x = place(np.array([-1e4, -200, -80, 0, 80, 200, 1e4]))
    inputs = (x,) if kernel is pointwise.gelu else (x, place(np.ones(7)))
    (out,) = on_every_share(kernel, 7, *inputs)
    np.testing.assert_allclose(out, np.maximum(x, 0), atol=1e-30)


@pytest.mark.parametrize("size", (7, 33))
def test_what_is_not_finite_stays_so(size: int) -> None:
    bad, good = draw(size), draw(size)
    bad[1], bad[2], bad[size - 1] = np.nan, np.inf, np.nan
    for kernel, inputs, outputs in (
        (pointwise.gelu, (bad,), 1),
        (pointwise.gelu_backward, (bad, good), 1),
        (pointwise.swiglu, (bad, good), 1),
        (pointwise.swiglu, (good, bad), 1),
        (pointwise.swiglu_backward, (bad, good, good), 2),
        (pointwise.add, (good, bad), 1),
    ):
        for out in on_every_share(kernel, size, *inputs, outputs=outputs):
            np.testing.assert_array_equal(np.isfinite(out), np.isfinite(bad))
            assert np.isnan(out[[1, size - 1]]).all()


@pytest.mark.parametrize("width", SIZES)
def test_conversion_there_and_back(width: int) -> None:
    x, ld = draw(5, width), padded(width)
    for dtype in STORAGE:
        for threads in THREADS:
            stored, back = room((5, ld), dtype), room((5, width))
            run(pointwise.convert, threads, x, stored, 5, width, width, ld)
            run(pointwise.convert, threads, stored, back, 5, width, ld, width)
            np.testing.assert_array_equal(back, x.astype(dtype).astype(F32))  # rounded to nearest
            assert not stored[:, width:].astype(F32).any()


def test_conversion_of_every_kind_of_number() -> None:
    ties = np.array([0x3F808000, 0x3F818000, 0x3F80FFFF, 0x7F7FFFFF, 0x80000000], np.uint32)
    x = place(np.concatenate((ties.view(F32), [np.nan, np.inf, -np.inf])).astype(F32)[None])
    stored = room((1, 8), BF16)
    run(pointwise.convert, 1, x, stored, 1, 8, 8, 8)
    np.testing.assert_array_equal(stored.astype(F32), x.astype(BF16).astype(F32))


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
@pytest.mark.parametrize("width", SIZES)
def test_column_sums(width: int, dtype: Any) -> None:
    for rows in (1, 4, 70):
        values = RNG.standard_normal((rows, width))
        x, start = place(values, dtype, ld=padded(width)), draw(width)
        expected = x[:, :width].astype(np.float64).sum(axis=0)
        for threads in THREADS:
            out, added = room(width), place(start)
            run(pointwise.column_sums, threads, x, out, rows, width, padded(width), False)
            run(pointwise.column_sums, threads, x, added, rows, width, padded(width), True)
            np.testing.assert_allclose(out, expected, atol=1e-5)
            np.testing.assert_allclose(added, expected + start, atol=1e-5)
            if threads == 1:
                bits = out.tobytes()
            assert out.tobytes() == bits


def test_column_sums_carry_nan_in_their_column() -> None:
    x, out = draw(6, 17), room(17)
    x[5, 16] = np.nan
    run(pointwise.column_sums, 2, x, out, 6, 17, 17, False)
    assert np.isnan(out[16])
    assert np.isfinite(out[:16]).all()
