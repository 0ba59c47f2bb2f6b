"""Products with weights, and rows of weights: linear and embedding.

A weight is an array, a packed tensor, of which a few rows at a time are decoded, or low-rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from splitbit_kit.api import (
    Context,
    Gradients,
    LowRank,
    PackedTensor,
    Param,
    SplitbitError,
)
from splitbit_kit.api.backend import Array
from splitbit_numpy_backend.memory import gradient_sum, matmul

DECODED_BYTES = 4 * 1024 * 1024


def linear(
    ctx: Context, x: Array, w: Param, b: Param | None = None
) -> tuple[Array, Any]:  # x (N, I), w (O, I), b (O,) -> (N, O)
    """x w' + b; with a low-rank weight, x base' + scale (x a') b' + b."""
    lowered = None
    if isinstance(w.value, LowRank):
        adapter = w.value
        out = _times_transpose(ctx, x, adapter.base)
        lowered = _times_transpose(ctx, x, adapter.a)
        lowered *= adapter.scale
        matmul(ctx, lowered, adapter.b.array.T, out, accumulate=True)
    else:
        out = _times_transpose(ctx, x, w)
    if b is not None:
        out += b.array
    return out, (x, w, b, lowered)


def linear_backward(
    ctx: Context, dout: Array, saved: Any, grads: Gradients
) -> tuple[Array]:  # dout (N, O) -> dx (N, I)
    """dx = dout w, dw = dout' x, db = the sum of dout's rows."""
    x, w, b, lowered = saved
    dbias = gradient_sum(grads, b)
    if dbias is not None:
        dbias += dout.sum(axis=0)
    if isinstance(w.value, LowRank):
        adapter = w.value
        dx = _times(ctx, dout, adapter.base)
        _product_gradient(ctx, dout, x, adapter.base, grads)
        _product_gradient(ctx, dout, lowered, adapter.b, grads)
        dlowered = _times(ctx, dout, adapter.b)
        dlowered *= adapter.scale
        _product_gradient(ctx, dlowered, x, adapter.a, grads)
        matmul(ctx, dlowered, adapter.a.array, dx, accumulate=True)
    else:
        dx = _times(ctx, dout, w)
        _product_gradient(ctx, dout, x, w, grads)
    return (dx,)


def _times_transpose(ctx: Context, x: Array, w: Param) -> Array:  # (N, I), (O, I) -> (N, O)
    out = ctx.workspace.take((len(x), w.shape[0]), x.dtype)
    for rows, decoded in _row_slabs(ctx, w, x.dtype):
        np.matmul(x, decoded.T, out=out[:, rows])
    return out


def _times(ctx: Context, dout: Array, w: Param) -> Array:  # (N, O), (O, I) -> (N, I)
    dx = ctx.workspace.take((len(dout), w.shape[1]), dout.dtype)
    for rows, decoded in _row_slabs(ctx, w, dout.dtype):
        matmul(ctx, dout[:, rows], decoded, dx, accumulate=rows.start > 0)
    return dx


def _product_gradient(
    ctx: Context, dout: Array, x: Array, w: Param, grads: Gradients
) -> None:  # dout (N, O), x (N, I) -> dw (O, I)
    place = grads.into(w)
    if place is not None:  # else frozen
        view, accumulate = place
        matmul(ctx, dout.T, x, view, accumulate)


def _row_slabs(ctx: Context, w: Param, dtype: Any) -> Iterator[tuple[slice, Array]]:
    """Yield the whole of an array; of a packed weight one slab of decoded rows after another."""
    if not isinstance(w.value, PackedTensor):
        yield slice(0, w.shape[0]), w.array
        return
    outputs, inputs = w.shape
    height = max(1, DECODED_BYTES // (4 * inputs))
    for start in range(0, outputs, height):
        rows = slice(start, min(start + height, outputs))
        yield rows, _unpack(ctx, w.value, rows).astype(dtype, copy=False)


def _unpack(ctx: Context, packed: PackedTensor, rows: slice) -> Array:
    if ctx.unpack is None:
        raise SplitbitError(f"numpy: nothing here can decode weights packed as {packed.format}")
    return ctx.unpack(packed, rows.start, rows.stop)


def embedding(
    ctx: Context, ids: Array, table: Param
) -> tuple[Array, Any]:  # ids (N,), table (V, C) -> (N, C)
    """Row ids[n] of the table. Raises SplitbitError if an id lies outside 0 .. V-1."""
    vocabulary, width = table.shape
    check_ids("embedding", ids, vocabulary)
    if isinstance(table.value, PackedTensor):
        packed = table.value
        distinct, ids = np.unique(ids, return_inverse=True)
        decoded = [_unpack(ctx, packed, slice(i, i + 1)) for i in distinct.tolist()]
        rows = np.concatenate(decoded).astype(ctx.dtype, copy=False)
    else:
        rows = table.array
    out = ctx.workspace.take((len(ids), width), rows.dtype)
    # the ids were checked: "clip" only spares NumPy the copy that "raise" makes of `out`
    np.take(rows, ids, axis=0, out=out, mode="clip")
    return out, (ids, table)


def embedding_backward(
    ctx: Context, dout: Array, saved: Any, grads: Gradients
) -> tuple[()]:  # dout (N, C)
    """Each row of dout is added to the gradient of the row it came from."""
    ids, table = saved
    dtable = gradient_sum(grads, table)
    if dtable is not None:
        # A plain loop: an id may occur many times, and np.add.at is five times as slow.
        for i, row in zip(ids.tolist(), dout, strict=True):
            dtable[i] += row
    return ()


def check_ids(op: str, ids: Array, vocabulary: int) -> None:
    """Raise SplitbitError if an id lies outside 0 .. V-1."""
    # NumPy would count negative ids from the end
    wrong = ids[(ids < 0) | (ids >= vocabulary)]
    if wrong.size:
        raise SplitbitError(f"{op}: id {wrong[0]} is outside the vocabulary of {vocabulary}")
