"""What every format does with rows: a block of them at a time, and whether they can be packed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from splitbit_kit.api.quantization import Array

BLOCK_BYTES = 1024 * 1024  # of float32 weights; the temporaries are a few times that


def row_blocks(w: Array) -> Iterator[tuple[slice, Array]]:  # w (O, I)
    """Yield rows of w in blocks of about a megabyte, each block as float32."""
    outputs, inputs = w.shape
    height = max(1, BLOCK_BYTES // (4 * max(1, inputs)))
    for start in range(0, outputs, height):
        rows = slice(start, min(start + height, outputs))
        yield rows, np.asarray(w[rows], np.float32)


def refuse(wrong: Array, first_row: int, w: Array, why: str) -> None:
    """Raise ValueError at the first block of weights that is wrong, if there is one.

    wrong (rows, blocks): which ones are; a block may be a single weight. w (rows, I): the weights.
    why: what is expected instead.
    """
    if not wrong.any():
        return
    row, block = (int(i) for i in np.argwhere(wrong)[0])
    size = w.shape[1] // wrong.shape[1]
    weights = w[row, block * size : (block + 1) * size]
    bad = weights[~np.isfinite(weights)]
    worst = bad[0] if bad.size else weights[np.abs(weights).argmax()]
    place = f"row {first_row + row}, {'block' if size > 1 else 'column'} {block}"
    raise ValueError(f"{place}: a weight is {worst:g}; {why}")


def check_width(bits: int | None, widths: tuple[int, ...]) -> None:
    """Raise ValueError for a width that a format does not have."""
    if bits is not None and bits not in widths:
        raise ValueError(f"bits {bits}: there are {', '.join(map(str, widths))}")
