"""The optimizers' updates against the NumPy backend in float64; the norm of the gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from elementwise_support import BF16, F32, SIZES, Array, null, place, room, run
from numba import njit

from splitbit_numba_backend.kernels import optimizers
from splitbit_numba_backend.kernels.shares import CHUNKS
from splitbit_numba_backend.simd.pointers import float64_pointer
from splitbit_numpy_backend import flat

RNG = np.random.default_rng(7)
OPTIONS = {"lr": 3e-3, "weight_decay": 0.1, "grad_scale": 0.3}
ADAMW = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}


class Flat:
    """What an update needs of the parameters."""

    def __init__(self, values: Array, decayed: int) -> None:
        self.values, self.decayed = values.astype(np.float64), decayed


def case(size: int) -> tuple[Array, ...]:
    """Return values, gradients, m and v."""
    draws = [RNG.standard_normal(size) for _ in range(4)]
    return tuple(place(draw) for draw in (*draws[:3], draws[3] ** 2))


def splits(size: int) -> list[int]:
    """Return numbers of decayed entries: none, all, whole vectors, and not."""
    return sorted({0, size, size // 32 * 16, size // 2})


def shadow_of(size: int, dtype: Any) -> Array:
    return room(size, BF16) if dtype == BF16 else null(BF16)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("step", (1, 1000))
def test_adamw(size: int, step: int) -> None:
    values, grads, m, v = case(size)
    if step == 1:
        m[...], v[...] = 0, 0  # v is then (1 - beta2) g^2: 1 - float32(0.999) would show
    for decayed in splits(size):
        expected = Flat(values, decayed)
        em, ev = m.astype(np.float64), v.astype(np.float64)
        flat.adamw(expected, grads, em, ev, step=step, **OPTIONS, **ADAMW)  # type: ignore[arg-type]
        factors = optimizers.adamw_factors(step=step, **OPTIONS, **ADAMW)
        for threads, dtype in ((1, BF16), (2, BF16), (3, F32)):
            found = [place(a) for a in (values, m, v)]
            shadow = shadow_of(size, dtype)
            run(
                *(optimizers.adamw, threads, found[0], grads, *found[1:], shadow),
                *(size, decayed, *factors),
            )
            for array, truth in zip(found, (expected.values, em, ev), strict=True):
                np.testing.assert_allclose(array, truth, rtol=1e-6, atol=3e-7)
            np.testing.assert_allclose(found[2], ev, rtol=1e-6)
            if dtype == BF16:
                np.testing.assert_array_equal(shadow, found[0].astype(BF16))
            if threads == 1:
                bits = [array.tobytes() for array in found]
            assert [array.tobytes() for array in found] == bits


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("momentum", (0.0, 0.9))
def test_sgd(size: int, momentum: float) -> None:
    values, grads, start, _ = case(size)
    m = start if momentum else None
    keep = 1 - OPTIONS["lr"] * OPTIONS["weight_decay"]
    for decayed in splits(size):
        expected, em = Flat(values, decayed), None if m is None else m.astype(np.float64)
        flat.sgd(expected, grads, em, momentum=momentum, **OPTIONS)  # type: ignore[arg-type]
        for threads, dtype in ((1, BF16), (2, BF16), (3, F32)):
            found, moved = place(values), None if m is None else place(m)
            shadow = shadow_of(size, dtype)
            numbers = (size, decayed, OPTIONS["grad_scale"], momentum, OPTIONS["lr"], keep)
            run(optimizers.sgd, threads, found, grads, moved, shadow, *numbers)
            np.testing.assert_allclose(found, expected.values, rtol=1e-6, atol=3e-7)
            if moved is not None:
                np.testing.assert_allclose(moved, em, rtol=1e-6, atol=3e-7)
            if dtype == BF16:
                np.testing.assert_array_equal(shadow, found.astype(BF16))
            if threads == 1:
                bits = found.tobytes()
            assert found.tobytes() == bits


@pytest.mark.parametrize("size", SIZES)
def test_lion(size: int) -> None:
    values, grads, start, _ = case(size)
    start[::5] = grads[::5] = 0  # 0 has no sign
    factors = (0.9, 1 - 0.9, 0.99, 1 - 0.99, OPTIONS["lr"], 1 - OPTIONS["lr"] * 0.1)
    for decayed in splits(size):
        expected, em = Flat(values, decayed), start.astype(np.float64)
        flat.lion(expected, grads, em, beta1=0.9, beta2=0.99, **OPTIONS)  # type: ignore[arg-type]
        for threads, dtype in ((1, BF16), (2, BF16), (3, F32)):
            found, moved = place(values), place(start)
            shadow = shadow_of(size, dtype)
            numbers = (size, decayed, OPTIONS["grad_scale"], *factors)
            run(optimizers.lion, threads, found, grads, moved, shadow, *numbers)
            np.testing.assert_allclose(found, expected.values, rtol=1e-6, atol=3e-7)
            np.testing.assert_allclose(moved, em, rtol=1e-6, atol=3e-7)
            if dtype == BF16:
                np.testing.assert_array_equal(shadow, found.astype(BF16))
            if threads == 1:
                bits = found.tobytes() + moved.tobytes()
            assert found.tobytes() + moved.tobytes() == bits


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_the_sign_of_what_is_not_finite_is_numpys(bad: float) -> None:
    values, m = place(np.ones(17)), place(np.zeros(17))
    grads = place(np.full(17, bad))
    run(optimizers.lion, 1, values, grads, m, null(BF16), 17, 0, 1.0, 0.9, 0.1, 0.9, 0.1, 1.0, 1.0)
    np.testing.assert_array_equal(values, 1 - np.sign(np.full(17, bad)))


def test_gaps_between_parameters_stay_zero() -> None:
    values, grads, m, v = (place(np.zeros(17)) for _ in range(4))
    factors = optimizers.adamw_factors(step=1, **OPTIONS, **ADAMW)
    run(optimizers.adamw, 1, values, grads, m, v, null(BF16), 17, 17, *factors)
    assert not values.any()


@njit
def total(partials: int, count: int) -> float:
    return optimizers.squared_norm_total(float64_pointer(partials), count)


def squared_norm(x: Array, threads: int) -> float:
    partials = room(CHUNKS, np.float64)
    run(optimizers.squared_norm, threads, x, partials, x.size)
    return total(partials.ctypes.data, x.size)


@pytest.mark.parametrize("size", (*SIZES, 4096 * 5, 4096 * 130 + 17))
def test_squared_norm(size: int) -> None:
    x = place(RNG.standard_normal(size))
    found = {squared_norm(x, threads) for threads in (1, 2, 3)}
    assert len(found) == 1
    assert found.pop() == pytest.approx(float(np.vdot(*[x.astype(np.float64)] * 2)), rel=1e-13)


def test_squared_norm_beyond_the_range_of_float32() -> None:
    assert squared_norm(place(np.array([1e30, 1e-30])), 1) == pytest.approx(1e60)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", (0, 4095, 5000 + 15, 9001))
def test_squared_norm_of_what_is_not_finite(bad: float, where: int) -> None:
    x = place(np.ones(9002))
    x[where] = bad
    np.testing.assert_equal(squared_norm(x, 2), bad)
