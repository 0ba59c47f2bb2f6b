"""Dropout, and the counter-based random numbers it is made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from splitbit_kit.api import Context, Gradients
from splitbit_kit.api.backend import Array
from splitbit_numpy_backend.memory import row_blocks

CHUNK = 4096  # counters at a time, so that the 64-bit temporaries stay in cache
LOW = 0xFFFFFFFF


def dropout(
    ctx: Context, x: Array, *, rate: float, site: int
) -> tuple[Array, Any]:  # (N, C) -> (N, C)
    """x / (1 - rate) where an element is kept, else 0."""
    keep = kept(ctx, x.shape, rate, site)
    return _masked(ctx, x, keep, rate), (keep, rate)


def dropout_backward(
    ctx: Context, dout: Array, saved: Any, grads: Gradients
) -> tuple[Array]:  # dout (N, C) -> dx (N, C)
    """dx = dout / (1 - rate) where the element was kept, else 0."""
    keep, rate = saved
    return (_masked(ctx, dout, keep, rate),)


def _masked(ctx: Context, x: Array, keep: Array, rate: float) -> Array:
    out = ctx.workspace.take(x.shape, x.dtype)
    for rows in row_blocks(x):
        np.multiply(x[rows], keep[rows], out=out[rows])
        out[rows] /= 1 - rate
    return out


def kept(ctx: Context, shape: tuple[int, ...], rate: float, site: int) -> Array:
    """Return booleans: which elements of a (N, C) array dropout keeps, see `Ops.dropout`."""
    size = int(np.prod(shape))
    counters = -(-size // 4)
    words_kept = ctx.workspace.take((counters, 4), np.bool_)
    threshold = int(rate * 2**32)
    where = (site, ctx.step, ctx.micro_batch)
    for start in range(0, counters, CHUNK):
        stop = min(start + CHUNK, counters)
        counter = np.arange(start, stop, dtype=np.uint64)
        words = philox4x32(counter, *(np.uint64(word & LOW) for word in where), seed=ctx.seed)
        for i, word in enumerate(words):
            np.greater_equal(word, threshold, out=words_kept[start:stop, i])
    return words_kept.reshape(-1)[:size].reshape(shape)


def philox4x32(c0: Any, c1: Any, c2: Any, c3: Any, *, seed: int) -> tuple[Any, Any, Any, Any]:
    """Return four random 32-bit words for each counter (c0, c1, c2, c3), after 10 rounds.

    All are uint64, arrays or scalars, with values below 2^32: the products need 64 bits. The key
    is the low and the high half of `seed`. Salmon et al. 2011.
    """
    key0, key1 = seed & LOW, seed >> 32 & LOW
    for _ in range(10):
        product0, product2 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = product2 >> 32 ^ c1 ^ key0, product2 & LOW
        c2, c3 = product0 >> 32 ^ c3 ^ key1, product0 & LOW
        key0, key1 = key0 + 0x9E3779B9 & LOW, key1 + 0xBB67AE85 & LOW
    return c0, c1, c2, c3
