"""Layer norm and RMS norm against their formulas in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from elementwise_support import (
    BF16,
    F32,
    SIZES,
    STORAGE,
    Array,
    null,
    padded,
    place,
    room,
    run,
    tolerance,
)

from splitbit_numba_backend.kernels import norms

RNG = np.random.default_rng(3)
EPS = 1e-5
ROWS = (1, 3, 70)  # 70: several chunks, the last one short


def draw(*shape: int) -> Array:
    return place(RNG.standard_normal(shape) * 2 + 1)


def exact(x: Array, layer: bool) -> tuple[Array, Array, Array]:
    """Return the normed rows, mean (N, 1) and rstd (N, 1), in float64."""
    x = x.astype(np.float64)
    mean = x.mean(axis=1, keepdims=True) * layer
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(axis=1, keepdims=True) + EPS)
    return (x - mean) * rstd, mean, rstd


def forward(
    x: Array, weight: Array, bias: Array | None, layer: bool, dtype: Any, threads: int
) -> tuple[Array, Array | None, Array]:
    rows, width = x.shape
    out, rstd = room((rows, padded(width)), dtype), room(rows)
    mean = room(rows) if layer else None
    numbers = (rows, width, padded(width), EPS)
    run(norms.norm_forward, threads, x, weight, bias, out, mean, rstd, *numbers)
    return out, mean, rstd


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
@pytest.mark.parametrize("layer", [True, False], ids=["layer", "rms"])
@pytest.mark.parametrize("width", SIZES)
def test_forward(width: int, layer: bool, dtype: Any) -> None:
    for rows in ROWS:
        x, weight, bias = draw(rows, width), draw(width), draw(width) if layer else None
        out, mean, rstd = forward(x, weight, bias, layer, dtype, 2)
        normed, expected_mean, expected_rstd = exact(x, layer)
        expected = normed * weight + (0 if bias is None else bias)
        np.testing.assert_allclose(
            out[:, :width].astype(np.float64), expected, rtol=tolerance(dtype), atol=1e-5
        )
        assert not out[:, width:].astype(np.float32).any()
        np.testing.assert_allclose(rstd[:, None], expected_rstd, rtol=2e-6)
        if mean is not None:
            np.testing.assert_allclose(mean[:, None], expected_mean, rtol=2e-6, atol=1e-6)


def test_a_large_mean_costs_no_precision() -> None:
    x = place(RNG.standard_normal((4, 257)) + 3000)
    out, _, _ = forward(x, place(np.ones(257)), None, True, F32, 1)
    # the mean itself is rounded to 1e-4 or so, which all elements share
    np.testing.assert_allclose(out[:, :257], exact(x, True)[0], atol=1e-3)


def backward(
    dy: Array,
    x: Array,
    weight: Array,
    stats: tuple[Array | None, Array],
    layer: bool,
    dtype: Any,
    threads: int,
    *,
    residual: Array | None = None,
    added_to: Array | None = None,
) -> dict[str, Any]:
    """Return dx, its copy, dweight and dbias, from both phases."""
    rows, width = x.shape
    ld = padded(width)
    mean, rstd = stats
    dx, stored = room((rows, width)), room((rows, ld), dtype)
    partials = room(norms.partial_elements(rows, width))
    run(
        *(norms.norm_backward, threads, dy, x, weight, mean, rstd, residual, dx, stored),
        *(partials, rows, width, dy.shape[1], ld, layer),
    )
    dweight = room(width) if added_to is None else place(added_to)
    dbias = room(width) if layer else None
    add = added_to is not None
    run(norms.norm_parameters, threads, partials, dweight, dbias, rows, width, add, False)
    return {"dx": dx, "stored": stored, "dweight": dweight, "dbias": dbias}


def exact_backward(dy: Array, x: Array, weight: Array, layer: bool) -> tuple[Array, Array, Array]:
    normed, _, rstd = exact(x, layer)
    dy = dy.astype(np.float64)
    d = dy * weight
    mean_d = d.mean(axis=1, keepdims=True) * layer
    dx = (d - mean_d - normed * (d * normed).mean(axis=1, keepdims=True)) * rstd
    return dx, (dy * normed).sum(axis=0), dy.sum(axis=0)


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
@pytest.mark.parametrize("layer", [True, False], ids=["layer", "rms"])
@pytest.mark.parametrize("width", SIZES)
def test_backward(width: int, layer: bool, dtype: Any) -> None:
    for rows in ROWS:
        x, weight, residual = draw(rows, width), draw(width), draw(rows, width)
        dy = place(RNG.standard_normal((rows, width)), dtype, ld=padded(width))
        _, mean, rstd = forward(x, weight, None, layer, dtype, 1)
        dx, dweight, dbias = exact_backward(dy[:, :width], x, weight, layer)
        found = backward(dy, x, weight, (mean, rstd), layer, dtype, 2, residual=residual)
        scale = 1 + float(np.abs(exact(x, layer)[2]).max())  # one element: rstd is 316 or so
        close = {"atol": 5e-6 * scale, "rtol": 5e-6}
        np.testing.assert_allclose(found["dx"], dx + residual, **close)
        stored = found["stored"].astype(np.float32)
        np.testing.assert_allclose(stored[:, :width], found["dx"], rtol=tolerance(dtype))
        assert not stored[:, width:].any()
        np.testing.assert_allclose(found["dweight"], dweight, atol=2e-5, rtol=2e-5)
        if layer:
            np.testing.assert_allclose(found["dbias"], dbias, atol=2e-5, rtol=2e-5)


def test_gradients_add_up_where_told() -> None:
    x, weight, start = draw(20, 33), draw(33), draw(33)
    dy = draw(20, 33)
    _, mean, rstd = forward(x, weight, None, True, F32, 1)
    fresh = backward(dy, x, weight, (mean, rstd), True, F32, 1)
    added = backward(dy, x, weight, (mean, rstd), True, F32, 1, added_to=start)
    np.testing.assert_array_equal(added["dweight"], fresh["dweight"] + start)


def test_only_dx_of_a_frozen_norm_in_place() -> None:
    x, weight, dy = draw(20, 33), draw(33), draw(20, 33)
    _, mean, rstd = forward(x, weight, None, True, F32, 1)
    whole = backward(dy, x, weight, (mean, rstd), True, F32, 1, residual=draw(20, 33) * 0)
    dx = place(np.zeros((20, 33)))
    run(
        *(norms.norm_backward, 2, dy, x, weight, mean, rstd, dx, dx, null(F32)),
        *(None, 20, 33, 33, 0, False),
    )
    np.testing.assert_array_equal(dx, whole["dx"])


@pytest.mark.parametrize("layer", [True, False], ids=["layer", "rms"])
def test_same_bits_for_any_number_of_threads(layer: bool) -> None:
    x, weight, dy = draw(1000, 65), draw(65), draw(1000, 65).astype(BF16)
    results = []
    for threads in (1, 2, 3, 7):
        out, mean, rstd = forward(x, weight, None, layer, BF16, threads)
        found = backward(dy, x, weight, (mean, rstd), layer, BF16, threads)
        arrays = (out, mean, rstd, *found.values())
        results.append([a.tobytes() for a in arrays if a is not None])
    assert all(r == results[0] for r in results)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_what_is_not_finite_stays_so_and_in_its_row(bad: float, dtype: Any) -> None:
    x, weight = draw(3, 33), draw(33)
    x[1, 32] = bad
    out, mean, rstd = forward(x, weight, None, True, dtype, 1)
    assert not np.isfinite(out[1, :33].astype(np.float32)).any()
    assert np.isfinite(out[[0, 2]].astype(np.float32)).all()
    assert not out[:, 33:].astype(np.float32).any()
    dy = place(RNG.standard_normal((3, 33)), dtype)
    found = backward(dy, x, weight, (mean, rstd), True, dtype, 1)
    assert not np.isfinite(found["dx"][1]).any()
    assert np.isfinite(found["dx"][[0, 2]]).all()
    assert not np.isfinite(found["dweight"][32])
