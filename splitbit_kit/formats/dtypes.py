"""The dtypes of safetensors files, by their codes: NumPy's own, and those that ml_dtypes adds.

ml_dtypes takes longer to import than all else here, so it is imported when a file has such a dtype.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

_OWN: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_ADDED = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
_CODES = {dtype: code for code, dtype in _OWN.items()}
_CODES_ADDED = {name: code for code, name in _ADDED.items()}


class _Dtypes(Mapping[str, "np.dtype[Any]"]):
    def __getitem__(self, code: str) -> np.dtype[Any]:
        if code not in _ADDED:
            return _OWN[code]
        import ml_dtypes

        added: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ADDED[code]))
        return added

    def __iter__(self) -> Iterator[str]:
        yield from _OWN
        yield from _ADDED

    def __len__(self) -> int:
        return len(_OWN) + len(_ADDED)

    def __contains__(self, code: object) -> bool:
        return code in _OWN or code in _ADDED


DTYPES: Mapping[str, np.dtype[Any]] = _Dtypes()
"""code -> dtype, little-endian."""


def code_of(dtype: np.dtype[Any]) -> str | None:
    """Return the code of a dtype, whatever its byte order; None if files cannot hold it."""
    return _CODES.get(dtype.newbyteorder("<")) or _CODES_ADDED.get(dtype.name)
