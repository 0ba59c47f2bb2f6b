"""Attention with a cache of keys and values: generation token by token, and its prompts.

Keys lie in blocks of 32 tokens, a column each: the scores of a query with a whole block are then
sums of vectors, with nothing to add up across lanes. Values lie row by row. A block serves all
query heads that share its key head while it is in the first cache, so that each number comes from
memory once. Prompts pack the cache into panels and go through `attention.attend`.

A thread owns whole (sequence, key head) pairs: it appends their keys and values and then reads
them, without waiting for others.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from splitbit_numba_backend.compiler import helper
from splitbit_numba_backend.kernels.attention import (
    BLOCK,
    LOWEST,
    NONE,
    TALL,
    WHOLE,
    attend,
    forward_scratch,
    owner,
    pack_turned,
    packed_elements,
    padded,
    work,
)
from splitbit_numba_backend.kernels.packing import copy_block, pack_transposed
from splitbit_numba_backend.kernels.shares import ONE, ZERO, Pointer, kernel
from splitbit_numba_backend.simd.math import exp_below
from splitbit_numba_backend.simd.pointers import (
    address,
    float32_pointer,
    get,
    int32_pointer,
    load,
    put,
    store,
    store_first,
)
from splitbit_numba_backend.simd.tiles import begin, end, per_unit
from splitbit_numba_backend.simd.vector import LANES, first, largest, maximum, splat, total

Array = np.ndarray[Any, np.dtype[Any]]

FEW = 4  # rows up to which packing the cache costs more than reading it row by row


class Cache:
    """Keys and values of the tokens seen so far, by sequence and key head.

    Memory beyond the lengths is rubbish; pages are touched when tokens come.
    """

    def __init__(
        self,
        *,
        sequences: int,
        capacity: int,
        kv_heads: int,
        head_size: int,
        dtype: Any = np.float32,
    ) -> None:
        """`dtype` is that of storage: float32, or two bytes for the bits of a bfloat16."""
        blocks = padded(capacity) // BLOCK
        columns = -(-head_size // LANES) * LANES  # values are read in whole vectors
        self.k = np.zeros((sequences, kv_heads, blocks, head_size, BLOCK), dtype)
        self.v = np.zeros((sequences, kv_heads, blocks * BLOCK, columns), dtype)
        self.capacity, self.head_size = capacity, head_size
        self.lengths = np.zeros(sequences, np.int32)

    @property
    def blocks(self) -> int:
        """Blocks of 32 tokens that a sequence has room for."""
        return self.k.shape[2]

    def grown(self, starts: Array) -> Array:
        """Return the lengths after the rows that `starts` divides. ValueError: no room for them."""
        grown = self.lengths + np.diff(starts)
        if grown.max(initial=0) > self.capacity:
            raise ValueError(f"{grown.max()} tokens exceed the cache's capacity of {self.capacity}")
        return grown.astype(np.int32)

    def append(self, k: Array, v: Array, starts: Array) -> None:
        """Add rows k, v (N, K * D). Raises ValueError, and adds none, if a sequence overflows.

        `cached_attention` does this itself; here is what it does, and the way for others.
        """
        grown = self.grown(starts)
        heads = (-1, self.k.shape[1], self.head_size)
        for s, (start, stop) in enumerate(pairwise(starts.tolist())):
            tokens = np.arange(self.lengths[s], grown[s])
            keys, values = k[start:stop].reshape(heads), v[start:stop].reshape(heads)
            self.k[s, :, tokens // BLOCK, :, tokens % BLOCK] = keys
            self.v[s, :, tokens, : self.head_size] = values
        self.lengths = grown

    def truncate(self, length: int) -> None:
        """Forget every token from `length` on, in every sequence. ValueError: it is negative."""
        if length < 0:
            raise ValueError(f"a cache cannot be cut to {length} tokens; 0 or more are expected")
        self.lengths = np.minimum(self.lengths, np.int32(length))


@helper
def cached_scratch(longest: int, size: int, group: int, item: int) -> int:
    """Return the bytes that a thread needs for at most `longest` keys, those of the rows included.

    About 2 T D elements. `group` is the number of query heads that share a key head.
    """
    few = 4 * group * (2 * padded(size) + padded(longest) + 1)
    return int(max(few, forward_scratch(longest, size, item)))


@kernel
def cached_attention(
    thread: int,
    threads: int,
    q: Pointer,  # (N, H * D), rows q_stride elements apart
    q_stride: int,
    k: Pointer,  # (N, K * D)
    k_stride: int,
    v: Pointer,  # (N, K * D)
    v_stride: int,
    out: Pointer,  # (N, H * D)
    out_stride: int,
    starts: Pointer,  # (S + 1,) int32
    lengths: Pointer,  # (S,) int32, of the cache before these rows
    sequences: int,  # S
    heads: int,  # H
    kv_heads: int,  # K
    size: int,  # D
    cached_keys: Pointer,  # (S, K, blocks, D, 32)
    cached_values: Pointer,  # (S, K, 32 blocks, D rounded up to 16)
    blocks: int,
    scratch: Pointer,  # this thread's, of `cached_scratch` bytes, 64-byte aligned
) -> None:
    """Append k and v to the cache, and attend over all that it then holds.

    The caller has checked that there is room, and raises the cache's lengths afterwards.
    """
    group, columns = heads // kv_heads, (size + LANES - 1) // LANES * LANES
    whole, before = 0, 0
    for s in range(sequences):
        whole += kv_heads * work(get(starts, s + 1) - get(starts, s), get(lengths, s))
    begin(scratch)
    for s in range(sequences):
        row, rows, past = get(starts, s), get(starts, s + 1) - get(starts, s), get(lengths, s)
        cost = work(rows, past)
        for h in range(kv_heads):
            mine = owner(before, cost, whole, threads) == thread
            before += cost
            if not mine or rows == 0:
                continue
            keys = cached_keys + (s * kv_heads + h) * blocks * BLOCK * size
            values = cached_values + (s * kv_heads + h) * blocks * BLOCK * columns
            append_keys(k + (row * k_stride + h * size), k_stride, rows, past, size, keys)
            own = values + past * columns
            copy_block(v + (row * v_stride + h * size), v_stride, rows, size, own, rows, columns)
            queries = q + (row * q_stride + h * group * size)
            results = out + (row * out_stride + h * group * size)
            if rows <= FEW:
                for r in range(rows):
                    attend_one(
                        queries + r * q_stride, results + r * out_stride, past + r + 1, group,
                        size, keys, values, float32_pointer(address(scratch)),
                    )  # fmt: skip
                continue
            width, length = padded(size), padded(past + rows)
            packed_keys, packed_values = scratch, scratch + (length + TALL) * width
            block = scratch + packed_elements(past + rows, size)
            for r in range(0, past + rows, BLOCK):
                count = min(BLOCK, past + rows - r)
                copy_block(keys + r * size, BLOCK, size, count, block, width, BLOCK)
                turn_back(block, width, packed_keys + r * width)
                copy_block(values + r * columns, columns, count, size, block, BLOCK, width)
                pack_turned(block, width, size, packed_values, r)
            attend(
                queries, q_stride, results, out_stride, float32_pointer(NONE), NONE,
                rows, past, group, size, packed_keys, packed_values, block,
            )  # fmt: skip
    end(scratch)


@kernel
def turn_back(block: Pointer, width: int, rows: Pointer) -> None:
    """Transpose a block of the cache (width, 32) into rows (32, width)."""
    out = int32_pointer(address(rows))
    pack_transposed(block, BLOCK, width, out, width // per_unit(block), WHOLE)


@kernel
def append_keys(
    k: Pointer, stride: int, rows: int, past: int, size: int, keys: Pointer
) -> None:  # keys (blocks, D, 32)
    """Write each row as a column of its block."""
    for r in range(rows):
        token = past + r
        block = keys + token // BLOCK * size * BLOCK
        for i in range(size):
            put(block, i * BLOCK + token % BLOCK, get(k, r * stride + i))


@kernel
def attend_one(
    q: Pointer,  # (G * D,)
    out: Pointer,  # (G * D,)
    seen: int,  # T, keys
    group: int,  # G
    size: int,  # D
    keys: Pointer,  # (blocks, D, 32)
    values: Pointer,  # (32 blocks, D rounded up to 16)
    scratch: Pointer,  # float32
) -> None:
    """Attention of one row: the query heads that share one key head."""
    width, length = padded(size), padded(seen)
    columns = (size + LANES - 1) // LANES * LANES
    scale = np.float32(1 / math.sqrt(size))
    queries = scratch  # (G, width)
    sums = queries + group * width  # (G, width)
    scores = sums + group * width  # (G, length), then weights
    totals = scores + group * length  # (G,), sums of weights
    copy_block(q, size, group, size, queries, group, width)
    for i in range(0, group * width, LANES):
        store(sums, i, splat(ZERO))
    for key in range(0, seen, BLOCK):
        block = keys + key * size
        for head in range(group):
            score_block(queries + head * width, block, size, scores + (head * length + key))
    for head in range(group):
        put(totals, head, soften(scores + head * length, scale, seen))
    for key in range(0, seen, BLOCK):
        count = min(BLOCK, seen - key)  # beyond lies rubbish, and zero times NaN is NaN
        for head in range(group):
            weights = scores + (head * length + key)
            for c in range(0, columns, LANES):
                block = values + (key * columns + c)
                add_block(weights, block, columns, count, sums + (head * width + c))
    for head in range(group):
        inverse = splat(ONE / get(totals, head))
        for c in range(0, size, LANES):
            x = load(sums, head * width + c) * inverse
            store_first(out, head * size + c, x, size - c)


# Each of these keeps four sums, or two pairs, so that no addition waits for the one before it.


@kernel
def score_block(q: Pointer, keys: Pointer, size: int, scores: Pointer) -> None:
    """Write the scores of a query (D,) with the 32 keys of a block (D, 32)."""
    low, high, low_odd, high_odd = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
    for i in range(0, size - 1, 2):
        even, odd, block = splat(get(q, i)), splat(get(q, i + 1)), keys + i * BLOCK
        low = low + even * load(block, 0)
        high = high + even * load(block, LANES)
        low_odd = low_odd + odd * load(block, 2 * LANES)
        high_odd = high_odd + odd * load(block, 3 * LANES)
    if size % 2:
        x, block = splat(get(q, size - 1)), keys + (size - 1) * BLOCK
        low, high = low + x * load(block, 0), high + x * load(block, LANES)
    store(scores, 0, low + low_odd)
    store(scores, LANES, high + high_odd)


@kernel
def add_block(weights: Pointer, values: Pointer, stride: int, count: int, sums: Pointer) -> None:
    """Add `count` rows of values, weighed, to 16 columns of sums."""
    a, b, c, d = load(sums, 0), splat(ZERO), splat(ZERO), splat(ZERO)
    whole = count // 4 * 4
    for i in range(0, whole, 4):
        row = values + i * stride
        a = a + splat(get(weights, i)) * load(row, 0)
        b = b + splat(get(weights, i + 1)) * load(row, stride)
        c = c + splat(get(weights, i + 2)) * load(row, 2 * stride)
        d = d + splat(get(weights, i + 3)) * load(row, 3 * stride)
    for i in range(whole, count):
        a = a + splat(get(weights, i)) * load(values, i * stride)
    store(sums, 0, (a + b) + (c + d))


@kernel
def soften(scores: Pointer, scale: float, seen: int) -> float:
    """Turn a row of scores into weights exp(score - largest); return their sum."""
    high = splat(LOWEST)
    for key in range(0, seen, LANES):
        high = maximum(first(load(scores, key), seen - key, LOWEST), high)
    top = splat(largest(high) * scale)  # a NaN may be missed here, but its exponential is a NaN
    added = splat(ZERO)
    for key in range(0, seen, LANES):
        x = first(exp_below(load(scores, key) * splat(scale) - top), seen - key, ZERO)
        added = added + x
        store(scores, key, x)
    return total(added)
