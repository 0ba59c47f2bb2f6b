"""Cross-entropy and its gradient against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from elementwise_support import (
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

from splitbit_numba_backend.kernels import loss

RNG = np.random.default_rng(5)
ROWS = 7


def case(vocabulary: int, spread: float = 3) -> tuple[Array, Array, Array]:
    """Return logits (rows with NaN between them), targets and weights."""
    logits = place(RNG.standard_normal((ROWS, vocabulary)) * spread, ld=vocabulary + 3)
    targets = place(RNG.integers(0, vocabulary, ROWS), np.int32)
    targets[-1] = vocabulary - 1
    return logits, targets, place(RNG.uniform(0.1, 1, ROWS))


def cross_entropy(
    logits: Array, targets: Array, weights: Array | None, dtype: Any, threads: int = 1
) -> tuple[Array, Array]:
    vocabulary = logits.shape[1] - 3
    ld = padded(vocabulary)
    nll = room(ROWS)
    dlogits = null(dtype) if weights is None else room((ROWS, ld), dtype)
    numbers = (ROWS, vocabulary, logits.shape[1], ld)
    run(loss.cross_entropy, threads, logits, targets, weights, nll, dlogits, *numbers)
    return nll, dlogits


def exact(logits: Array, targets: Array, weights: Array) -> tuple[Array, Array]:
    logits = logits[:, :-3].astype(np.float64)
    logits = logits - logits.max(axis=1, keepdims=True)
    mass = np.exp(logits).sum(axis=1, keepdims=True)
    rows = np.arange(ROWS)
    gradient = np.exp(logits) / mass
    gradient[rows, targets] -= 1
    return np.log(mass)[:, 0] - logits[rows, targets], gradient * weights[:, None]


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
@pytest.mark.parametrize("vocabulary", SIZES)
def test_loss_and_gradient(vocabulary: int, dtype: Any) -> None:
    logits, targets, weights = case(vocabulary)
    before = logits.tobytes()
    nll, dlogits = cross_entropy(logits, targets, weights, dtype, threads=2)
    expected, gradient = exact(logits, targets, weights)
    np.testing.assert_allclose(nll, expected, rtol=2e-6, atol=1e-6)
    found = dlogits.astype(F32)
    np.testing.assert_allclose(found[:, :vocabulary], gradient, rtol=tolerance(dtype), atol=4e-7)
    assert not found[:, vocabulary:].any()
    assert logits.tobytes() == before


@pytest.mark.parametrize("vocabulary", (17, 257))
def test_without_gradient(vocabulary: int) -> None:
    logits, targets, weights = case(vocabulary)
    nll, _ = cross_entropy(logits, targets, None, F32, threads=3)
    np.testing.assert_array_equal(nll, cross_entropy(logits, targets, weights, F32)[0])


def test_gradient_alone() -> None:
    logits, targets, weights = case(33)
    dlogits = room((ROWS, 64))
    run(loss.cross_entropy, 1, logits, targets, weights, None, dlogits, ROWS, 33, 36, 64)
    np.testing.assert_array_equal(dlogits, cross_entropy(logits, targets, weights, F32)[1])


def test_large_logits() -> None:
    logits, targets, weights = case(65, spread=1000)
    logits[0, :65] = 1e30
    logits[1, :65] -= 1e5  # a lane beyond the vocabulary must not become the maximum
    nll, dlogits = cross_entropy(logits, targets, weights, F32)
    expected, gradient = exact(logits, targets, weights)
    np.testing.assert_allclose(nll, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(dlogits[:, :65], gradient, atol=1e-6)


def test_same_bits_for_any_number_of_threads() -> None:
    logits, targets, weights = case(257)
    results = [cross_entropy(logits, targets, weights, STORAGE[1], n) for n in (1, 2, 3)]
    assert len({(nll.tobytes(), dlogits.tobytes()) for nll, dlogits in results}) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("column", range(0, 33, 4))
@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_what_is_not_finite_stays_so_and_in_its_row(bad: float, column: int, dtype: Any) -> None:
    logits, targets, weights = case(33)
    logits[2, column] = bad
    nll, dlogits = cross_entropy(logits, targets, weights, dtype)
    assert np.isnan(nll[2])
    assert np.isnan(dlogits[2, :33].astype(F32)).all()
    others = [0, 1, 3, 4, 5, 6]
    assert np.isfinite(nll[others]).all()
    assert np.isfinite(dlogits[others].astype(F32)).all()
    assert not dlogits[:, 33:].astype(F32).any()


def test_an_impossible_target_costs_infinity() -> None:
    logits, targets, weights = case(17)
    logits[2, targets[2]] = -np.inf
    nll, dlogits = cross_entropy(logits, targets, weights, F32)
    assert nll[2] == np.inf
    np.testing.assert_allclose(dlogits[2, targets[2]], -weights[2])
