"""Gathering rows and scattering gradients, against NumPy's indexing."""

from __future__ import annotations

import numpy as np
import pytest
from elementwise_support import SIZES, Array, place, room, run

from splitbit_numba_backend.kernels import embedding

RNG = np.random.default_rng(6)
VOCABULARY, ROWS = 11, 40


def draw(*shape: int) -> Array:
    return place(RNG.standard_normal(shape))


def draw_ids(count: int) -> Array:
    ids = place(RNG.integers(0, count - 1, ROWS), np.int32)  # the last row is never read
    ids[:2] = 0, count - 2
    return ids


@pytest.mark.parametrize("width", SIZES)
def test_embedding(width: int) -> None:
    ids, table = draw_ids(VOCABULARY), draw(VOCABULARY, width)
    positions, places = draw_ids(5), draw(5, width)
    for threads in (1, 2, 3):
        out, summed = room((ROWS, width)), room((ROWS, width))
        run(embedding.embedding, threads, ids, table, out, ROWS, width)
        np.testing.assert_array_equal(out, table[ids])
        run(
            *(embedding.embedding_sum, threads, ids, table, positions, places),
            *(summed, ROWS, width),
        )
        np.testing.assert_array_equal(summed, table[ids] + places[positions])


@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("width", SIZES)
def test_backward(width: int, accumulate: bool) -> None:
    ids, dout, start = draw_ids(VOCABULARY), draw(ROWS, width), draw(VOCABULARY, width)
    if not accumulate:
        start[...] = np.nan  # rubbish
    expected = start if accumulate else np.zeros_like(start)
    expected = expected.copy()
    for i, row in zip(ids.tolist(), dout, strict=True):
        expected[i] += row
    for threads in (1, 2, 3):
        dtable = place(start)
        numbers = (ROWS, width, VOCABULARY, accumulate)
        run(embedding.embedding_backward, threads, ids, dout, dtable, *numbers)
        np.testing.assert_array_equal(dtable, expected)  # the same order, so the same bits


def test_nan_goes_to_its_own_row() -> None:
    ids, dout, dtable = draw_ids(VOCABULARY), draw(ROWS, 17), room((VOCABULARY, 17))
    dout[3, 16] = np.nan
    run(embedding.embedding_backward, 2, ids, dout, dtable, ROWS, 17, VOCABULARY, False)
    assert np.isnan(dtable[ids[3], 16])
    assert np.isnan(dtable).sum() == 1
