"""Attention: its definition row by row, sequences kept apart, and the cache."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opcheck import context

from splitbit_numpy_backend import attention as module
from splitbit_numpy_backend.attention import Cache, attention

Array = np.ndarray[Any, np.dtype[Any]]
HEADS, KV_HEADS, SIZE = 4, 2, 6


def draw(rows: int, seed: int = 0) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((rows, h * SIZE)) for h in (HEADS, KV_HEADS, KV_HEADS))
    return q, k, v


def run(q: Array, k: Array, v: Array, starts: list[int], cache: Cache | None = None) -> Array:
    ctx = context(grad=cache is None)
    offsets = np.array(starts, np.int32)
    return attention(ctx, q, k, v, offsets, cache, heads=HEADS, kv_heads=KV_HEADS)[0]


def row_by_row(q: Array, k: Array, v: Array, starts: list[int]) -> Array:
    out = np.empty_like(q)
    for first, stop in pairwise(starts):
        for row in range(first, stop):
            for h in range(HEADS):
                own = slice(h * SIZE, (h + 1) * SIZE)
                shared = h // (HEADS // KV_HEADS)
                theirs = slice(shared * SIZE, (shared + 1) * SIZE)
                scores = np.exp(k[first : row + 1, theirs] @ q[row, own] / np.sqrt(SIZE))
                out[row, own] = scores / scores.sum() @ v[first : row + 1, theirs]
    return out


@pytest.mark.parametrize("tile", [1, 3, 128])
@pytest.mark.parametrize("starts", [[0, 7], [0, 4, 8, 12], [0, 1, 6, 6, 8, 10]])
def test_definition(starts: list[int], tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TILE", tile)
    q, k, v = draw(starts[-1])
    np.testing.assert_allclose(run(q, k, v, starts), row_by_row(q, k, v, starts), rtol=1e-10)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_sequences_do_not_see_each_other(lengths: list[int]) -> None:
    starts = [0, *np.cumsum(lengths).tolist()]
    q, k, v = draw(starts[-1])
    together = run(q, k, v, starts)
    for first, stop in pairwise(starts):
        alone = run(q[first:stop], k[first:stop], v[first:stop], [0, stop - first])
        np.testing.assert_allclose(together[first:stop], alone, rtol=1e-10)


def test_large_scores_stay_finite() -> None:
    q, k, v = draw(5)
    assert np.isfinite(run(1e3 * q, 1e3 * k, v, [0, 5])).all()


@pytest.mark.parametrize("starts", [[0, 4], [0, 6], [1, 5], [0, 5, 3, 5]])
def test_starts_that_do_not_cover_the_rows_are_refused(starts: list[int]) -> None:
    q, k, v = draw(5)
    with pytest.raises(ValueError, match="starts must rise from 0 to the 5 rows"):
        run(q, k, v, starts)


def make_cache(sequences: int, capacity: int = 16) -> Cache:
    return Cache(
        sequences=sequences,
        capacity=capacity,
        kv_heads=KV_HEADS,
        head_size=SIZE,
        dtype=np.float64,
    )


@pytest.mark.parametrize("tile", [2, 128])
def test_cached_rows_equal_those_of_the_whole(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three sequences, fed in uneven parts: prompts, then token by token, one sequence idle."""
    monkeypatch.setattr(module, "TILE", tile)
    lengths = [9, 6, 9]
    starts = [0, *np.cumsum(lengths).tolist()]
    q, k, v = draw(starts[-1])
    expected = run(q, k, v, starts)
    cache, held = make_cache(3), [0, 0, 0]
    for parts in [(4, 1, 4), (3, 2, 3), (1, 1, 1), (0, 1, 0), (1, 1, 1)]:
        rows = np.concatenate(
            [np.arange(s + h, s + h + n) for s, h, n in zip(starts[:-1], held, parts, strict=True)]
        )
        offsets = [0, *np.cumsum(parts).tolist()]
        found = run(q[rows], k[rows], v[rows], offsets, cache)
        np.testing.assert_allclose(found, expected[rows], rtol=1e-10)
        held = [h + n for h, n in zip(held, parts, strict=True)]
        assert cache.lengths.tolist() == held
        assert cache.lengths.dtype == np.int32
    assert held == lengths


def test_truncate_forgets_the_end() -> None:
    q, k, v = draw(8)
    cache = make_cache(1)
    run(q[:5], k[:5], v[:5], [0, 5], cache)
    run(-q[:2], -k[:2], -v[:2], [0, 2], cache)  # a guess, to be taken back
    cache.truncate(5)
    assert cache.lengths.tolist() == [5]
    found = run(q[5:], k[5:], v[5:], [0, 3], cache)
    np.testing.assert_allclose(found, run(q, k, v, [0, 8])[5:], rtol=1e-10)
    cache.truncate(99)
    assert cache.lengths.tolist() == [8]


def test_a_full_cache_is_refused_and_unchanged() -> None:
    q, k, v = draw(6)
    cache = make_cache(2, capacity=4)
    run(q[:4], k[:4], v[:4], [0, 1, 4], cache)
    with pytest.raises(ValueError, match="5 tokens exceed the cache's capacity of 4"):
        run(q[:3], k[:3], v[:3], [0, 1, 3], cache)
    assert cache.lengths.tolist() == [1, 3]
