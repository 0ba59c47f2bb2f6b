"""Cross-entropy and its gradient, row by row."""

from __future__ import annotations

import numpy as np

from splitbit_numba_backend.kernels.shares import ONE, ZERO, Pointer, clear, kernel, share
from splitbit_numba_backend.simd.debug import finite
from splitbit_numba_backend.simd.math import exp
from splitbit_numba_backend.simd.pointers import address, get, load_first, put, store_first
from splitbit_numba_backend.simd.vector import LANES, largest, maximum, splat, total

LOWEST = np.float32(-np.inf)


@kernel
def cross_entropy(
    thread: int,
    threads: int,
    logits: Pointer,  # (N, V) float32, rows ldl apart; not changed
    targets: Pointer,  # (N,) int32, each in 0 .. V-1
    weights: Pointer,  # (N,) float32; may be null where dlogits is
    nll: Pointer,  # (N,) float32, or null
    dlogits: Pointer,  # (N, ldd) storage, or null
    rows: int,
    vocabulary: int,
    ldl: int,
    ldd: int,
) -> None:
    """Write nll = log(sum(exp(logits))) - logits[target], and weight * (softmax - onehot).

    The exponentials are computed twice: a second exp costs less than keeping the first, and the
    logits stay as they are.
    """
    start, stop = share(thread, threads, rows, 1)
    for r in range(start, stop):
        row, target = logits + r * ldl, get(targets, r)
        # A NaN may be lost in the maximum; the sum of exponentials brings it out.
        peak = splat(LOWEST)
        for c in range(0, vocabulary, LANES):
            peak = maximum(peak, load_first(row, c, vocabulary - c, LOWEST))
        top = largest(peak)
        # Subtract the maximum: exp(89) overflows float32. One term of the sum is then 1, and a lane
        # beyond the vocabulary adds exp(-87) to it, which is nothing.
        added = splat(ZERO)
        for c in range(0, vocabulary, LANES):
            added = added + exp(load_first(row, c, vocabulary - c, LOWEST) - splat(top))
        mass = total(added)
        loss = np.log(mass) - (get(row, target) - top)
        if address(nll) != 0:
            put(nll, r, loss)
            finite(loss, r)
        if address(dlogits) != 0:
            gradient, weight = dlogits + r * ldd, get(weights, r)
            factor = splat(weight / mass)
            for c in range(0, vocabulary, LANES):
                n = vocabulary - c  # `top` in the lanes beyond: tiny products there cost much time
                probability = exp(load_first(row, c, n, top) - splat(top)) * factor
                store_first(gradient, c, probability, n)
            put(gradient, target, weight * (np.exp(-loss) - ONE))
            clear(gradient, vocabulary, ldd)
