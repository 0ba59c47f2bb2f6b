"""What a quantizer offers: packing a weight into bytes, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class PackedTensor:
    """A weight (O, I) in a packed format: named byte arrays and a little metadata.

    Nothing else is in it, so that it can be written to any container and mapped read-only.
    """

    format: str
    shape: tuple[int, ...]
    arrays: Mapping[str, Array]
    metadata: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays together."""
        return sum(array.nbytes for array in self.arrays.values())


Layout = Mapping[str, tuple[Any, tuple[int, ...]]]
"""array name -> (dtype, shape)"""


class Quantizer(Protocol):
    """A built quantizer. All methods are pure, and take what any other of the format packed."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Bit widths that one packed tensor can be unpacked at, smallest first."""
        ...

    def layout(self, shape: tuple[int, int]) -> Layout:
        """Return the arrays that a weight (O, I) becomes: what a file is checked against.

        Raises ValueError if the format has no room for the shape, saying why in terms of the row
        length I, such as "rows of 172 do not divide into blocks of 32". The weight then stays as it
        is. Shapes come from files too: sizes must be Python integers, which do not wrap.
        """
        ...

    def pack(self, w: Array, calibration: Any | None = None) -> PackedTensor:
        """Return w (O, I) float32, packed in the arrays of `layout`.

        `calibration` is the mean of x^2 for each input column (I,), or None. Raises ValueError,
        saying where, if a value is not finite or beyond what the format can hold.
        """
        ...

    def unpack(
        self, packed: PackedTensor, bits: int | None = None, rows: slice = slice(None)
    ) -> Array:
        """Return the chosen rows as float32, at `bits` bits a weight (None: all there are).

        The arrays are those of `layout`, perhaps mapped read-only and not aligned. The options that
        they were packed with are not known.
        """
        ...

    def round(self, w: Array) -> Array:
        """Return w as it reads after packing and unpacking: for low-bit training."""
        ...


@dataclass(frozen=True)
class QuantizerOffer:
    """A quantizer by name; the name is also the format name in `PackedTensor.format`."""

    name: str
    summary: str
    build: Callable[..., Quantizer]
    """build(**options); its keyword parameters are the options it has"""
    needs: tuple[str, ...] = ()
