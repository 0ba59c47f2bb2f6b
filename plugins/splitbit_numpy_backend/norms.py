"""Normalisation of rows: layer norm and RMS norm."""

from __future__ import annotations

from typing import Any

import numpy as np

from splitbit_kit.api import Context, Gradients, Param
from splitbit_kit.api.backend import Array
from splitbit_numpy_backend.memory import gradient_sum, row_blocks


def layer_norm(
    ctx: Context, x: Array, weight: Param, bias: Param | None = None, *, eps: float = 1e-5
) -> tuple[Array, Any]:  # x (N, C), weight and bias (C,) -> (N, C)
    """(x - mean) / sqrt(variance + eps) * weight + bias, over each row; the variance is biased."""
    out, normed = ctx.workspace.take(x.shape, x.dtype), ctx.workspace.take(x.shape, x.dtype)
    inverse_std = np.empty((len(x), 1), x.dtype)
    for rows in row_blocks(x):
        mean = x[rows].mean(axis=1, keepdims=True)
        centred = np.subtract(x[rows], mean, out=normed[rows])
        inverse_std[rows] = 1 / np.sqrt(_mean_product(centred, centred) + eps)
        centred *= inverse_std[rows]
        np.multiply(normed[rows], weight.array, out=out[rows])
        if bias is not None:
            out[rows] += bias.array
    return out, (normed, inverse_std, weight, bias)


def layer_norm_backward(
    ctx: Context, dout: Array, saved: Any, grads: Gradients
) -> tuple[Array]:  # dout (N, C) -> dx (N, C)
    """dx = (d - mean(d) - normed * mean(d * normed)) / std, where d = dout * weight."""
    normed, inverse_std, weight, bias = saved
    dx = ctx.workspace.take(dout.shape, dout.dtype)
    dweight, dbias = gradient_sum(grads, weight), gradient_sum(grads, bias)
    for rows in row_blocks(dout):
        if dweight is not None:
            dweight += np.einsum("nc,nc->c", dout[rows], normed[rows])
        if dbias is not None:
            dbias += dout[rows].sum(axis=0)
        d = np.multiply(dout[rows], weight.array, out=dx[rows])
        mean = d.mean(axis=1, keepdims=True)
        d -= normed[rows] * _mean_product(d, normed[rows])
        d -= mean
        d *= inverse_std[rows]
    return (dx,)


def rms_norm(
    ctx: Context, x: Array, weight: Param, *, eps: float = 1e-5
) -> tuple[Array, Any]:  # x (N, C), weight (C,) -> (N, C)
    """x / sqrt(mean(x^2) + eps) * weight, over each row."""
    out, normed = ctx.workspace.take(x.shape, x.dtype), ctx.workspace.take(x.shape, x.dtype)
    inverse_rms = np.empty((len(x), 1), x.dtype)
    for rows in row_blocks(x):
        inverse_rms[rows] = 1 / np.sqrt(_mean_product(x[rows], x[rows]) + eps)
        np.multiply(x[rows], inverse_rms[rows], out=normed[rows])
        np.multiply(normed[rows], weight.array, out=out[rows])
    return out, (normed, inverse_rms, weight)


def rms_norm_backward(
    ctx: Context, dout: Array, saved: Any, grads: Gradients
) -> tuple[Array]:  # dout (N, C) -> dx (N, C)
    """dx = (d - normed * mean(d * normed)) / rms, where d = dout * weight."""
    normed, inverse_rms, weight = saved
    dx = ctx.workspace.take(dout.shape, dout.dtype)
    dweight = gradient_sum(grads, weight)
    for rows in row_blocks(dout):
        if dweight is not None:
            dweight += np.einsum("nc,nc->c", dout[rows], normed[rows])
        d = np.multiply(dout[rows], weight.array, out=dx[rows])
        d -= normed[rows] * _mean_product(d, normed[rows])
        d *= inverse_rms[rows]
    return (dx,)


def _mean_product(a: Array, b: Array) -> Array:  # (N, C), (N, C) -> (N, 1)
    """The mean of a * b over each row."""
    means: Array = np.vecdot(a, b)[:, None] / a.shape[1]
    return means
