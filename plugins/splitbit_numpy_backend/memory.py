"""Small helpers that keep memory traffic low: blocks of rows, gradients written in place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from splitbit_kit.api import Context, Gradients, Param
from splitbit_kit.api.backend import Array

BLOCK_BYTES = 128 * 1024


def row_blocks(x: Array) -> Iterator[slice]:
    """Yield the rows of x in blocks of about 128 KiB.

    A chain of NumPy calls on one block finds everything in cache, and its temporaries are small
    enough to be had for nothing; the same chain on the whole array waits for memory at every call.
    """
    size = max(1, BLOCK_BYTES * len(x) // max(1, x.nbytes))
    for start in range(0, len(x), size):
        yield slice(start, min(start + size, len(x)))


def matmul(ctx: Context, left: Array, right: Array, out: Array, accumulate: bool) -> None:
    """Write left @ right to `out`, or add it to what is there."""
    if not accumulate:
        np.matmul(left, right, out=out)
    else:
        out += np.matmul(left, right, out=ctx.workspace.take(out.shape, out.dtype))


def gradient_sum(grads: Gradients, param: Param | None) -> Array | None:
    """Return the gradient of a parameter, to add to in place; None if there is none to compute."""
    place = grads.into(param) if param is not None else None
    if place is None:
        return None
    view, accumulate = place
    if not accumulate:
        view.fill(0)
    return view
