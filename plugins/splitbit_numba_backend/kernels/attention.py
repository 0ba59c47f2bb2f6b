"""Causal attention and its gradient, block by block: no T x T matrix is ever kept.

Forward, as in FlashAttention (Dao et al. 2022, https://arxiv.org/abs/2205.14135): a block of
queries walks along the keys that it sees, carrying each row's largest score so far, the sum of the
exponentials below it, and the weighted sum of values; when a larger score turns up, the sums are
scaled down. What stays is the output and each row's log(sum(exp(scores))), from which the backward
pass makes every probability again: p = exp(score - lse).

    forward    scores = q k' / sqrt(D)       p = exp(scores - lse)     out = p v
    backward   delta = sum(out dout) = sum(p dp), row by row           dp = dout v'
               ds = p (dp - delta) / sqrt(D)
               dq = ds k                     dk = ds' q                dv = p' dout

A thread owns whole (sequence, key head) pairs, so no two threads add to the same number, and the
result does not depend on how many threads there are.

All rows are stored in one type, that of `scratch`: float32, or bfloat16, whose products are added
up in float32. Scores, statistics and sums are float32. Blocks that are not whole, in rows or in
the head size, are first copied to scratch and filled up with zeros: so any head size will do, and
nothing outside a row is read.
"""

from __future__ import annotations

import math

import numpy as np

from splitbit_numba_backend.compiler import helper
from splitbit_numba_backend.kernels.packing import (
    copy_block,
    pack_columns,
    pack_rows,
    pack_transposed,
    padded_units,
)
from splitbit_numba_backend.kernels.shares import ONE, ZERO, Pointer, inline, kernel
from splitbit_numba_backend.simd.debug import finite
from splitbit_numba_backend.simd.features import PATH
from splitbit_numba_backend.simd.math import exp_below
from splitbit_numba_backend.simd.pointers import (
    address,
    float32_pointer,
    get,
    int32_pointer,
    load,
    load_first,
    put,
    store,
    store_first,
    store_pairs,
)
from splitbit_numba_backend.simd.tiles import (
    COLUMNS,
    begin,
    chosen,
    end,
    per_unit,
    tile_columns,
    tile_product,
    tile_rows,
)
from splitbit_numba_backend.simd.vector import (
    LANES,
    largest,
    maximum,
    rest,
    splat,
    total,
)

# Numba compiles a function once more for every literal integer that it is passed; a NumPy integer
# is a constant to the compiler all the same, and compiled once.
BLOCK = np.intp(32)  # rows and columns of the blocks in which scores are computed
KEYS = np.intp(256)  # of a forward step, whose scores take 32 KB
BACK_QUERIES = np.intp(128)  # of a backward step: the depth of the sums for dk and dv
BACK_KEYS = np.intp(128)  # of a backward step: the depth of the sums for dq
NONE = np.intp(0)
WHOLE = NONE  # blocks are whole: packing needs no room for their edges

assert BLOCK == COLUMNS

# rows that products of whole tiles write where BLOCK are wanted; those beyond are never read
TALL = np.intp(max(-(-32 // chosen(PATH, size).rows) * chosen(PATH, size).rows for size in (2, 4)))

LOWEST = np.float32(-np.inf)


@helper
def padded(count: int) -> int:
    """Return `count` rounded up to whole blocks."""
    return (count + BLOCK - 1) // BLOCK * BLOCK


@helper
def packed_elements(longest: int, size: int) -> int:
    """Return the elements of packed keys and values, those after them for whole tiles included."""
    steps = (longest + KEYS - 1) // KEYS
    return (padded(longest) + TALL) * padded(size) + (steps * padded(size) + TALL) * KEYS


@helper
def forward_scratch(longest: int, size: int, item: int) -> int:
    """Return the bytes that a thread needs when no sequence has more than `longest` keys.

    About 2 T D elements. `item` is what products read: 4 bytes for float32, 2 for bfloat16.
    """
    width = padded(size)
    read = packed_elements(longest, size) + (3 * width + KEYS) * BLOCK
    return int(item * read + 4 * BLOCK * (KEYS + TALL + width + TALL + 2))


@helper
def backward_scratch(longest: int, size: int, item: int) -> int:
    """Return the bytes that a thread needs when no sequence has more than `longest` rows.

    About 3 T D elements and as much as 2 T D float32.
    """
    length, width = padded(longest), padded(size)
    wide = min(BACK_QUERIES, length)
    rows = (3 * length + 2 * TALL) * width
    blocks = (BLOCK + 4 * wide) * width
    scores = (BACK_KEYS + 2 * TALL) * wide + TALL * BACK_KEYS
    sums = (2 * length + wide) // BLOCK * TALL * width
    return int(item * (rows + blocks + scores) + 4 * (sums + 2 * (TALL + 1) * wide))


# ---- blocks of 32 rows, and the panels that products read


@inline
def depth_units(pointer: Pointer, size: int) -> int:
    """Return the units of four bytes, in whole steps of a product, that hold a head's row."""
    return padded_units(size, per_unit(pointer))


@kernel
def whole_block(
    source: Pointer, stride: int, rows: int, size: int, block: Pointer
) -> tuple[Pointer, int]:
    """Return at most 32 rows as a whole block, and its stride: where they are, or a copy."""
    if rows == BLOCK and size % BLOCK == 0:
        return source, stride
    width = padded(size)
    copy_block(source, stride, rows, size, block, BLOCK, width)
    return block, width


@kernel
def pack_keys(block: Pointer, stride: int, size: int, panel: Pointer) -> None:
    """Make a block's 32 rows the columns of a panel: the right side of q k', or of k q'."""
    depth = depth_units(block, size) * per_unit(block)
    pack_rows(block, stride, BLOCK, depth, int32_pointer(address(panel)), WHOLE)


@kernel
def pack_values(
    block: Pointer, stride: int, size: int, panels: Pointer, row: int, length: int
) -> None:
    """Cut a block into panels of 32 columns, `length` rows high: the right side of p v."""
    for column in range(0, size, COLUMNS):
        panel = int32_pointer(address(panels + (column * length + row * COLUMNS)))
        pack_columns(block + column, stride, BLOCK, BLOCK, panel, WHOLE)


@kernel
def pack_turned(block: Pointer, stride: int, size: int, values: Pointer, key: int) -> None:
    """Write a block's 32 rows as columns: the left side of v' p', stored by KEYS columns."""
    step = values + (key // KEYS * KEYS * padded(size) + key % KEYS)
    for column in range(0, size, BLOCK):
        out = int32_pointer(address(step + column * KEYS))
        pack_transposed(block + column, stride, BLOCK, out, KEYS // per_unit(block), WHOLE)


@kernel
def product(
    left: Pointer, stride: int, rows: int, panel: Pointer, depth: int, out: Pointer,
    out_stride: int, accumulate: bool,
) -> None:  # fmt: skip
    """out (rows, 32) (+)= left (rows, depth units) times a panel, up to TALL rows of it."""
    right = int32_pointer(address(panel))
    for row in range(0, rows, tile_rows(left)):
        for column in range(0, COLUMNS, tile_columns(left)):
            tile_product(
                left + row * stride,
                stride,
                right + column,
                depth,
                out + (row * out_stride + column),
                out_stride,
                accumulate,
            )


@kernel
def write_row(row: Pointer, size: int, target: Pointer) -> None:
    """Write one row of a block to where it is stored."""
    for c in range(0, size, LANES):
        store_first(target, c, load(row, c), size - c)


@kernel
def dot(x: Pointer, y: Pointer, size: int) -> float:
    """Return the sum of the products of two rows' elements."""
    added = splat(ZERO)
    for c in range(0, size, LANES):
        added = added + load_first(x, c, size - c, ZERO) * load_first(y, c, size - c, ZERO)
    return total(added)


# ---- whose work is whose


@helper
def work(rows: int, past: int) -> int:
    """Return what a head of a sequence costs: its scores, and something for each row."""
    return rows * (past + (rows + 1) // 2 + BLOCK)


@helper
def owner(before: int, cost: int, whole: int, threads: int) -> int:
    """Return the thread in whose share of the whole work the middle of this piece lies."""
    return min(threads - 1, threads * (2 * before + cost) // max(1, 2 * whole))


# ---- forward


@kernel
def attention_forward(
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
    lse: Pointer,  # (N, H) float32, or null: not wanted
    starts: Pointer,  # (S + 1,) int32
    sequences: int,  # S
    heads: int,  # H
    kv_heads: int,  # K
    size: int,  # D
    scratch: Pointer,  # this thread's, of `forward_scratch` bytes, 64-byte aligned
) -> None:
    """softmax(q k' / sqrt(D)) v within each sequence, and the log-sum-exp of each row's scores."""
    group, width = heads // kv_heads, padded(size)
    whole, before = 0, 0
    for s in range(sequences):
        whole += kv_heads * work(get(starts, s + 1) - get(starts, s), 0)
    begin(scratch)
    for s in range(sequences):
        row, rows = get(starts, s), get(starts, s + 1) - get(starts, s)
        cost, length = work(rows, 0), padded(rows)
        for h in range(kv_heads):
            mine = owner(before, cost, whole, threads) == thread
            before += cost
            if not mine or rows == 0:
                continue
            one, shared = h * size, h * group * size  # first columns of the key head, of its group
            keys = scratch
            values = keys + (length + TALL) * width
            block = scratch + packed_elements(rows, size)
            for r in range(0, rows, BLOCK):
                count = min(BLOCK, rows - r)
                own = k + ((row + r) * k_stride + one)
                copy_block(own, k_stride, count, size, keys + r * width, BLOCK, width)
                own = v + ((row + r) * v_stride + one)
                y, apart = whole_block(own, v_stride, count, size, block)
                pack_turned(y, apart, size, values, r)
            attend(
                q + (row * q_stride + shared), q_stride,
                out + (row * out_stride + shared), out_stride,
                lse + (row * heads + h * group) if address(lse) != 0 else lse, heads,
                rows, NONE, group, size, keys, values, block,
            )  # fmt: skip
    end(scratch)


@kernel
def attend(
    q: Pointer,  # (T, G * D): the query heads that share one key head
    q_stride: int,
    out: Pointer,  # (T, G * D)
    out_stride: int,
    lse: Pointer,  # (T, G), or null
    lse_stride: int,
    rows: int,  # T
    past: int,  # keys before row 0's own
    group: int,  # G
    size: int,  # D
    keys: Pointer,  # (past + T, width), padded
    values: Pointer,  # steps of KEYS keys, each (width, KEYS)
    scratch: Pointer,
) -> None:
    """Attention of one key head's query heads, over packed keys and values.

    Scores have a row for each key and a column for each query: so the statistics of 16 queries are
    one vector, and nothing is added up across lanes.
    """
    width = padded(size)
    scale = np.float32(1 / math.sqrt(size))
    block = scratch  # (32, width)
    queries = block + BLOCK * width  # a panel, the right side of k q'
    weights = queries + BLOCK * width  # (KEYS, 32), a panel, the right side of v' p'
    result = weights + KEYS * BLOCK  # (width, 32)
    scores = float32_pointer(address(result + width * BLOCK))  # (KEYS, 32)
    sums = scores + (KEYS + TALL) * BLOCK  # (width, 32), of values times weights
    tops = sums + (width + TALL) * BLOCK  # (32,), each query's largest score so far
    totals = tops + BLOCK  # (32,), each query's sum of weights so far
    depth = depth_units(scratch, size)  # of sums over the head size
    for head in range(group):
        for row in range(0, rows, BLOCK):
            count = min(BLOCK, rows - row)
            own = q + (row * q_stride + head * size)
            x, apart = whole_block(own, q_stride, count, size, block)
            pack_keys(x, apart, size, queries)
            seen = padded(past + row + count)
            for start in range(0, seen, KEYS):
                stop = min(start + KEYS, seen)
                many = stop - start
                product(keys + start * width, width, many, queries, depth, scores, BLOCK, False)
                for half in range(0, BLOCK, LANES):
                    # key j of this step is hidden from lanes below j - last
                    last = past + row + half - start
                    weigh(
                        scores + half, scale, last, many, weights, half, tops + half,
                        totals + half, sums + half, width, start == 0,
                    )  # fmt: skip
                x = values + start * width
                seen_units = many // per_unit(weights)
                product(x, KEYS, width, weights, seen_units, sums, BLOCK, start > 0)
            for half in range(0, BLOCK, LANES):
                inverse = splat(ONE) / load(totals, half)
                for i in range(half, width * BLOCK, BLOCK):
                    store(result, i, load(sums, i) * inverse)
            turned = int32_pointer(address(block))
            pack_transposed(result, BLOCK, width, turned, width // per_unit(block), WHOLE)
            for r in range(count):
                place = out + ((row + r) * out_stride + head * size)
                write_row(block + r * width, size, place)
                if address(lse) != 0:
                    value = get(tops, r) + np.float32(math.log(get(totals, r)))
                    put(lse, (row + r) * lse_stride + head, value)
                    finite(value, row + r)


@kernel
def weigh(
    scores: Pointer, scale: float, last: int, many: int, weights: Pointer, half: int,
    tops: Pointer, totals: Pointer, sums: Pointer, width: int, fresh: bool,
) -> None:  # fmt: skip
    """Turn 16 queries' next scores into weights exp(score - top), and scale down their sums for it.

    Lane i sees the keys up to last + i. A NaN is never the larger of two numbers, so `tops` may
    miss it; but its exponential is a NaN.
    """
    seen = max(0, min(many, last + 1))  # by all lanes
    high = splat(LOWEST)
    for key in range(seen):
        high = maximum(load(scores, key * BLOCK), high)
    for key in range(seen, many):
        high = maximum(rest(load(scores, key * BLOCK), key - last, LOWEST), high)
    old = splat(LOWEST) if fresh else load(tops, 0)
    new = maximum(old, high * splat(scale))
    added = splat(ZERO)
    for key in range(0, many, 2):
        x = exp_below(load(scores, key * BLOCK) * splat(scale) - new)
        y = exp_below(load(scores, key * BLOCK + BLOCK) * splat(scale) - new)
        if key + 1 > last:
            x, y = rest(x, key - last, ZERO), rest(y, key + 1 - last, ZERO)
        added = added + (x + y)
        if per_unit(weights) == 2:
            store_pairs(weights, key * BLOCK + 2 * half, x, y)
        else:
            store(weights, key * BLOCK + half, x)
            store(weights, key * BLOCK + BLOCK + half, y)
    store(tops, 0, new)
    if fresh:
        store(totals, 0, added)
        return
    shrink = exp_below(old - new)
    store(totals, 0, load(totals, 0) * shrink + added)
    if largest(new - old) > 0:
        for r in range(width):
            store(sums, r * BLOCK, load(sums, r * BLOCK) * shrink)


# ---- backward


@kernel
def attention_backward(
    thread: int,
    threads: int,
    q: Pointer,  # (N, H * D), rows q_stride elements apart
    q_stride: int,
    k: Pointer,  # (N, K * D)
    k_stride: int,
    v: Pointer,  # (N, K * D)
    v_stride: int,
    out: Pointer,  # (N, H * D), as the forward pass wrote it
    out_stride: int,
    dout: Pointer,  # (N, H * D)
    dout_stride: int,
    lse: Pointer,  # (N, H) float32
    dq: Pointer,  # (N, H * D)
    dq_stride: int,
    dk: Pointer,  # (N, K * D)
    dk_stride: int,
    dv: Pointer,  # (N, K * D)
    dv_stride: int,
    starts: Pointer,  # (S + 1,) int32
    sequences: int,  # S
    heads: int,  # H
    kv_heads: int,  # K
    size: int,  # D
    scratch: Pointer,  # this thread's, of `backward_scratch` bytes, 64-byte aligned
) -> None:
    """Gradients of q, k and v; those of k and v are summed over the query heads that share them."""
    group = heads // kv_heads
    whole, before = 0, 0
    for s in range(sequences):
        whole += kv_heads * work(get(starts, s + 1) - get(starts, s), 0)
    begin(scratch)
    for s in range(sequences):
        row, rows = get(starts, s), get(starts, s + 1) - get(starts, s)
        cost = work(rows, 0)
        for h in range(kv_heads):
            mine = owner(before, cost, whole, threads) == thread
            before += cost
            if not mine or rows == 0:
                continue
            one, shared = h * size, h * group * size  # first columns of the key head, of its group
            attend_backward(
                q + (row * q_stride + shared), q_stride,
                k + (row * k_stride + one), k_stride,
                v + (row * v_stride + one), v_stride,
                out + (row * out_stride + shared), out_stride,
                dout + (row * dout_stride + shared), dout_stride,
                lse + (row * heads + h * group), heads,
                dq + (row * dq_stride + shared), dq_stride,
                dk + (row * dk_stride + one), dk_stride,
                dv + (row * dv_stride + one), dv_stride,
                rows, group, size, scratch,
            )  # fmt: skip
    end(scratch)


@kernel
def attend_backward(
    q: Pointer,  # (T, G * D): the query heads that share one key head
    q_stride: int,
    k: Pointer,  # (T, D)
    k_stride: int,
    v: Pointer,  # (T, D)
    v_stride: int,
    out: Pointer,  # (T, G * D)
    out_stride: int,
    dout: Pointer,  # (T, G * D)
    dout_stride: int,
    lse: Pointer,  # (T, G)
    lse_stride: int,
    dq: Pointer,  # (T, G * D)
    dq_stride: int,
    dk: Pointer,  # (T, D)
    dk_stride: int,
    dv: Pointer,  # (T, D)
    dv_stride: int,
    rows: int,  # T
    group: int,  # G
    size: int,  # D
    scratch: Pointer,
) -> None:
    """Gradients of one key head and of its query heads.

    Scores are computed with a row for each key and a column for each query: then the statistics of
    the queries are vectors, and the sums for dk and dv read p and ds as they lie.
    """
    width, length = padded(size), padded(rows)
    wide = min(BACK_QUERIES, length)  # queries of a step
    keys = scratch  # (length, width); TALL more rows, for products of whole tiles
    values = keys + (length + TALL) * width  # likewise
    key_panels = values + (length + TALL) * width  # width / 32 panels (length, 32)
    block = key_panels + length * width  # (32, width)
    queries = block + BLOCK * width  # panels of 32 queries, the right side of k q'
    douts = queries + wide * width
    query_panels = douts + wide * width  # width / 32 panels (wide, 32)
    dout_panels = query_panels + wide * width
    p = dout_panels + wide * width  # (TALL, wide)
    ds = p + TALL * wide  # (BACK_KEYS, wide); TALL more rows
    turned = ds + (BACK_KEYS + TALL) * wide  # (TALL, BACK_KEYS), 32 queries of ds'
    # sums are stored by 32 rows, in blocks (TALL, width)
    key_sums = float32_pointer(address(turned + TALL * BACK_KEYS))
    value_sums = key_sums + length // BLOCK * TALL * width
    query_sums = value_sums + length // BLOCK * TALL * width
    scores = query_sums + wide // BLOCK * TALL * width  # (TALL, wide)
    dp = scores + TALL * wide
    lses = dp + TALL * wide  # (wide,)
    deltas = lses + wide
    depth = depth_units(scratch, size)  # of sums over the head size

    for r in range(0, rows, BLOCK):
        count = min(BLOCK, rows - r)
        copy_block(v + r * v_stride, v_stride, count, size, values + r * width, BLOCK, width)
        copy_block(k + r * k_stride, k_stride, count, size, keys + r * width, BLOCK, width)
        pack_values(keys + r * width, width, size, key_panels, r, length)
    for head in range(group):
        for row in range(0, rows, wide):
            count = min(wide, rows - row)
            gather_queries(
                q + (row * q_stride + head * size), q_stride,
                out + (row * out_stride + head * size), out_stride,
                dout + (row * dout_stride + head * size), dout_stride,
                lse + (row * lse_stride + head), lse_stride,
                count, size, wide, block,
                queries, query_panels, douts, dout_panels, lses, deltas,
            )  # fmt: skip
            for start in range(0, row + count, BACK_KEYS):
                stop = min(start + BACK_KEYS, padded(row + count))
                for key in range(start, stop, BLOCK):
                    skip = max(0, key - row)  # queries that see none of these keys
                    own = ds + (key - start) * wide
                    for c in range(skip, count, BLOCK):
                        x, y = queries + c * width, douts + c * width
                        k_, v_ = keys + key * width, values + key * width
                        product(k_, width, BLOCK, x, depth, scores + c, wide, False)
                        product(v_, width, BLOCK, y, depth, dp + c, wide, False)
                    differentiate(
                        scores, dp, lses, deltas, key - row, skip, padded(count), size, p, own, wide
                    )
                    later = head > 0 or key < row
                    seeing = (padded(count) - skip) // per_unit(p)
                    for c in range(0, width, COLUMNS):
                        x = query_panels + (c * wide + skip * COLUMNS)
                        y = dout_panels + (c * wide + skip * COLUMNS)
                        place = key // BLOCK * TALL * width + c
                        dk_, dv_ = key_sums + place, value_sums + place
                        product(own + skip, wide, BLOCK, x, seeing, dk_, width, later)
                        product(p + skip, wide, BLOCK, y, seeing, dv_, width, later)
                for r in range(0, count, BLOCK):
                    seen = min(stop, row + r + BLOCK) - start
                    if seen <= 0:
                        continue
                    below = int32_pointer(address(turned))
                    pack_transposed(ds + r, wide, seen, below, seen // per_unit(ds), WHOLE)
                    for c in range(0, width, COLUMNS):
                        panel = key_panels + (c * length + start * COLUMNS)
                        place = query_sums + (r // BLOCK * TALL * width + c)
                        seen_units = seen // per_unit(ds)
                        product(turned, seen, BLOCK, panel, seen_units, place, width, start > 0)
            for r in range(count):
                sums = query_sums + (r // BLOCK * TALL + r % BLOCK) * width
                write_row(sums, size, dq + ((row + r) * dq_stride + head * size))
    for r in range(rows):
        place = (r // BLOCK * TALL + r % BLOCK) * width
        write_row(key_sums + place, size, dk + r * dk_stride)
        write_row(value_sums + place, size, dv + r * dv_stride)


@kernel
def gather_queries(
    q: Pointer,  # (count, D)
    q_stride: int,
    out: Pointer,  # (count, D)
    out_stride: int,
    dout: Pointer,  # (count, D)
    dout_stride: int,
    lse: Pointer,
    lse_stride: int,
    count: int,
    size: int,  # D
    wide: int,
    block: Pointer,
    queries: Pointer,
    query_panels: Pointer,
    douts: Pointer,
    dout_panels: Pointer,
    lses: Pointer,
    deltas: Pointer,
) -> None:
    """Pack a step's q and dout both ways, and collect lse and delta of its rows."""
    for r in range(0, count, BLOCK):
        many, place = min(BLOCK, count - r), r * padded(size)
        x, apart = whole_block(q + r * q_stride, q_stride, many, size, block)
        pack_keys(x, apart, size, queries + place)
        pack_values(x, apart, size, query_panels, r, wide)
        x, apart = whole_block(dout + r * dout_stride, dout_stride, many, size, block)
        pack_keys(x, apart, size, douts + place)
        pack_values(x, apart, size, dout_panels, r, wide)
    for r in range(count):
        put(lses, r, get(lse, r * lse_stride))
        put(deltas, r, dot(out + r * out_stride, dout + r * dout_stride, size))
    for r in range(count, padded(count)):
        # padding: its q and dout are zero, so p is 1 and ds is 0, and both add nothing
        put(lses, r, ZERO)
        put(deltas, r, ZERO)


@kernel
def differentiate(
    scores: Pointer, dp: Pointer, lses: Pointer, deltas: Pointer, diagonal: int, skip: int,
    stop: int, size: int, p: Pointer, ds: Pointer, wide: int,
) -> None:  # fmt: skip
    """Make p and ds for 32 keys and the queries skip .. stop - 1.

    Key r is seen by the queries from diagonal + r on.
    """
    scale = splat(np.float32(1 / math.sqrt(size)))
    for r in range(BLOCK):
        for c in range(skip, stop, LANES):
            i = r * wide + c
            x = exp_below(load(scores, i) * scale - load(lses, c))
            d = x * (load(dp, i) - load(deltas, c)) * scale
            hidden = diagonal + r - c
            if hidden > 0:
                x, d = rest(x, hidden, ZERO), rest(d, hidden, ZERO)
            store(p, i, x)
            store(ds, i, d)
