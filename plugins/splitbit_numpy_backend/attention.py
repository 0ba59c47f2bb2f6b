"""Causal attention within sequences, and the cache of keys and values.

Sequences of one length are computed together: training batches are one batched matrix multiply,
ragged ones fall into smaller groups, and nothing else differs between them. Within a group, a tile
of queries meets only the keys that its last row may see.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np

from splitbit_kit.api import Context, Gradients, KVCache
from splitbit_kit.api.backend import Array
from splitbit_numpy_backend.memory import matmul

TILE = 64  # query rows
SCORE_BYTES = 1024 * 1024  # of one tile: what stays in cache


class Cache:
    """Keys and values of the tokens seen so far, by sequence and head."""

    def __init__(
        self, *, sequences: int, capacity: int, kv_heads: int, head_size: int, dtype: Any
    ) -> None:
        shape = (sequences, kv_heads, capacity, head_size)
        self.k, self.v = np.empty(shape, dtype), np.empty(shape, dtype)
        self.lengths = np.zeros(sequences, np.int32)

    def append(self, k: Array, v: Array, starts: Array) -> None:
        """Add rows k, v (N, K * D). Raises ValueError, and adds none, if a sequence overflows."""
        _, kv_heads, capacity, size = self.k.shape
        grown = self.lengths + np.diff(starts)
        if grown.max() > capacity:
            raise ValueError(f"{grown.max()} tokens exceed the cache's capacity of {capacity}")
        for s, (first, stop) in enumerate(pairwise(starts.tolist())):
            tokens = slice(self.lengths[s], grown[s])
            for new, held in ((k, self.k), (v, self.v)):
                heads = new[first:stop].reshape(-1, kv_heads, size)
                held[s, :, tokens] = heads.swapaxes(0, 1)
        self.lengths = grown.astype(np.int32)

    def truncate(self, length: int) -> None:
        """Forget every token from `length` on, in every sequence."""
        self.lengths = np.minimum(self.lengths, np.int32(length))


@dataclass(frozen=True)
class Group:
    """Neighbouring sequences with the same number of rows, and of cached tokens before them."""

    first: int  # sequence
    stop: int
    row: int  # of the first sequence's first token
    length: int
    past: int

    def split(self, x: Array, kv_heads: int, size: int) -> Array:  # (N, H * D) -> (s, K, G, T, D)
        """View the group's rows by sequence, key head and the query heads of that key head."""
        sequences = self.stop - self.first
        rows = x[self.row : self.row + sequences * self.length]
        shared = x.shape[1] // (kv_heads * size)
        heads = rows.reshape(sequences, self.length, kv_heads, shared, size)
        return heads.transpose(0, 2, 3, 1, 4)


def _groups(starts: Array, past: Array, row_bytes: int) -> Iterator[Group]:
    lengths, pasts, rows = np.diff(starts).tolist(), past.tolist(), starts.tolist()
    first = 0
    while first < len(lengths):
        length, held = lengths[first], pasts[first]
        tile_bytes = row_bytes * min(length, TILE) * (held + length)
        limit = min(first + max(1, SCORE_BYTES // max(1, tile_bytes)), len(lengths))
        stop = first + 1
        while stop < limit and (lengths[stop], pasts[stop]) == (length, held):
            stop += 1
        yield Group(first, stop, rows[first], length, held)
        first = stop


def attention(
    ctx: Context,
    q: Array,
    k: Array,
    v: Array,
    starts: Array,
    cache: KVCache | None = None,
    *,
    heads: int,
    kv_heads: int,
) -> tuple[Array, Any]:  # q (N, H * D), k and v (N, K * D), starts (S + 1,) -> (N, H * D)
    """softmax(q k' / sqrt(D)) v, head by head, over the tokens up to each row's own.

    Raises ValueError unless `starts` rises from 0 to N.
    """
    if starts[0] != 0 or starts[-1] != len(q) or (np.diff(starts) < 0).any():
        # rows of no sequence would be left unwritten
        raise ValueError(f"attention: starts must rise from 0 to the {len(q)} rows of q: {starts}")
    size = q.shape[1] // heads
    past = np.zeros(len(starts) - 1, np.int32)
    if cache is not None:
        assert isinstance(cache, Cache), "a cache of another backend"
        past = cache.lengths
        cache.append(k, v, starts)
    out = ctx.workspace.take(q.shape, q.dtype)
    future = np.triu(np.full((TILE, TILE), -np.inf, q.dtype), 1)
    tiles = []
    for group in _groups(starts, past, heads * q.itemsize):
        queries, results = group.split(q, kv_heads, size), group.split(out, kv_heads, size)
        if cache is not None:
            these = slice(group.first, group.stop)
            keys, values = cache.k[these, :, None], cache.v[these, :, None]
        else:
            keys, values = group.split(k, kv_heads, size), group.split(v, kv_heads, size)
        for start in range(0, group.length, TILE):
            rows = slice(start, min(start + TILE, group.length))
            seen = group.past + rows.stop
            scaled = _stacked(ctx, queries[..., rows, :])
            scaled *= 1 / sqrt(size)
            scores = ctx.workspace.take((*scaled.shape[:-1], seen), q.dtype)
            np.matmul(scaled, keys[:, :, 0, :seen].swapaxes(-1, -2), out=scores)
            by_head = scores.reshape(*queries[..., rows, 0].shape, seen)
            own = rows.stop - rows.start
            by_head[..., seen - own :] += future[:own, :own]
            _softmax(scores)
            np.matmul(by_head, values[..., :seen, :], out=results[..., rows, :])
            if ctx.grad:
                tiles.append((group, rows, scaled, scores))
    return out, (k, v, tiles, heads, kv_heads)


def attention_backward(
    ctx: Context, dout: Array, saved: Any, grads: Gradients
) -> tuple[Array, Array, Array]:  # dout (N, H * D) -> dq (N, H * D), dk and dv (N, K * D)
    """Gradients of q, k and v. With p the probabilities: dscores = p (dp - sum(p dp))."""
    k, v, tiles, heads, kv_heads = saved
    size = dout.shape[1] // heads
    dq = ctx.workspace.take(dout.shape, dout.dtype)
    dk, dv = ctx.workspace.take(k.shape, k.dtype), ctx.workspace.take(v.shape, v.dtype)
    while tiles:  # from the last: a group's last tile meets all its keys, so it writes first
        group, rows, scaled, p = tiles.pop()
        parts = (group.split(x, kv_heads, size) for x in (dout, dq, k, v, dk, dv))
        douts, dqueries, keys, values, dkeys, dvalues = parts
        seen, later = rows.stop, rows.stop < group.length
        dstacked = _stacked(ctx, douts[..., rows, :])
        matmul(ctx, p.swapaxes(-1, -2), dstacked, dvalues[:, :, 0, :seen], accumulate=later)
        dscores = ctx.workspace.take(p.shape, p.dtype)
        np.matmul(dstacked, values[:, :, 0, :seen].swapaxes(-1, -2), out=dscores)
        dscores -= np.vecdot(p, dscores)[..., None]
        dscores *= p
        matmul(ctx, dscores.swapaxes(-1, -2), scaled, dkeys[:, :, 0, :seen], accumulate=later)
        by_head = dscores.reshape(*douts[..., rows, 0].shape, seen)
        np.matmul(by_head, keys[..., :seen, :], out=dqueries[..., rows, :])
    dq *= 1 / sqrt(size)
    return dq, dk, dv


def _stacked(ctx: Context, x: Array) -> Array:  # (s, K, G, T, D) -> (s, K, G * T, D)
    """Copy, so that the query heads that share a key head meet it in one matrix multiply."""
    sequences, kv_heads, shared, length, size = x.shape
    copy = ctx.workspace.take(x.shape, x.dtype)
    np.copyto(copy, x)
    return copy.reshape(sequences, kv_heads, shared * length, size)


def _softmax(scores: Array) -> None:
    scores -= scores.max(axis=-1, keepdims=True)  # exp(89) overflows float32
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
