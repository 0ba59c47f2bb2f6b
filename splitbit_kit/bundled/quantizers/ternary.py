"""Ternary weights by absmean: BitNet b1.58, Ma et al. 2024, https://arxiv.org/abs/2402.17764.

gamma = mean |W| over the tensor; a weight is gamma times -1, 0 or 1, whichever is nearest to
W / gamma, halves to even. The codes -1, 0, 1 are stored as 0, 1, 2 in 2 bits each, gamma once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from splitbit_kit.api import Layout, PackedTensor
from splitbit_kit.api.quantization import Array
from splitbit_kit.bundled.quantizers.rows import check_width, refuse, row_blocks

PER_BYTE = 4
SHIFTS = np.arange(0, 8, 2, dtype=np.uint8)[
    :, None
]  # bits: a byte holds one weight of each quarter


class Ternary:
    """The format as a `Quantizer`. It has no options, and calibration changes nothing."""

    widths = (2,)

    def layout(self, shape: tuple[int, int]) -> Layout:
        """Return `codes` (O, I / 4), uint8, and `scale` (1,), float32."""
        rows, length = shape
        if length % PER_BYTE:
            raise ValueError(f"rows of {length} do not divide into bytes of {PER_BYTE} weights")
        return {
            "codes": (np.dtype(np.uint8), (rows, length // PER_BYTE)),
            "scale": (np.dtype("<f4"), (1,)),
        }

    def pack(self, w: Array, calibration: Any | None = None) -> PackedTensor:
        """Return w (O, I) packed."""
        layout = self.layout((w.shape[0], w.shape[1]))
        codes = np.empty(layout["codes"][1], np.uint8)
        scale = np.full(1, _mean_magnitude(w), layout["scale"][0])
        # a mean that rounds to 0 leaves nothing but zeros
        divisor = scale if scale[0] else np.float32(np.inf)
        for rows, part in row_blocks(w):
            with np.errstate(over="ignore"):  # an outlier is clipped all the same
                nearest = np.rint(part / divisor)
            trits = (np.clip(nearest, -1, 1) + 1).astype(np.uint8)
            quarters = trits.reshape(len(part), PER_BYTE, -1)
            codes[rows] = np.bitwise_or.reduce(quarters << SHIFTS, axis=1)
        return PackedTensor("ternary", w.shape, {"codes": codes, "scale": scale})

    def unpack(
        self, packed: PackedTensor, bits: int | None = None, rows: slice = slice(None)
    ) -> Array:
        """Return the chosen rows as float32."""
        check_width(bits, self.widths)
        codes = packed.arrays["codes"][rows]
        trits = codes[:, None, :] >> SHIFTS & np.uint8(3)
        weights = trits.reshape(len(codes), packed.shape[1]).astype(np.float32)
        weights -= 1
        weights *= packed.arrays["scale"]
        return weights

    def round(self, w: Array) -> Array:
        """Return w as it reads after packing and unpacking."""
        return self.unpack(self.pack(w))


def _mean_magnitude(w: Array) -> float:
    total = 0.0
    for rows, part in row_blocks(w):
        finite = np.isfinite(part)
        refuse(~finite, rows.start, part, "finite weights are expected")
        total += float(np.abs(part).sum(dtype=np.float64))
    return total / max(1, w.size)
