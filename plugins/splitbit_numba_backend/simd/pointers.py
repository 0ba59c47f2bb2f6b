"""Pointers with an element type, so that one kernel serves float32 and bfloat16 storage.

    x = float32_pointer(address)        from an integer
    x + n                               n elements further
    load(x, i), store(x, i, v)          sixteen elements from x[i] on, as float32 lanes
    get(x, i), put(x, i, s)             one element
    load_first(x, i, n, other)          min(n, 16) elements, and `other` in the lanes beyond
    store_first(x, i, v, n)             the first min(n, 16) lanes; what lies beyond is not touched

bfloat16 is widened on the way in and rounded to nearest, ties to even, on the way out (a NaN stays
one). Nothing is checked here, but in debug mode (`simd.debug`): an address reaches a kernel only
after the checks in `border`.
"""

from __future__ import annotations

import operator
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core.typing import signature
from numba.core.typing.templates import ConcreteTemplate, infer_global
from numba.extending import intrinsic, lower_builtin, models, register_model

from splitbit_numba_backend.simd.debug import DEBUG, inside
from splitbit_numba_backend.simd.vector import (
    F32,
    F64,
    I16,
    I32,
    I64,
    LANE_NUMBERS,
    LANES,
    V_F32,
    V_I16,
    V_I32,
    broadcast,
    constant,
    function,
    integers,
    vector,
)

NATIVE_BF16 = bool(llvm.get_host_cpu_features().get("avx512bf16"))


class _BFloat(ir.Type):
    """LLVM's bfloat, which llvmlite has no name for."""

    intrinsic_name = "bf16"

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash("bfloat")


BF16 = _BFloat()
V_BF16 = ir.VectorType(BF16, LANES)


class Pointer(types.Type):
    """An address of elements of one type: float32, bfloat16, int32 or float64."""

    def __init__(self, element: str, size: int) -> None:
        super().__init__(name=f"pointer({element})")
        self.element = element
        self.size = size


float32_type, bfloat16_type, int32_type, float64_type = POINTERS = (
    Pointer("float32", 4),
    Pointer("bfloat16", 2),
    Pointer("int32", 4),
    Pointer("float64", 8),
)


@register_model(Pointer)
class _PointerModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, I64)


def _maker(kind: Pointer) -> Any:
    def implementation(typingctx: Any, address: Any) -> Any:
        return kind(types.intp), lambda ctx, b, sig, args: args[0]

    implementation.__name__ = f"{kind.element}_pointer"
    return intrinsic(implementation)


float32_pointer = _maker(float32_type)
bfloat16_pointer = _maker(bfloat16_type)
int32_pointer = _maker(int32_type)
float64_pointer = _maker(float64_type)  # for sums: no vectors, only `get` and `put`


@intrinsic
def address(typingctx: Any, pointer: Any) -> Any:
    """address(pointer) -> intp."""
    return types.intp(pointer), lambda ctx, b, sig, args: args[0]


@infer_global(operator.add)
class _Further(ConcreteTemplate):
    cases = [signature(kind, kind, types.intp) for kind in POINTERS]  # noqa: RUF012 (numba's)


def _lower_further(kind: Pointer) -> None:
    @lower_builtin(operator.add, kind, types.intp)
    def lower(ctx: Any, b: Any, sig: Any, args: Any) -> Any:
        return b.add(args[0], b.mul(args[1], ir.Constant(I64, kind.size)))


for _kind in POINTERS:
    _lower_further(_kind)


def local(elements: int) -> Any:
    """Return a compiled function () -> float32 pointer: scratch of the function that calls it."""

    def scratch(typingctx: Any) -> Any:
        def emit(ctx: Any, b: Any, sig: Any, args: Any) -> Any:
            with b.goto_entry_block():  # once a call, also within a loop
                block = b.alloca(F32, size=ir.Constant(I32, elements))
                block.align = 64
            return b.ptrtoint(block, I64)

        return float32_type(), emit

    return intrinsic(scratch)


def place(
    builder: Any, base: Any, index: Any, element: ir.Type, kind: ir.Type, count: Any = None
) -> Any:
    """Return the LLVM pointer (to `kind`) to element `index` from an integer address.

    count: how many elements are meant, if not a whole `kind` (16 lanes); it may be below 0 or more.
    """
    if DEBUG:
        size = ir.Constant(I64, _SIZES[str(element)])
        nbytes = builder.mul(ir.Constant(I64, getattr(kind, "count", 1)), size)
        if count is not None:
            part = builder.mul(count, size)
            nbytes = builder.select(builder.icmp_signed("<", part, nbytes), part, nbytes)
        start = builder.add(base, builder.mul(index, size))
        return builder.inttoptr(inside(builder, start, nbytes, index), kind.as_pointer())
    start = builder.inttoptr(base, element.as_pointer())
    return builder.bitcast(builder.gep(start, [index]), kind.as_pointer())


_SIZES = {"i16": 2, "i32": 4, "i64": 8, "float": 4, "double": 8}
"""bytes of an element, by LLVM's name"""


def widen(builder: Any, halves: Any) -> Any:
    """Return sixteen bfloat16 bit patterns as float32 lanes."""
    return builder.bitcast(builder.shl(builder.zext(halves, V_I32), integers(16)), V_F32)


def narrow(builder: Any, x: Any) -> Any:
    """Return float32 lanes as bfloat16 bit patterns, rounded to nearest, ties to even."""
    if NATIVE_BF16:
        return builder.bitcast(builder.fptrunc(x, V_BF16), V_I16)
    bits = builder.bitcast(x, V_I32)
    odd = builder.and_(builder.lshr(bits, integers(16)), integers(1))
    rounded = builder.lshr(builder.add(builder.add(bits, integers(0x7FFF)), odd), integers(16))
    quiet = builder.or_(builder.lshr(bits, integers(16)), integers(0x40))
    return builder.trunc(builder.select(builder.fcmp_unordered("uno", x, x), quiet, rounded), V_I16)


@intrinsic
def load(typingctx: Any, pointer: Any, index: Any) -> Any:
    """load(pointer, intp) -> vector."""

    def emit(ctx: Any, b: Any, sig: Any, args: Any) -> Any:
        if pointer.element == "bfloat16":
            return widen(b, b.load(place(b, *args, I16, V_I16), align=2))
        return b.load(place(b, *args, F32, V_F32), align=4)

    return vector(pointer, types.intp), emit


@intrinsic
def store(typingctx: Any, pointer: Any, index: Any, value: Any) -> Any:
    """store(pointer, intp, vector)."""

    def emit(ctx: Any, b: Any, sig: Any, args: Any) -> Any:
        base, index, value = args
        if pointer.element == "bfloat16":
            b.store(narrow(b, value), place(b, base, index, I16, V_I16), align=2)
        else:
            b.store(value, place(b, base, index, F32, V_F32), align=4)
        return ctx.get_dummy_value()

    return types.void(pointer, types.intp, vector), emit


@intrinsic
def store_pairs(typingctx: Any, pointer: Any, index: Any, x: Any, y: Any) -> Any:
    """store_pairs(pointer, intp, vector, vector): x[0], y[0], x[1], y[1] and so on, 32 elements.

    In bfloat16 these are sixteen units of two neighbours along a summed dimension (`simd.tiles`).
    """

    def emit(ctx: Any, b: Any, sig: Any, args: Any) -> Any:
        base, index, x, y = args
        order = [n for i in range(LANES) for n in (i, LANES + i)]
        mask = ir.Constant(ir.VectorType(I32, 2 * LANES), order)
        if pointer.element == "bfloat16":
            pairs = b.shuffle_vector(narrow(b, x), narrow(b, y), mask)
            b.store(pairs, place(b, base, index, I16, pairs.type), align=2)
        else:
            pairs = b.shuffle_vector(x, y, mask)
            b.store(pairs, place(b, base, index, F32, pairs.type), align=4)
        return ctx.get_dummy_value()

    return types.void(pointer, types.intp, vector, vector), emit


def _inside(b: Any, count: Any) -> Any:
    """Return the mask of the lanes below `count`."""
    return b.icmp_signed("<", LANE_NUMBERS, broadcast(b, b.trunc(count, I32), V_I32))


def _masked(b: Any, what: str, kind: ir.VectorType, result: ir.Type, operands: list[Any]) -> Any:
    """Call llvm.masked.load or llvm.masked.store for lanes of `kind`, aligned as one of them."""
    name = f"llvm.masked.{what}.v{LANES}{'i16' if kind is V_I16 else 'f32'}.p0"
    return b.call(function(b, name, result, [operand.type for operand in operands]), operands)


# Both branch to a plain access when all sixteen lanes are meant, as in all rounds of a loop but the
# last: a masked one costs a comparison where the processor has masks, and much more where it does
# not.
@intrinsic
def load_first(typingctx: Any, pointer: Any, index: Any, count: Any, other: Any) -> Any:
    """load_first(pointer, intp, intp count, float32 other) -> vector; nothing beyond is read."""
    narrow_type = pointer.element == "bfloat16"
    lane, lanes, size = (I16, V_I16, 2) if narrow_type else (F32, V_F32, 4)

    def emit(ctx: Any, b: Any, sig: Any, args: Any) -> Any:
        base, index, count, other = args
        start = place(b, base, index, lane, lanes, count)
        finish = (lambda x: widen(b, x)) if narrow_type else (lambda x: x)
        with b.if_else(b.icmp_signed(">=", count, ir.Constant(I64, LANES))) as (then, otherwise):
            with then:
                whole, from_whole = finish(b.load(start, align=size)), b.block
            with otherwise:
                rest = ir.Constant(lanes, None)
                operands = [start, ir.Constant(I32, size), _inside(b, count), rest]
                part = finish(_masked(b, "load", lanes, lanes, operands))
                part = b.select(_inside(b, count), part, broadcast(b, other, V_F32))
                from_part = b.block
        result = b.phi(V_F32)
        result.add_incoming(whole, from_whole)
        result.add_incoming(part, from_part)
        return result

    return vector(pointer, types.intp, types.intp, types.float32), emit


@intrinsic
def store_first(typingctx: Any, pointer: Any, index: Any, value: Any, count: Any) -> Any:
    """store_first(pointer, intp, vector, intp count)."""
    narrow_type = pointer.element == "bfloat16"
    lane, lanes, size = (I16, V_I16, 2) if narrow_type else (F32, V_F32, 4)

    def emit(ctx: Any, b: Any, sig: Any, args: Any) -> Any:
        base, index, value, count = args
        value = narrow(b, value) if narrow_type else value
        start = place(b, base, index, lane, lanes, count)
        with b.if_else(b.icmp_signed(">=", count, ir.Constant(I64, LANES))) as (then, otherwise):
            with then:
                b.store(value, start, align=size)
            with otherwise:
                operands = [value, start, ir.Constant(I32, size), _inside(b, count)]
                _masked(b, "store", lanes, ir.VoidType(), operands)
        return ctx.get_dummy_value()

    return types.void(pointer, types.intp, vector, types.intp), emit


@intrinsic
def get(typingctx: Any, pointer: Any, index: Any) -> Any:
    """get(pointer, intp) -> float32, or intp of an int32 pointer, or float64 of a float64 one."""
    result = {"int32": types.intp, "float64": types.float64}.get(pointer.element, types.float32)

    def emit(ctx: Any, b: Any, sig: Any, args: Any) -> Any:
        if pointer.element == "int32":
            return b.sext(b.load(place(b, *args, I32, I32), align=4), I64)
        if pointer.element == "bfloat16":
            bits = b.zext(b.load(place(b, *args, I16, I16), align=2), I32)
            return b.bitcast(b.shl(bits, ir.Constant(I32, 16)), F32)
        if pointer.element == "float64":
            return b.load(place(b, *args, F64, F64), align=8)
        return b.load(place(b, *args, F32, F32), align=4)

    return result(pointer, types.intp), emit


@intrinsic
def put(typingctx: Any, pointer: Any, index: Any, value: Any) -> Any:
    """put(pointer, intp, float32); a float64 for a float64 pointer."""
    scalar = types.float64 if pointer.element == "float64" else types.float32

    def emit(ctx: Any, b: Any, sig: Any, args: Any) -> Any:
        base, index, value = args
        if pointer.element == "bfloat16":
            lanes = narrow(b, broadcast(b, value, V_F32))
            lane = b.extract_element(lanes, ir.Constant(I32, 0))
            b.store(lane, place(b, base, index, I16, I16), align=2)
        elif pointer.element == "float64":
            b.store(value, place(b, base, index, F64, F64), align=8)
        else:
            b.store(value, place(b, base, index, F32, F32), align=4)
        return ctx.get_dummy_value()

    return types.void(pointer, types.intp, scalar), emit


@intrinsic
def argument(typingctx: Any, args: Any, place_: Any) -> Any:
    """argument(intp args, intp n) -> intp: the n-th of a kernel's 64-bit arguments."""
    return types.intp(types.intp, types.intp), lambda ctx, b, sig, a: b.load(
        place(b, *a, I64, I64), align=8
    )


@intrinsic
def real(typingctx: Any, args: Any, place_: Any) -> Any:
    """real(intp args, intp n) -> float32: an argument that was stored as a float64."""

    def emit(ctx: Any, b: Any, sig: Any, a: Any) -> Any:
        return b.fptrunc(b.load(place(b, *a, I64, F64), align=8), F32)

    return types.float32(types.intp, types.intp), emit


__all__ = [
    "Pointer",
    "address",
    "argument",
    "bfloat16_pointer",
    "constant",
    "float32_pointer",
    "float64_pointer",
    "get",
    "int32_pointer",
    "load",
    "load_first",
    "local",
    "put",
    "real",
    "store",
    "store_first",
    "store_pairs",
]
