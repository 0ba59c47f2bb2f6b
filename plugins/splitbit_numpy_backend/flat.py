"""Loops over flat buffers: the norm of the gradient, and the optimizers' updates.

All go chunk by chunk, so that what is computed on the way stays in cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import numpy as np

from splitbit_kit.api import Parameters
from splitbit_kit.api.backend import Array
from splitbit_kit.api.learning import NEWTON_SCHULZ

CHUNK = 32 * 1024  # elements


def squared_norm(x: Array) -> float:  # (P,)
    """The sum of x^2, in float64. The order is fixed, whatever the number of threads."""
    total = 0.0
    for start in range(0, len(x), CHUNK):
        chunk = x[start : start + CHUNK].astype(np.float64)
        chunk *= chunk
        total += float(chunk.sum())
    return total


def adamw(
    params: Parameters,
    grads: Array,
    m: Array,
    v: Array,
    *,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    grad_scale: float,
) -> None:  # grads, m and v (P,)
    """One step of AdamW: values, m and v change in place. The first step is 1."""
    correction1, correction2 = 1 - beta1**step, 1 - beta2**step
    for part, decay in _chunks(params, lr * weight_decay):
        g, values = grad_scale * grads[part], params.values[part]
        m[part] *= beta1
        m[part] += (1 - beta1) * g
        v[part] *= beta2
        g *= g
        g *= 1 - beta2
        v[part] += g
        denominator = np.sqrt(v[part], out=g)  # sqrt(v / correction2) + eps
        denominator *= 1 / sqrt(correction2)
        denominator += eps
        change = np.divide(m[part], denominator, out=denominator)
        change *= lr / correction1
        values *= decay
        values -= change


def lion(
    params: Parameters,
    grads: Array,
    m: Array,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    grad_scale: float,
) -> None:  # grads and m (P,)
    """One step of Lion: values and m change in place."""
    for part, decay in _chunks(params, lr * weight_decay):
        g, values = grad_scale * grads[part], params.values[part]
        direction = beta1 * m[part]
        direction += (1 - beta1) * g
        values *= decay
        values -= lr * np.sign(direction, out=direction)
        m[part] *= beta2
        m[part] += (1 - beta2) * g


def sgd(
    params: Parameters,
    grads: Array,
    m: Array | None,
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
    grad_scale: float,
) -> None:  # grads and m (P,)
    """One step of gradient descent: values and m change in place. m is None without momentum."""
    for part, decay in _chunks(params, lr * weight_decay):
        direction, values = grad_scale * grads[part], params.values[part]
        if m is not None:
            m[part] *= momentum
            m[part] += direction
            direction = m[part]
        values *= decay
        values -= lr * direction


def orthogonalize(x: Array, *, steps: int) -> None:  # (R, C)
    """Bring the singular values of x near to 1, in place, by steps of Newton and Schulz."""
    a, b, c = NEWTON_SCHULZ
    tall = len(x) > x.shape[1]
    made = x.T if tall else x
    made = made / max(sqrt(squared_norm(x.reshape(-1))), 1e-7)
    for _ in range(steps):
        gram = made @ made.T
        made = a * made + (b * gram + c * (gram @ gram)) @ made
    x[...] = made.T if tall else made


def _chunks(params: Parameters, decay: float) -> Iterator[tuple[slice, float]]:
    """Yield each chunk with the factor that weight decay puts on its values."""
    size, decayed = len(params.values), params.decayed
    for first, stop, factor in ((0, decayed, 1 - decay), (decayed, size, 1.0)):
        for start in range(first, stop, CHUNK):
            yield slice(start, min(start + CHUNK, stop)), factor
