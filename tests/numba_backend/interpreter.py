"""The SIMD layer once more, in NumPy: kernels run in the Python interpreter, as their text says.

    interpreted(program.fp32)(0, 1, words.ctypes.data)

runs a compiled program's Python text, and that of all it calls, on one thread. Vectors are arrays
of sixteen numbers, pointers carry their address; each function below is what the intrinsic of that
name means. So a kernel can be followed in a debugger, and what is wrong here is wrong in its text,
not in the code that LLVM made of it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic

from splitbit_numba_backend.simd.tiles import FLOAT32 as SHAPES
from splitbit_numba_backend.threads import barrier

Array = np.ndarray[Any, np.dtype[Any]]

LANES, COLUMNS = 16, 32
F32 = np.dtype(np.float32)
KINDS = {
    "float32": F32,
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int32": np.dtype(np.int32),
    "float64": np.dtype(np.float64),
}
SHAPE = SHAPES["portable"]


class Pointer(NamedTuple):
    """An address of elements of one type."""

    dtype: np.dtype[Any]
    address: int

    def __add__(self, elements: int) -> Pointer:  # type: ignore[override]
        return Pointer(self.dtype, self.address + int(elements) * self.dtype.itemsize)


def memory(address: int, count: int, dtype: Any) -> Array:
    """Return so many elements of the memory at an address, as they are."""
    found: Array = np.frombuffer(
        _bytes(count * np.dtype(dtype).itemsize).from_address(address), dtype
    )
    return found


@cache
def _bytes(count: int) -> Any:
    return ctypes.c_char * count


def elements(pointer: Pointer, index: int, count: int) -> Array:
    """Return so many elements from an index on."""
    return memory((pointer + index).address, int(count), pointer.dtype)


def lanes(values: Any, other: float) -> Array:
    """Return at most sixteen values as a vector, filled up with `other`."""
    vector = np.full(LANES, other, F32)
    vector[: len(values)] = values
    return vector


def inside(count: int) -> int:
    return min(max(int(count), 0), LANES)


def folded(x: Array, join: Callable[[Array, Array], Array]) -> Any:
    """Return one lane made of all, halving as the intrinsics do."""
    while len(x) > 1:
        x = join(x[: len(x) // 2], x[len(x) // 2 :])
    return x[0]


def larger(x: Array, y: Array) -> Array:
    return np.where(x > y, x, y)  # a NaN is never the larger


# ---- what the intrinsics mean, by name


class Twins:
    """Each function does what the intrinsic of its name does."""

    # vectors

    @staticmethod
    def splat(x: float) -> Array:
        return np.full(LANES, x, F32)

    maximum = staticmethod(larger)
    absolute = staticmethod(np.abs)
    root = staticmethod(np.sqrt)
    sign = staticmethod(np.sign)

    @staticmethod
    def exp(x: Array) -> Array:
        return np.exp(np.clip(x, F32.type(-87.3), F32.type(88.3)))

    @staticmethod
    def exp_below(x: Array) -> Array:
        return np.exp(np.clip(x, F32.type(-87.3), F32.type(1)))

    @staticmethod
    def sigmoid(x: Array) -> Array:
        return F32.type(1) / (F32.type(1) + Twins.exp(-x))

    @staticmethod
    def total(x: Array) -> Any:
        return folded(x, np.add)

    @staticmethod
    def largest(x: Array) -> Any:
        return folded(x, larger)

    @staticmethod
    def no_sums() -> Array:
        return np.zeros(LANES)

    @staticmethod
    def add_squares(sums: Array, x: Array) -> Array:
        return sums + np.square(x, dtype=np.float64)

    @staticmethod
    def first(x: Array, count: int, other: float) -> Array:
        return np.where(np.arange(LANES) < count, x, F32.type(other))

    @staticmethod
    def rest(x: Array, count: int, other: float) -> Array:
        return np.where(np.arange(LANES) < count, F32.type(other), x)

    # pointers

    @staticmethod
    def address(pointer: Pointer) -> int:
        return pointer.address

    @staticmethod
    def like(pointer: Pointer, address: int) -> Pointer:
        return Pointer(pointer.dtype, int(address))

    @staticmethod
    def per_unit(pointer: Pointer) -> int:
        return 4 // pointer.dtype.itemsize

    @staticmethod
    def load(pointer: Pointer, index: int) -> Array:
        return elements(pointer, index, LANES).astype(F32)

    @staticmethod
    def load_first(pointer: Pointer, index: int, count: int, other: float) -> Array:
        return lanes(elements(pointer, index, inside(count)), other)

    @staticmethod
    def store(pointer: Pointer, index: int, x: Array) -> None:
        elements(pointer, index, LANES)[:] = x

    @staticmethod
    def store_first(pointer: Pointer, index: int, x: Array, count: int) -> None:
        elements(pointer, index, inside(count))[:] = x[: inside(count)]

    @staticmethod
    def store_pairs(pointer: Pointer, index: int, x: Array, y: Array) -> None:
        elements(pointer, index, 2 * LANES)[:] = np.stack((x, y), axis=1).ravel()

    @staticmethod
    def get(pointer: Pointer, index: int) -> Any:
        (value,) = elements(pointer, index, 1)
        if pointer.dtype.kind == "i":
            return int(value)
        return value if pointer.dtype == np.float64 else F32.type(value)

    @staticmethod
    def put(pointer: Pointer, index: int, value: float) -> None:
        elements(pointer, index, 1)[:] = value

    @staticmethod
    def argument(args: int, place: int) -> int:
        return int(memory(args + 8 * place, 1, np.int64)[0])

    @staticmethod
    def real(args: int, place: int) -> Any:
        return F32.type(memory(args + 8 * place, 1, np.float64)[0])

    @staticmethod
    def scratch() -> Pointer:  # what `local` makes
        block = np.full(1024, np.nan, F32)
        kept.append(block)
        return Pointer(F32, block.ctypes.data)

    # tiles

    @staticmethod
    def transpose(source: Pointer, stride: int, out: Pointer, out_stride: int) -> None:
        units = np.stack([memory((source + n * stride).address, 16, np.int32) for n in range(16)])
        for k in range(16):
            elements(out, k * out_stride, 16)[:] = units[:, k]

    @staticmethod
    def transpose_columns(source: Pointer, stride: int, out: Pointer, out_stride: int) -> None:
        pair = Twins.per_unit(source)
        columns = np.stack([elements(source, k * stride, 16) for k in range(16 * pair)], axis=1)
        for n in range(16):
            elements(out, n * out_stride, 16)[:] = columns[n].view(np.int32)

    @staticmethod
    def interleave(source: Pointer, stride: int, out: Pointer) -> None:
        rows = [elements(source, k * stride, COLUMNS) for k in range(Twins.per_unit(source))]
        units = np.ascontiguousarray(np.stack(rows, axis=1))
        elements(out, 0, COLUMNS)[:] = units.view(np.int32).ravel()

    @staticmethod
    def tile_rows(pointer: Pointer) -> int:
        return SHAPE.rows

    @staticmethod
    def tile_columns(pointer: Pointer) -> int:
        return SHAPE.columns

    @staticmethod
    def tile_product(
        left: Pointer, stride: int, panel: Pointer, units: int, out: Pointer, out_stride: int,
        accumulate: bool,
    ) -> None:  # fmt: skip
        deep, wide = int(units) * Twins.per_unit(left), SHAPE.columns
        rows = np.stack([elements(left, r * stride, deep) for r in range(SHAPE.rows)])
        pairs = [elements(panel, k * COLUMNS, wide).view(left.dtype) for k in range(units)]
        columns = np.stack(pairs).reshape(int(units), wide, -1).swapaxes(1, 2).reshape(deep, wide)
        sums = rows.astype(F32) @ columns.astype(F32)
        for r in range(SHAPE.rows):
            place = elements(out, r * out_stride, wide)
            place[:] = place + sums[r] if accumulate else sums[r]

    # what one thread has no use for

    @staticmethod
    def begin(pointer: Pointer) -> None: ...

    @staticmethod
    def end(pointer: Pointer) -> None: ...

    @staticmethod
    def barrier(control: int) -> None: ...

    @staticmethod
    def finite(value: float, row: int) -> None: ...


for _name, _dtype in KINDS.items():
    setattr(Twins, f"{_name}_pointer", staticmethod(lambda a, d=_dtype: Pointer(d, int(a))))

kept: list[Array] = []
"""scratch memory of functions that are running"""


@cache
def interpreted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel as Python runs it: intrinsics replaced, in all that it calls."""
    function = getattr(function, "py_func", function)
    scope = dict(function.__globals__)
    for name in function.__code__.co_names:
        if name in scope:
            scope[name] = twin(scope[name])
    return FunctionType(function.__code__, scope, function.__name__, function.__defaults__)


def twin(value: Any) -> Any:
    """Return what stands for a global of a kernel in the interpreter: mostly itself."""
    if isinstance(value, _Intrinsic) and not hasattr(value, "py_func"):
        return getattr(Twins, value._name)
    if value is barrier:
        return Twins.barrier
    if value is np:
        return Numpy()
    if isinstance(value, ModuleType) and _is_ours(value.__name__):
        return Module(value)
    if isinstance(value, Dispatcher | FunctionType | _Intrinsic) and _is_ours(value.__module__):
        return interpreted(value)
    return value


class Module:
    """A module of kernels, as the interpreter sees it."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return twin(getattr(self._module, name))


class Numpy:
    """NumPy, but for what compiled code does otherwise: a negative integer wraps."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def uint64(value: int) -> np.uint64:
        return np.uint64(int(value) % 2**64)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "splitbit_numba_backend"
