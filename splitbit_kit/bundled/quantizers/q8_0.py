"""Q8_0, to the byte as ggml has it: `block_q8_0` and `quantize_row_q8_0_ref` of ggml-quants.c.

32 neighbouring weights of a row share a scale d = max |w| / 127, rounded to float16; a weight is
d times a signed byte. A block is 34 bytes, d first, so 8.5 bits a weight.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from splitbit_kit.api import Layout, PackedTensor
from splitbit_kit.api.quantization import Array
from splitbit_kit.bundled.quantizers.rows import check_width, refuse, row_blocks

BLOCK = 32
BYTES = np.dtype([("d", "<f2"), ("q", "i1", BLOCK)])


class Q8_0:
    """The format as a `Quantizer`. It has no options, and calibration changes nothing."""

    widths = (8,)

    def layout(self, shape: tuple[int, int]) -> Layout:
        """Return one array, `blocks` (O, 34 I / 32), uint8."""
        rows, length = shape
        if length % BLOCK:
            raise ValueError(f"rows of {length} do not divide into blocks of {BLOCK}")
        return {"blocks": (np.dtype(np.uint8), (rows, length // BLOCK * BYTES.itemsize))}

    def pack(self, w: Array, calibration: Any | None = None) -> PackedTensor:
        """Return w (O, I) packed. Raises ValueError for a magnitude that float16 scales lack."""
        dtype, shape = self.layout((w.shape[0], w.shape[1]))["blocks"]
        blocks = np.empty(shape, dtype)
        for rows, part in row_blocks(w):
            _encode(part, rows.start, blocks[rows].view(BYTES))
        return PackedTensor("q8_0", w.shape, {"blocks": blocks})

    def unpack(
        self, packed: PackedTensor, bits: int | None = None, rows: slice = slice(None)
    ) -> Array:
        """Return the chosen rows as float32."""
        check_width(bits, self.widths)
        blocks = packed.arrays["blocks"][rows].view(BYTES)
        weights = blocks["q"].astype(np.float32)
        weights *= blocks["d"].astype(np.float32)[..., None]
        return weights.reshape(len(blocks), packed.shape[1])

    def round(self, w: Array) -> Array:
        """Return w as it reads after packing and unpacking."""
        return self.unpack(self.pack(w))


def _encode(w: Array, first_row: int, blocks: Array) -> None:  # w (rows, I), blocks (rows, I / 32)
    grouped = w.reshape(len(w), -1, BLOCK)
    with np.errstate(all="ignore"):  # what overflows is dealt with below
        scale = np.abs(grouped).max(axis=2) / np.float32(127)
        blocks["d"] = scale
        inverse = 1 / scale
        # The codes are those of the exact scale, as ggml has it, although d is then rounded. Of a
        # block of zeros, or of magnitudes so small that 1 / scale overflows, all codes are 0.
        inverse[~np.isfinite(inverse)] = 0
        q = grouped * inverse[..., None]
    why = "finite weights below 8.3 million are expected"  # 65,520 * 127: the end of float16
    refuse(~np.isfinite(blocks["d"]), first_row, w, why)
    blocks["q"] = _half_away(q)


def _half_away(x: Array) -> Array:
    """Round to whole numbers, halves away from zero, as C's roundf; NumPy's go to even ones."""
    whole: Array = np.trunc(x)
    whole += np.trunc(2 * (x - whole))  # exact: the part after the point has bits to spare
    return whole
