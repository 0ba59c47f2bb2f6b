"""Dropout against the NumPy backend, which must drop the same elements; philox's own vectors."""

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
    padded,
    place,
    room,
    run,
    tolerance,
)
from numba import njit

from splitbit_kit.api import Context
from splitbit_kit.engine.workspace import BufferPool
from splitbit_numba_backend.kernels import dropout as kernels
from splitbit_numpy_backend.dropout import kept

RNG = np.random.default_rng(8)
WHERE = {"seed": 0xFEDCBA9876543210, "step": 12, "micro_batch": 3}
SITE = 5


def keep(shape: tuple[int, ...], rate: float) -> Array:
    """Return the elements that the NumPy backend keeps."""
    return kept(Context(BufferPool(), **WHERE), shape, rate, SITE)  # type: ignore[arg-type]


def dropout(x: Array, residual: Array | None, rate: float, out: Array, threads: int = 1) -> Array:
    rows, width = x.shape
    run(
        *(kernels.dropout, threads, x, residual, out, rows, width, out.shape[1]),
        *(_signed(WHERE["seed"]), SITE, WHERE["step"], WHERE["micro_batch"]),
        *(int(rate * 2**32), 1 / (1 - rate)),
    )
    return out


def _signed(seed: int) -> int:
    return seed - 2**64 if seed >= 2**63 else seed


@pytest.mark.parametrize("rate", (0.1, 0.5, 0.999))
@pytest.mark.parametrize("width", (*SIZES, 1100))
def test_same_elements_as_numpy(width: int, rate: float) -> None:
    x = place(RNG.standard_normal((7, width)) + 5)
    for threads in (1, 2, 3):
        out = dropout(x, None, rate, room((7, width)), threads)
        expected = x * keep(x.shape, rate) / np.float64(1 - rate)
        np.testing.assert_allclose(out, expected, rtol=3e-7)


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
@pytest.mark.parametrize("width", (15, 65))
def test_into_storage_and_onto_a_residual(width: int, dtype: Any) -> None:
    x, residual = (place(RNG.standard_normal((9, width))) for _ in range(2))
    expected = x * keep(x.shape, 0.2) / 0.8
    stored = dropout(x, None, 0.2, room((9, padded(width)), dtype), 2).astype(F32)
    np.testing.assert_allclose(stored[:, :width], expected, rtol=tolerance(dtype))
    assert not stored[:, width:].any()
    summed = dropout(x, residual, 0.2, room((9, width)), 2)
    np.testing.assert_allclose(summed, residual + expected, rtol=1e-6, atol=1e-6)


def test_nan_stays() -> None:
    x = place(RNG.standard_normal((2, 17)))
    x[0, 3] = x[1, 16] = np.nan
    for dtype in (F32, BF16):
        out = dropout(x, None, 0.5, room((2, 32), dtype)).astype(F32)
        np.testing.assert_array_equal(np.isnan(out[:, :17]), np.isnan(x))


@njit
def philox(counter: Any, seed: Any) -> Any:
    return kernels.philox(counter[0], counter[1], counter[2], counter[3], seed)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ("0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("f f f f", "f f", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_against_the_vectors_of_random123(counter: str, key: str, words: str) -> None:
    def read(text: str) -> list[int]:
        return [0xFFFFFFFF if word == "f" else int(word, 16) for word in text.split()]

    low, high = read(key)
    found = philox(np.array(read(counter), np.uint64), np.uint64(low | high << 32))
    assert [int(word) for word in found] == read(words)
