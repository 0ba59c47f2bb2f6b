"""The loss: cross-entropy of logits and target ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from splitbit_kit.api import Context, Gradients
from splitbit_kit.api.backend import Array
from splitbit_numpy_backend.linear import check_ids
from splitbit_numpy_backend.memory import row_blocks


def cross_entropy(
    ctx: Context, logits: Array, targets: Array
) -> tuple[Array, Any]:  # logits (N, V), targets (N,) -> (N,)
    """log(sum(exp(logits[n]))) - logits[n, targets[n]] in nats."""
    check_ids("cross_entropy", targets, logits.shape[1])
    losses = ctx.workspace.take((len(logits),), logits.dtype)
    probabilities = ctx.workspace.take(logits.shape, logits.dtype)
    for rows in row_blocks(logits):
        # subtract the row maximum: exp(89) overflows float32
        shifted = logits[rows] - logits[rows].max(axis=1, keepdims=True)
        exponentials = np.exp(shifted, out=probabilities[rows])
        total = exponentials.sum(axis=1, keepdims=True)
        target = np.take_along_axis(shifted, targets[rows, None], axis=1)
        np.subtract(np.log(total), target, out=losses[rows, None])
        exponentials /= total
    return losses, (probabilities, targets)


def cross_entropy_backward(
    ctx: Context, dout: Array, saved: Any, grads: Gradients
) -> tuple[Array]:  # dout (N,) -> dlogits (N, V)
    """dlogits = dout * (probabilities - 1 at the target)."""
    probabilities, targets = saved  # ours alone, so the gradient can take its place
    for rows in row_blocks(probabilities):
        probabilities[rows] *= dout[rows, None]
    probabilities[np.arange(len(targets)), targets] -= dout
    return (probabilities,)
