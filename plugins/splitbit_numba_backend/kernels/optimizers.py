"""Loops over flat buffers: the norm of the gradient, and the optimizers' updates.

What each update means is pinned in `splitbit_kit/api/learning.py`. An update is one pass: the
gradient is scaled, the state and the values are changed, and a bfloat16 shadow of the values is
written for the multiplies, all while the numbers are at hand.
"""

from __future__ import annotations

from math import sqrt

from splitbit_numba_backend.kernels.shares import (
    ONE,
    ZERO,
    Pointer,
    chunk_count,
    chunk_size,
    kernel,
    share,
)
from splitbit_numba_backend.simd.pointers import address, get, load_first, put, store_first
from splitbit_numba_backend.simd.vector import (
    LANES,
    add_squares,
    first,
    no_sums,
    root,
    sign,
    splat,
    total,
)

UNIT = 4096  # elements; a chunk of a squared norm has a multiple of this


@kernel
def squared_norm(
    thread: int,
    threads: int,
    x: Pointer,  # (P,) float32
    partials: Pointer,  # (CHUNKS,) float64
    count: int,
) -> None:
    """Write the sum of x^2 of each chunk, in float64. `squared_norm_total` adds them up."""
    size = chunk_size(count, UNIT)
    first_chunk, last_chunk = share(thread, threads, chunk_count(count, UNIT), 1)
    for chunk in range(first_chunk, last_chunk):
        stop = min((chunk + 1) * size, count)
        added = no_sums()
        for i in range(chunk * size, stop, LANES):
            added = add_squares(added, load_first(x, i, stop - i, ZERO))
        put(partials, chunk, total(added))


@kernel
def squared_norm_total(partials: Pointer, count: int) -> float:
    """Return the sum over all chunks, once every thread has written its own."""
    added = 0.0
    for chunk in range(chunk_count(count, UNIT)):
        added += get(partials, chunk)
    return added


def adamw_factors(
    *,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    grad_scale: float,
) -> tuple[float, ...]:
    """Return the last nine arguments of `adamw`, made in float64: 1 - beta2 would lose digits."""
    return (
        grad_scale,
        beta1,
        1 - beta1,
        beta2,
        1 - beta2,
        1 / sqrt(1 - beta2**step),
        eps,
        lr / (1 - beta1**step),
        1 - lr * weight_decay,
    )


@kernel
def adamw(
    thread: int,
    threads: int,
    values: Pointer,  # (P,) float32, as are grads, m and v
    grads: Pointer,
    m: Pointer,
    v: Pointer,
    shadow: Pointer,  # (P,) bfloat16, or null
    count: int,
    decayed: int,
    grad_scale: float,
    beta1: float,
    rest1: float,  # 1 - beta1
    beta2: float,
    rest2: float,  # 1 - beta2
    inverse_root: float,  # 1 / sqrt(1 - beta2^step)
    eps: float,
    rate: float,  # lr / (1 - beta1^step)
    keep: float,  # 1 - lr weight_decay, for the first `decayed` entries
) -> None:
    """Update values, m and v, and write the shadow."""
    start, stop = share(thread, threads, count, LANES)
    for i in range(start, stop, LANES):
        n = stop - i
        g = load_first(grads, i, n, ZERO) * splat(grad_scale)
        mean = splat(beta1) * load_first(m, i, n, ZERO) + splat(rest1) * g
        square = splat(beta2) * load_first(v, i, n, ZERO) + splat(rest2) * (g * g)
        change = splat(rate) * mean / (root(square) * splat(inverse_root) + splat(eps))
        decay = first(splat(keep), min(max(decayed - i, 0), LANES), ONE)
        value = load_first(values, i, n, ZERO) * decay - change
        store_first(m, i, mean, n)
        store_first(v, i, square, n)
        store_first(values, i, value, n)
        if address(shadow) != 0:
            store_first(shadow, i, value, n)


@kernel
def lion(
    thread: int,
    threads: int,
    values: Pointer,  # (P,) float32, as are grads and m
    grads: Pointer,
    m: Pointer,
    shadow: Pointer,  # (P,) bfloat16, or null
    count: int,
    decayed: int,
    grad_scale: float,
    beta1: float,
    rest1: float,  # 1 - beta1
    beta2: float,
    rest2: float,  # 1 - beta2
    lr: float,
    keep: float,  # 1 - lr weight_decay, for the first `decayed` entries
) -> None:
    """Update values and m, and write the shadow."""
    start, stop = share(thread, threads, count, LANES)
    for i in range(start, stop, LANES):
        n = stop - i
        g = load_first(grads, i, n, ZERO) * splat(grad_scale)
        mean = load_first(m, i, n, ZERO)
        direction = sign(splat(beta1) * mean + splat(rest1) * g)
        decay = first(splat(keep), min(max(decayed - i, 0), LANES), ONE)
        value = load_first(values, i, n, ZERO) * decay - splat(lr) * direction
        store_first(m, i, splat(beta2) * mean + splat(rest2) * g, n)
        store_first(values, i, value, n)
        if address(shadow) != 0:
            store_first(shadow, i, value, n)


@kernel
def sgd(
    thread: int,
    threads: int,
    values: Pointer,  # (P,) float32, as are grads and m
    grads: Pointer,
    m: Pointer,  # null without momentum
    shadow: Pointer,  # (P,) bfloat16, or null
    count: int,
    decayed: int,
    grad_scale: float,
    momentum: float,
    lr: float,
    keep: float,  # 1 - lr weight_decay, for the first `decayed` entries
) -> None:
    """Update values and m, and write the shadow."""
    start, stop = share(thread, threads, count, LANES)
    for i in range(start, stop, LANES):
        n = stop - i
        direction = load_first(grads, i, n, ZERO) * splat(grad_scale)
        if address(m) != 0:
            direction = splat(momentum) * load_first(m, i, n, ZERO) + direction
            store_first(m, i, direction, n)
        decay = first(splat(keep), min(max(decayed - i, 0), LANES), ONE)
        value = load_first(values, i, n, ZERO) * decay - splat(lr) * direction
        store_first(values, i, value, n)
        if address(shadow) != 0:
            store_first(shadow, i, value, n)
