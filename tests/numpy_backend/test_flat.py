"""Loops over flat buffers: against their formulas on whole arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from splitbit_numpy_backend.flat import CHUNK, adamw, lion, orthogonalize, sgd, squared_norm

Array = np.ndarray[Any, np.dtype[Any]]


class Buffer:
    """As much of `Parameters` as these loops use; the boundary lies inside a chunk."""

    def __init__(self, dtype: Any) -> None:
        self.values = np.random.default_rng(3).standard_normal(2 * CHUNK + 77).astype(dtype)
        self.decayed = self.matrices = CHUNK + 33
        self.version = 0


def tolerance(dtype: Any) -> float:
    return 1e-6 if dtype == np.float32 else 1e-13


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_adamw(dtype: Any) -> None:
    params: Any = Buffer(dtype)
    rng = np.random.default_rng(4)
    size, decayed = len(params.values), np.arange(len(params.values)) < params.decayed
    m, v = np.zeros(size, dtype), np.zeros(size, dtype)
    expected, m64, v64 = params.values.astype(np.float64), np.zeros(size), np.zeros(size)
    for step in (1, 2, 3):
        grads = rng.standard_normal(size).astype(dtype)
        adamw(params, grads, m, v, step=step, lr=1e-2, beta1=0.9, beta2=0.95, eps=1e-8,
              weight_decay=0.1, grad_scale=0.7)  # fmt: skip
        g = 0.7 * grads.astype(np.float64)
        m64, v64 = 0.9 * m64 + 0.1 * g, 0.95 * v64 + 0.05 * g**2
        expected *= np.where(decayed, 1 - 1e-2 * 0.1, 1)
        expected -= 1e-2 * (m64 / (1 - 0.9**step)) / (np.sqrt(v64 / (1 - 0.95**step)) + 1e-8)
    assert m.dtype == v.dtype == params.values.dtype == dtype
    np.testing.assert_allclose(params.values, expected, rtol=tolerance(dtype), atol=1e-6)
    np.testing.assert_allclose(m, m64, rtol=10 * tolerance(dtype), atol=tolerance(dtype))
    np.testing.assert_allclose(v, v64, rtol=10 * tolerance(dtype), atol=tolerance(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd(dtype: Any, momentum: float) -> None:
    params: Any = Buffer(dtype)
    rng = np.random.default_rng(5)
    size, decayed = len(params.values), np.arange(len(params.values)) < params.decayed
    m = np.zeros(size, dtype) if momentum else None
    expected, m64 = params.values.astype(np.float64), np.zeros(size)
    for _ in range(3):
        grads = rng.standard_normal(size).astype(dtype)
        sgd(params, grads, m, lr=1e-2, momentum=momentum, weight_decay=0.1, grad_scale=0.7)
        m64 = momentum * m64 + 0.7 * grads
        expected = expected * np.where(decayed, 1 - 1e-2 * 0.1, 1) - 1e-2 * m64
    np.testing.assert_allclose(params.values, expected, rtol=tolerance(dtype), atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lion(dtype: Any) -> None:
    params: Any = Buffer(dtype)
    rng = np.random.default_rng(6)
    size, decayed = len(params.values), np.arange(len(params.values)) < params.decayed
    m = np.zeros(size, dtype)
    expected, m64 = params.values.astype(np.float64), np.zeros(size)
    doubtful = np.zeros(size, bool)  # a sum next to 0 may round to either sign
    for _ in range(3):
        grads = rng.standard_normal(size).astype(dtype)
        grads[::100] = 0
        lion(params, grads, m, lr=1e-2, beta1=0.9, beta2=0.95, weight_decay=0.1, grad_scale=0.7)
        g = 0.7 * grads.astype(np.float64)
        direction = 0.9 * m64 + (1 - 0.9) * g
        doubtful |= (direction != 0) & (abs(direction) < 1e-7)
        expected = expected * np.where(decayed, 1 - 1e-2 * 0.1, 1) - 1e-2 * np.sign(direction)
        m64 = 0.95 * m64 + 0.05 * g
    assert doubtful.sum() < 10
    assert m.dtype == params.values.dtype == dtype
    np.testing.assert_allclose(
        params.values[~doubtful], expected[~doubtful], rtol=tolerance(dtype), atol=tolerance(dtype)
    )
    np.testing.assert_allclose(m, m64, rtol=10 * tolerance(dtype), atol=tolerance(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1), (7, 7), (5, 33), (33, 5)])
def test_orthogonalize_turns_singular_values_alone(shape: tuple[int, int], dtype: Any) -> None:
    x = np.random.default_rng(7).standard_normal(shape)
    u, s, vh = np.linalg.svd(x, full_matrices=False)
    s = s / np.linalg.norm(s)
    for _ in range(5):  # an odd polynomial of a matrix is that of its singular values
        s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
    found = x.astype(dtype)
    orthogonalize(found, steps=5)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, (u * s) @ vh, atol=10 * tolerance(dtype))


def test_orthogonalize_leaves_zeros() -> None:
    x = np.zeros((3, 4), np.float32)
    orthogonalize(x, steps=5)
    assert not x.any()


@pytest.mark.parametrize("size", [0, 1, CHUNK, 3 * CHUNK + 5])
def test_squared_norm_is_summed_in_double_precision(size: int) -> None:
    x = np.full(size, 1e-3, np.float32)
    expected = size * float(np.float32(1e-3)) ** 2
    assert squared_norm(x) == pytest.approx(expected, rel=1e-12)


def test_squared_norm_does_not_overflow_where_float32_would() -> None:
    assert squared_norm(np.full(4, 1e30, np.float32)) == pytest.approx(4e60, rel=1e-6)
