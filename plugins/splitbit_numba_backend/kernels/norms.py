"""Layer norm and RMS norm, forward and backward.

RMS norm is layer norm with the mean taken to be zero, so one function serves both: a null pointer
for `mean` selects it.

    mean = sum(x) / C           rstd = 1 / sqrt(sum((x - mean)^2) / C + eps)
    normed = (x - mean) rstd    out = normed weight + bias

    d = dy weight               dx = rstd (d - sum(d) / C - normed sum(d normed) / C)
    dweight = sum over rows of dy normed               dbias = sum over rows of dy

The residual stream, statistics and gradients of parameters are float32. `out` and the copy of the
gradient are storage, which multiplies read: float32 or bfloat16 by the type of their pointer, with
rows `ld` elements apart and zeros beyond the width.
"""

from __future__ import annotations

import numpy as np

from splitbit_numba_backend.compiler import helper
from splitbit_numba_backend.kernels.shares import (
    ONE,
    ZERO,
    Pointer,
    chunk_count,
    chunk_size,
    clear,
    kernel,
    share,
)
from splitbit_numba_backend.simd.debug import finite
from splitbit_numba_backend.simd.pointers import (
    address,
    get,
    load,
    load_first,
    put,
    store,
    store_first,
)
from splitbit_numba_backend.simd.vector import LANES, splat, total

UNIT = 8  # rows; a chunk has a multiple of this


@helper
def partial_elements(rows: int, width: int) -> int:
    """Return the float32 elements that `norm_backward` needs in `partials`."""
    return chunk_count(rows, UNIT) * 2 * _stride(width)


@helper
def _stride(width: int) -> int:
    """Return the width in whole vectors."""
    return (width + LANES - 1) // LANES * LANES


@kernel
def norm_forward(
    thread: int,
    threads: int,
    x: Pointer,  # (N, C) float32
    weight: Pointer,  # (C,) float32
    bias: Pointer,  # (C,) float32, or null
    out: Pointer,  # (N, ld) storage
    mean: Pointer,  # (N,) float32, or null for RMS norm
    rstd: Pointer,  # (N,) float32
    rows: int,
    width: int,
    ld: int,
    eps: float,
) -> None:
    """Write out, mean and rstd."""
    inverse_width = ONE / np.float32(width)
    start, stop = share(thread, threads, rows, 1)
    for r in range(start, stop):
        row, normed = x + r * width, out + r * ld
        centre = ZERO
        if address(mean) != 0:
            added = splat(ZERO)
            for c in range(0, width, LANES):
                added = added + load_first(row, c, width - c, ZERO)
            centre = total(added) * inverse_width
            put(mean, r, centre)
        # not sum(x^2) - mean^2: that loses everything where the mean is large
        squares = splat(ZERO)
        for c in range(0, width, LANES):
            centred = load_first(row, c, width - c, centre) - splat(centre)
            squares = squares + centred * centred
        scale = ONE / np.sqrt(total(squares) * inverse_width + np.float32(eps))
        put(rstd, r, scale)
        finite(scale, r)
        for c in range(0, width, LANES):
            n = width - c
            value = (load_first(row, c, n, ZERO) - splat(centre)) * splat(scale)
            value = value * load_first(weight, c, n, ZERO)
            if address(bias) != 0:
                value = value + load_first(bias, c, n, ZERO)
            store_first(normed, c, value, n)
        clear(normed, width, ld)


@kernel
def norm_backward(
    thread: int,
    threads: int,
    dy: Pointer,  # (N, ldy) float32 or storage
    x: Pointer,  # (N, C) float32
    weight: Pointer,  # (C,) float32
    mean: Pointer,  # (N,) float32, or null for RMS norm
    rstd: Pointer,  # (N,) float32
    residual: Pointer,  # (N, C) float32, or null; may be dx itself
    dx: Pointer,  # (N, C) float32
    stored: Pointer,  # (N, ld) storage, or null
    partials: Pointer,  # float32, see `partial_elements`, or null
    rows: int,
    width: int,
    ldy: int,
    ld: int,
    biased: bool,
) -> None:
    """Write dx (plus residual), a copy of it in storage, and the chunks' part of dweight and dbias.

    Once all threads are here, `norm_parameters` adds up the chunks. `biased` says whether there
    is a bias; null partials, that weight and bias are frozen.
    """
    size, stride = chunk_size(rows, UNIT), _stride(width)
    inverse_width = ONE / np.float32(width)
    first_chunk, last_chunk = share(thread, threads, chunk_count(rows, UNIT), 1)
    for chunk in range(first_chunk, last_chunk):
        dweight = partials + chunk * 2 * stride
        dbias = dweight + stride
        if address(partials) != 0:
            clear(dweight, 0, 2 * stride)
        for r in range(chunk * size, min((chunk + 1) * size, rows)):
            gradient, row, result = dy + r * ldy, x + r * width, dx + r * width
            centre, scale = ZERO, splat(get(rstd, r))
            if address(mean) != 0:
                centre = get(mean, r)
            added, along = splat(ZERO), splat(ZERO)  # of d, of d normed
            for c in range(0, width, LANES):
                n = width - c
                # lanes beyond the width add nothing, for dy is 0 there and normed is finite
                normed = (load_first(row, c, n, centre) - splat(centre)) * scale
                incoming = load_first(gradient, c, n, ZERO)
                d = incoming * load_first(weight, c, n, ZERO)
                added = added + d
                along = along + d * normed
                if address(partials) != 0:
                    store(dweight, c, load(dweight, c) + incoming * normed)
                    if biased:
                        store(dbias, c, load(dbias, c) + incoming)
            mean_d, mean_along = ZERO, splat(total(along) * inverse_width)
            if address(mean) != 0:
                mean_d = total(added) * inverse_width
            for c in range(0, width, LANES):
                n = width - c
                normed = (load_first(row, c, n, ZERO) - splat(centre)) * scale
                d = load_first(gradient, c, n, ZERO) * load_first(weight, c, n, ZERO)
                value = (d - splat(mean_d) - normed * mean_along) * scale
                if address(residual) != 0:
                    value = value + load_first(residual + r * width, c, n, ZERO)
                store_first(result, c, value, n)
                if address(stored) != 0:
                    store_first(stored + r * ld, c, value, n)
            if address(stored) != 0:
                clear(stored + r * ld, width, ld)


@kernel
def norm_parameters(
    thread: int,
    threads: int,
    partials: Pointer,  # as `norm_backward` left them
    dweight: Pointer,  # (C,) float32, or null
    dbias: Pointer,  # (C,) float32, or null
    rows: int,
    width: int,
    add_weight: bool,
    add_bias: bool,
) -> None:
    """Add up the chunks: write dweight and dbias, or add to what is there. Follows a barrier."""
    stride = _stride(width)
    if address(dweight) != 0:
        _add_chunks(thread, threads, partials, dweight, rows, width, add_weight)
    if address(dbias) != 0:
        _add_chunks(thread, threads, partials + stride, dbias, rows, width, add_bias)


@kernel
def _add_chunks(
    thread: int,
    threads: int,
    partials: Pointer,  # a row of each chunk's two
    out: Pointer,  # (C,) float32
    rows: int,
    width: int,
    accumulate: bool,
) -> None:
    start, stop = share(thread, threads, width, LANES)
    for c in range(start, stop, LANES):
        value = splat(ZERO)
        for chunk in range(chunk_count(rows, UNIT)):
            value = value + load(partials, chunk * 2 * _stride(width) + c)
        if accumulate:
            value = value + load_first(out, c, stop - c, ZERO)
        store_first(out, c, value, stop - c)
