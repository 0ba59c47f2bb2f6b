"""Rotary position embedding."""

from __future__ import annotations

from typing import Any

import numpy as np

from splitbit_kit.api import Context, Gradients
from splitbit_kit.api.backend import Array
from splitbit_numpy_backend.memory import row_blocks


def rotary(
    ctx: Context, x: Array, positions: Array, *, heads: int, base: float = 10_000.0
) -> tuple[Array, Any]:  # x (N, H * D), positions (N,) -> (N, H * D)
    """Each head's halves (a, b) become (a cos t - b sin t, b cos t + a sin t).

    t = position * base^(-2i / D), i = 0 .. D/2 - 1, computed in float64.
    """
    size = x.shape[1] // heads
    # a position is shared by many rows, and sines are slow
    distinct, row = np.unique(positions, return_inverse=True)
    angles = np.outer(distinct, base ** (-np.arange(0, size, 2) / size))
    cos, sin = np.cos(angles).astype(x.dtype)[row], np.sin(angles).astype(x.dtype)[row]
    return _turn(ctx, x, cos, sin, heads), (cos, sin, heads)


def rotary_backward(
    ctx: Context, dout: Array, saved: Any, grads: Gradients
) -> tuple[Array]:  # dout (N, H * D) -> dx (N, H * D)
    """Turn the gradient back, by the opposite angles."""
    cos, sin, heads = saved
    return (_turn(ctx, dout, cos, -sin, heads),)


def _turn(
    ctx: Context, x: Array, cos: Array, sin: Array, heads: int
) -> Array:  # x (N, H * D), cos and sin (N, D/2) -> (N, H * D)
    out = ctx.workspace.take(x.shape, x.dtype)
    halves = (len(x), heads, 2, cos.shape[1])
    source, target = x.reshape(halves), out.reshape(halves)
    cos, sin = cos[:, None], sin[:, None]  # the same for every head
    for rows in row_blocks(x):
        a, b = source[rows, :, 0], source[rows, :, 1]
        np.subtract(a * cos[rows], b * sin[rows], out=target[rows, :, 0])
        np.add(b * cos[rows], a * sin[rows], out=target[rows, :, 1])
    return out
