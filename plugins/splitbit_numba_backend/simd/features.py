"""What this processor multiplies with: the one place where a path is chosen.

A path names a way to multiply tiles. Each is also good for what the paths before it can do:

    portable      plain vector code, on any processor that LLVM knows; the others are tested against
    avx2          float32 multiply-add in 256-bit registers
    avx512        the same in 512-bit registers
    avx512_bf16   and dot products of bfloat16 pairs
    amx           and bfloat16 tiles, which the system must permit

The best that the processor has is taken. SPLITBIT_SIMD=portable (or another) takes that one
instead: for tests, and for comparing. Compiled code depends on the choice, so a cache of compiled
code must have `PATH` in its key.

A further path, NEON's bfloat16 say, is a line in `PATHS` with the features it needs and a line in
`tiles.BFLOAT16` with its shape and instruction.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping
from functools import cache

import llvmlite.binding as llvm

PATHS: Mapping[str, frozenset[str]] = {
    "portable": frozenset(),
    "avx2": frozenset({"avx2", "fma"}),
    "avx512": frozenset({"avx512f", "avx512bw", "avx512vl"}),
    "avx512_bf16": frozenset({"avx512f", "avx512bw", "avx512vl", "avx512bf16"}),
    "amx": frozenset({"avx512f", "avx512bw", "avx512vl", "avx512bf16", "amx-tile", "amx-bf16"}),
}
"""Every path, slowest first, with the processor features (LLVM's names) that it needs."""

VARIABLE = "SPLITBIT_SIMD"

_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18  # Linux on x86-64


@cache
def tiles_permitted() -> bool:
    """Ask the system, once a process, whether its threads may use AMX tiles.

    Linux saves the 8 KB of tile registers only for processes that have asked
    (https://docs.kernel.org/arch/x86/xstate.html). Elsewhere the answer is no.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    syscall = ctypes.CDLL(None).syscall
    syscall.restype = ctypes.c_long
    request = (_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)
    return bool(syscall(*(ctypes.c_long(word) for word in request)) == 0)


@cache
def supported() -> tuple[str, ...]:
    """Return the paths that this processor and this system can run, slowest first."""
    present = {name for name, there in llvm.get_host_cpu_features().items() if there}
    able = [path for path, needs in PATHS.items() if needs <= present]
    return tuple(path for path in able if path != "amx" or tiles_permitted())


def choose(wanted: str) -> str:
    """Return the path to take: the one wanted, or the best if that is "".

    Raises ValueError for a path that is unknown or that this machine cannot run.
    """
    if not wanted:
        return supported()[-1]
    if wanted not in supported():
        raise ValueError(
            f"{VARIABLE}={wanted}: this machine can run {', '.join(supported())}"
            f"{'' if wanted in PATHS else '; there is no such path'}"
        )
    return wanted


PATH = choose(os.environ.get(VARIABLE, ""))
"""The path of this process."""

NATIVE_BF16 = PATH in ("avx512_bf16", "amx")
"""Whether bfloat16 is multiplied by instructions of its own, so that it pays to store it."""
