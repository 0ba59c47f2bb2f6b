"""SPLITBIT_DEBUG=1: kernels check each access to memory, and the statistics they make.

Every load and store of a kernel goes through `simd.pointers.place`. In debug mode it first asks
`inside` whether the bytes lie in an array that the present call was given: if not, the access goes
to a patch of memory that nobody else uses, and the first such access is noted, with the kernel's
name and the index. `Runtime.run` raises the note as an error once all threads are done, so that no
thread is left waiting at a barrier. The same for a row's statistic that is not finite.

What is known: where each array begins and ends, not the rows and parts within it. AMX's tile
instructions load and store by themselves and are not checked.

Read once, when the backend is imported; it is in the key of the cache, as all settings are.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import cfunc, njit, types
from numba.extending import intrinsic

from splitbit_kit.api import SplitbitError
from splitbit_numba_backend.atomics import exchange, read, word, write

DEBUG = os.environ.get("SPLITBIT_DEBUG", "") not in ("", "0")

TURN = threading.RLock()
"""held by an op in debug mode, in place of its pool's: there is one list of arrays"""

_MOST = 4096  # arrays of a call
_STACK = 1 << 16  # bytes above a function's own variables that belong to its callers
_PATCH_BYTES = 256  # more than any access has

# the words of the table: the note, then the arrays
_NOTED, _NAME, _INDEX, _PLACE, _BYTES, _ARRAYS, _FIRST = range(7)
_TABLE = np.zeros(_FIRST + 2 * _MOST, np.int64)
_PATCH = np.zeros(_PATCH_BYTES + 64, np.uint8)
_AT = _TABLE.ctypes.data
_PATCH_AT = -(-_PATCH.ctypes.data // 64) * 64

_I64, _I8 = ir.IntType(64), ir.IntType(8)
_INSIDE, _NOTE = "splitbit_debug_inside", "splitbit_debug_note"

arrays: list[tuple[int, int]] = []
"""first byte and the byte after the last, of each array of the present call"""


def begin(known: list[tuple[int, int]]) -> None:
    """Begin a call, or the backward pass of one that was given these arrays."""
    arrays[:] = known


def ready() -> None:
    """Tell the kernels which arrays there are, and forget what was noted."""
    if len(arrays) > _MOST:
        raise SplitbitError(f"SPLITBIT_DEBUG: more than {_MOST} arrays in one call")
    _TABLE[_NOTED] = 0
    _TABLE[_ARRAYS] = len(arrays)
    _TABLE[_FIRST : _FIRST + 2 * len(arrays)] = np.array(arrays, np.int64).ravel()


def check() -> None:
    """Raise SplitbitError if a kernel has noted something since `ready`."""
    if not _TABLE[_NOTED]:
        return
    kernel = ctypes.string_at(int(_TABLE[_NAME])).decode("ascii")
    index, place, nbytes = (int(_TABLE[n]) for n in (_INDEX, _PLACE, _BYTES))
    if not nbytes:
        raise SplitbitError(f"SPLITBIT_DEBUG: {kernel}: the statistic of row {index} is not finite")
    distance, size = min((max(a - place, place + nbytes - b), b - a) for a, b in arrays)
    raise SplitbitError(
        f"SPLITBIT_DEBUG: {kernel}: {nbytes} bytes at element {index} lie outside every array of "
        f"the call, by {distance} bytes or more; the nearest has {size}"
    )


@intrinsic
def _frame(typingctx: Any) -> Any:
    """_frame() -> intp: an address in the frame of the function that calls it."""

    def emit(ctx: Any, b: Any, sig: Any, args: Any) -> Any:
        with b.goto_entry_block():
            variable = b.alloca(_I64)
        return b.ptrtoint(variable, _I64)

    return types.intp(), emit


@njit(error_model="numpy")
def _note(index: int, place: int, nbytes: int, name: int) -> None:
    if exchange(word(_AT, _NOTED), 1) == 0:  # only the first is told
        write(word(_AT, _NAME), name)
        write(word(_AT, _INDEX), index)
        write(word(_AT, _PLACE), place)
        write(word(_AT, _BYTES), nbytes)


def _inside(start: int, nbytes: int, index: int, name: int) -> int:
    """Return `start`, or the patch if [start, start + nbytes) is in no array of the call."""
    count = read(word(_AT, _ARRAYS))
    if nbytes <= 0 or count == 0:
        return start
    for n in range(count):
        first, stop = read(word(_AT, _FIRST + 2 * n)), read(word(_AT, _FIRST + 2 * n + 1))
        if start >= first and start + nbytes <= stop:
            return start
    here = _frame()
    if start >= here and start + nbytes <= here + _STACK:
        return start
    _note(index, start, nbytes, name)
    return _PATCH_AT


if DEBUG:
    # found by name, not by address: so kernels that call them can be kept on disk
    _compiled = [
        cfunc("intp(intp, intp, intp, intp)", error_model="numpy")(_inside),
        cfunc("void(intp, intp, intp, intp)", error_model="numpy")(_note.py_func),
    ]
    for _symbol, _function in zip((_INSIDE, _NOTE), _compiled, strict=True):
        llvm.add_symbol(_symbol, _function.address)


def inside(b: Any, start: Any, nbytes: Any, index: Any) -> Any:
    """Emit a check of an access: the address to use, given the one that is wanted."""
    call = _function_of(b, _INSIDE, _I64, 4)
    return b.call(call, [start, nbytes, index, _name(b)])


@intrinsic
def finite(typingctx: Any, value: Any, row: Any) -> Any:
    """finite(float32, intp row): in debug mode, note the row if its statistic is not finite."""

    def emit(ctx: Any, b: Any, sig: Any, args: Any) -> Any:
        if DEBUG:
            value, row = args
            nothing = b.fsub(value, value)  # 0, or NaN
            with b.if_then(b.fcmp_unordered("uno", nothing, nothing)):
                note = _function_of(b, _NOTE, ir.VoidType(), 4)
                b.call(note, [row, ir.Constant(_I64, 0), ir.Constant(_I64, 0), _name(b)])
        return ctx.get_dummy_value()

    return types.void(types.float32, types.intp), emit


def _function_of(b: Any, name: str, result: ir.Type, arguments: int) -> Any:
    known = b.module.globals.get(name)
    return known or ir.Function(b.module, ir.FunctionType(result, [_I64] * arguments), name)


def _name(b: Any) -> Any:
    """Return the address of the name, in the compiled code, of the function that is compiled."""
    symbol = f"splitbit_debug_name.{b.function.name}"
    known = b.module.globals.get(symbol)
    if known is None:
        text = bytearray(readable(b.function.name).encode("ascii") + b"\0")
        kind = ir.ArrayType(_I8, len(text))
        known = ir.GlobalVariable(b.module, kind, symbol)
        known.linkage, known.global_constant = "internal", True
        known.initializer = ir.Constant(kind, text)
    return b.ptrtoint(known, _I64)


def readable(mangled: str) -> str:
    """Return "module.function" of a symbol as Numba mangles it: lengths and names, then a tag."""
    found, rest = [], mangled.removeprefix("_ZN")
    while match := re.match(r"\d+", rest):
        length = int(match[0])
        found.append(rest[match.end() : match.end() + length])
        rest = rest[match.end() + length :]
    return ".".join(found[1:] if len(found) > 1 else found) or mangled
