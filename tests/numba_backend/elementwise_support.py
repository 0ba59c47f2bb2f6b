"""Running one kernel from a test: arrays in, one thread's share after another, margins watched.

    out = room((3, 17), BF16)
    run(norms.norm_forward, 2, x, weight, None, out, mean, rstd, 3, 17, 32, 1e-5)

The shares run from the last thread to the first, so that one which needs another's result is found
out. A kernel that writes outside an array made by `room` fails the test.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numba import njit

from splitbit_numba_backend.simd import pointers

Array = np.ndarray[Any, np.dtype[Any]]

F32, BF16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)
STORAGE = (F32, BF16)
SIZES = (1, 15, 16, 17, 33, 65, 257)
MARGIN = 64  # elements on either side of an array


def room(shape: int | tuple[int, ...], dtype: Any = F32) -> Array:
    """Return an array full of NaN (or -1), with margins that `run` checks."""
    size = int(np.prod(shape))
    rubbish = -1 if np.dtype(dtype).kind == "i" else np.nan
    buffer = np.full(size + 2 * MARGIN, rubbish, dtype)
    return buffer[MARGIN : MARGIN + size].reshape(shape)


def place(values: Array, dtype: Any = F32, ld: int | None = None) -> Array:
    """Return a copy of values with margins; rows `ld` elements apart, with NaN in between."""
    if ld is None:
        copy = room(values.shape, dtype)
        copy[...] = values
        return copy
    copy = room((values.shape[0], ld), dtype)
    copy[:, : values.shape[1]] = values
    return copy


def null(dtype: Any) -> Array:
    """Return what `run` passes as a null pointer of that type; None is the float32 one."""
    return np.empty(0, dtype)


def padded(width: int) -> int:
    """Return the width in whole 32s, as storage has it."""
    return -(-width // 32) * 32


def tolerance(dtype: Any) -> float:
    """Return how far a number near 1 may be from the truth."""
    return 1 / 200 if dtype == BF16 else 2e-6  # bfloat16 has 8 bits: rounding costs 1/256 at most


def run(kernel: Callable[..., None], threads: int, *arguments: Any) -> None:
    """Run kernel(thread, threads, *arguments) for each thread. Arrays become pointers."""
    plain: list[Any] = []
    for a in arguments:
        if a is None:
            plain.append(0)
        elif isinstance(a, np.ndarray):
            assert a.flags.c_contiguous
            plain.append(a.ctypes.data if a.size else 0)
        else:
            plain.append(np.float32(a) if isinstance(a, float) else int(a))
    _driver(kernel, tuple(_kind(a) for a in arguments))(threads, *plain)
    for a in arguments:
        if isinstance(a, np.ndarray) and isinstance(a.base, np.ndarray):
            margins = np.concatenate((a.base[:MARGIN], a.base[-MARGIN:])).astype(np.float64)
            assert np.all(np.isnan(margins) | (margins == -1)), "written outside the array"


def _kind(argument: Any) -> str | None:
    if argument is None:
        return "float32"
    return argument.dtype.name if isinstance(argument, np.ndarray) else None


@cache
def _driver(kernel: Callable[..., None], kinds: tuple[str | None, ...]) -> Callable[..., None]:
    """Return a compiled loop over threads that makes pointers of addresses."""
    names = [f"a{i}" for i in range(len(kinds))]
    passed = [f"{k}_pointer({n})" if k else n for k, n in zip(kinds, names, strict=True)]
    source = (
        f"def drive(threads, {', '.join(names)}):\n"
        f"    for thread in range(threads - 1, -1, -1):\n"
        f"        kernel(thread, threads, {', '.join(passed)})\n"
    )
    scope = {**vars(pointers), "kernel": kernel}
    exec(source, scope)
    compiled: Callable[..., None] = njit(nogil=True, error_model="numpy")(scope["drive"])
    return compiled
