"""Ops that work element by element: GELU, SwiGLU and the residual addition."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np

from splitbit_kit.api import Context, Gradients
from splitbit_kit.api.backend import Array
from splitbit_numpy_backend.memory import row_blocks

ROOT = sqrt(2 / pi)
CUBIC = 0.044715


def gelu(ctx: Context, x: Array) -> tuple[Array, Any]:  # (N, C) -> (N, C)
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).

    The slope is computed here, where tanh is at hand, and is all that the backward pass needs.
    """
    out = ctx.workspace.take(x.shape, x.dtype)
    slope = ctx.workspace.take(x.shape, x.dtype) if ctx.grad else None
    for rows in row_blocks(x):
        a = x[rows]
        square = a * a
        u = square * (ROOT * CUBIC)  # in place from here: u = sqrt(2/pi) (a + 0.044715 a^3)
        u += ROOT
        u *= a
        gate = np.tanh(u, out=u)  # (1 + tanh(u)) / 2
        gate += 1
        gate *= 0.5
        y = np.multiply(a, gate, out=out[rows])
        if slope is not None:
            # y = a gate and dgate = 2 gate (1 - gate) du, so dy = gate + y (1 - gate) 2 du
            twice_du = np.multiply(square, 6 * ROOT * CUBIC, out=square)
            twice_du += 2 * ROOT
            change = np.subtract(1, gate, out=slope[rows])
            change *= y
            change *= twice_du
            change += gate
    return out, slope


def gelu_backward(
    ctx: Context, dout: Array, saved: Any, grads: Gradients
) -> tuple[Array]:  # dout (N, C) -> dx (N, C)
    """dx = dout * slope."""
    return (np.multiply(dout, saved, out=ctx.workspace.take(dout.shape, dout.dtype)),)


def swiglu(ctx: Context, gate: Array, up: Array) -> tuple[Array, Any]:  # (N, C), (N, C) -> (N, C)
    """gate * sigmoid(gate) * up."""
    out = ctx.workspace.take(gate.shape, gate.dtype)
    for rows in row_blocks(gate):
        np.multiply(gate[rows] * _sigmoid(gate[rows]), up[rows], out=out[rows])
    return out, (gate, up)


def swiglu_backward(
    ctx: Context, dout: Array, saved: Any, grads: Gradients
) -> tuple[Array, Array]:  # dout (N, C) -> dgate (N, C), dup (N, C)
    """With s = sigmoid(gate): dgate = dout * up * s (1 + gate (1 - s)), dup = dout * gate * s."""
    gate, up = saved
    dgate = ctx.workspace.take(dout.shape, dout.dtype)
    dup = ctx.workspace.take(dout.shape, dout.dtype)
    for rows in row_blocks(dout):
        s = _sigmoid(gate[rows])
        swish = gate[rows] * s
        np.multiply(dout[rows], swish, out=dup[rows])
        # s (1 + gate (1 - s)) = s + swish (1 - s)
        np.multiply(dout[rows] * up[rows], s + swish * (1 - s), out=dgate[rows])
    return dgate, dup


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):  # exp(-x) may be infinite, and 1 / (1 + inf) is 0 as it should
        result: Array = 1 / (1 + np.exp(-x))
    return result


def add(ctx: Context, x: Array, y: Array) -> tuple[Array, Any]:  # (N, C), (N, C) -> (N, C)
    """x + y."""
    return np.add(x, y, out=ctx.workspace.take(x.shape, x.dtype)), None


def add_backward(
    ctx: Context, dout: Array, saved: Any, grads: Gradients
) -> tuple[Array, Array]:  # dout (N, C) -> dx (N, C), dy (N, C)
    """dx = dy = dout."""
    # Not copies: a gradient is never written to once it is made, the tape sums out of place.
    return dout, dout
