"""Dropout: which elements are kept is a function of their place, so nothing needs to be saved.

Element i of the flattened (N, C) array is kept where word i mod 4 of philox4x32-10(key = seed;
counter = (i div 4, site, step, micro-batch)) is at least floor(rate 2^32). The backward pass makes
the same words again. Salmon et al. 2011, https://doi.org/10.1145/2063384.2063405.
"""

from __future__ import annotations

import numpy as np

from splitbit_numba_backend.kernels.shares import ZERO, Pointer, clear, inline, kernel, share
from splitbit_numba_backend.simd.pointers import (
    address,
    load_first,
    local,
    put,
    store_first,
)
from splitbit_numba_backend.simd.vector import LANES

BLOCK = 512  # elements whose factors are made at once
ROUND = 64  # elements, of 16 counters: the compiler makes so many words together

LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
FIRST_MULTIPLIER, SECOND_MULTIPLIER = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
FIRST_STEP, SECOND_STEP = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)

# a block may begin within a counter's four words, and its last round of counters is made whole
factors_of_block = local(BLOCK + 2 * ROUND)


@inline
def philox(c0: int, c1: int, c2: int, c3: int, seed: int) -> tuple[int, int, int, int]:
    """Return four random 32-bit words for a counter, after 10 rounds; all are uint64.

    Words and keys stay below 2^32, so that a product fits and the processor may multiply halves.
    """
    key0, key1 = seed & LOW, seed >> HALF
    for _ in range(10):
        product0, product2 = c0 * FIRST_MULTIPLIER, c2 * SECOND_MULTIPLIER
        c0, c1 = (product2 >> HALF) ^ c1 ^ key0, product2 & LOW
        c2, c3 = (product0 >> HALF) ^ c3 ^ key1, product0 & LOW
        key0, key1 = (key0 + FIRST_STEP) & LOW, (key1 + SECOND_STEP) & LOW
    return c0, c1, c2, c3


@kernel
def keep_factors(
    factors: Pointer,  # float32
    counter: int,  # of the first four
    count: int,  # of counters
    seed: int,
    site: int,
    step: int,
    micro_batch: int,
    threshold: int,
    scale: float,
) -> None:
    """Write `scale` for each element that is kept and 0 for the others."""
    key, limit = np.uint64(seed), np.uint64(threshold)
    c1, c2, c3 = np.uint64(site) & LOW, np.uint64(step) & LOW, np.uint64(micro_batch) & LOW
    for j in range(count):
        words = philox(np.uint64(counter + j) & LOW, c1, c2, c3, key)
        put(factors, 4 * j, scale if words[0] >= limit else ZERO)
        put(factors, 4 * j + 1, scale if words[1] >= limit else ZERO)
        put(factors, 4 * j + 2, scale if words[2] >= limit else ZERO)
        put(factors, 4 * j + 3, scale if words[3] >= limit else ZERO)


@kernel
def dropout(
    thread: int,
    threads: int,
    x: Pointer,  # (N, C) float32
    residual: Pointer,  # (N, C) float32, or null
    out: Pointer,  # (N, ld) float32 or storage
    rows: int,
    width: int,
    ld: int,
    seed: int,
    site: int,
    step: int,
    micro_batch: int,
    threshold: int,  # floor(rate 2^32)
    scale: float,  # 1 / (1 - rate)
) -> None:
    """Write x * scale where an element is kept, else 0; plus residual.

    The backward pass is the same function of the gradient.
    """
    start, stop = share(thread, threads, rows, 1)
    factors = factors_of_block()
    for r in range(start, stop):
        for first in range(0, width, BLOCK):
            size = min(width - first, BLOCK)
            place = r * width + first
            within = place % 4
            counters = (within + size + ROUND - 1) // ROUND * (ROUND // 4)
            keep_factors(
                factors, place // 4, counters, seed, site, step, micro_batch, threshold, scale
            )
            for c in range(0, size, LANES):
                n = size - c
                value = load_first(x + place, c, n, ZERO) * load_first(factors, within + c, n, ZERO)
                if address(residual) != 0:
                    value = value + load_first(residual + place, c, n, ZERO)
                store_first(out + (r * ld + first), c, value, n)
        clear(out + r * ld, width, ld)
