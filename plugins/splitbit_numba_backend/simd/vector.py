"""The vector type: sixteen float32 lanes, with arithmetic, comparisons and reductions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.typing import signature
from numba.core.typing.templates import ConcreteTemplate, infer_global
from numba.extending import intrinsic, lower_builtin, models, register_model

LANES = 16

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()
V_F32, V_F64, V_I32, V_I16 = (ir.VectorType(kind, LANES) for kind in (F32, F64, I32, I16))
LANE_NUMBERS = ir.Constant(V_I32, list(range(LANES)))
CONTRACT = ("contract",)  # a * b + c may become one instruction; nothing else of fastmath


class Vector(types.Type):
    """Sixteen float32 numbers."""

    def __init__(self) -> None:
        super().__init__(name="float32x16")


class Sums(types.Type):
    """Sixteen float64 numbers, to add up what float32 would round or overflow."""

    def __init__(self) -> None:
        super().__init__(name="float64x16")


vector, sums = Vector(), Sums()


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, V_F32)


@register_model(Sums)
class _SumsModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, V_F64)


def function(builder: Any, name: str, result: ir.Type, arguments: list[ir.Type]) -> Any:
    """Return the LLVM function of that name, declared once in the module."""
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, arguments), name)


def constant(value: float) -> ir.Constant:
    """Return a vector of one float, sixteen times."""
    return ir.Constant(V_F32, [float(value)] * LANES)


def integers(value: int) -> ir.Constant:
    """Return a vector of one int32, sixteen times."""
    return ir.Constant(V_I32, [value] * LANES)


def broadcast(builder: Any, scalar: Any, kind: ir.VectorType) -> Any:
    """Return a vector whose lanes are all one run-time scalar."""
    empty = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(empty, scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(I32, kind.count), None))


def _operator(symbol: Any, method: str) -> None:
    @infer_global(symbol)
    class Template(ConcreteTemplate):
        cases = [signature(vector, vector, vector)]  # noqa: RUF012 (numba's protocol)

    @lower_builtin(symbol, vector, vector)
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, method)(*args, flags=CONTRACT)


for _symbol, _method in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _operator(_symbol, _method)


def unary(name: str, body: Callable[[Any, Any], Any]) -> Any:
    """Return a compiled function vector -> vector, whose LLVM code `body(builder, x)` emits."""

    def implementation(typingctx: Any, x: Any) -> Any:
        return vector(vector), lambda context, builder, sig, args: body(builder, args[0])

    implementation.__name__ = name
    return intrinsic(implementation)


def binary(name: str, body: Callable[[Any, Any, Any], Any]) -> Any:
    """Return a compiled function (vector, vector) -> vector."""

    def implementation(typingctx: Any, x: Any, y: Any) -> Any:
        return vector(vector, vector), lambda context, builder, sig, args: body(builder, *args)

    implementation.__name__ = name
    return intrinsic(implementation)


@intrinsic
def splat(typingctx: Any, x: Any) -> Any:
    """splat(float32) -> vector with all lanes equal."""
    return vector(types.float32), lambda ctx, b, sig, args: broadcast(b, args[0], V_F32)


maximum = binary("maximum", lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))
absolute = unary(
    "absolute", lambda b, x: b.call(function(b, "llvm.fabs.v16f32", V_F32, [V_F32]), [x])
)
root = unary("root", lambda b, x: b.call(function(b, "llvm.sqrt.v16f32", V_F32, [V_F32]), [x]))


def _sign(builder: Any, x: Any) -> Any:
    copied = function(builder, "llvm.copysign.v16f32", V_F32, [V_F32, V_F32])
    # what is neither above nor below 0 stays as it is: a zero, or a NaN
    moves = builder.fcmp_ordered("!=", x, constant(0))
    return builder.select(moves, builder.call(copied, [constant(1), x]), x)


sign = unary("sign", _sign)


def _halves(builder: Any, x: Any, count: int) -> tuple[Any, Any]:
    half = count // 2
    kind = ir.VectorType(I32, half)
    low, high = list(range(half)), list(range(half, count))
    return tuple(builder.shuffle_vector(x, x, ir.Constant(kind, part)) for part in (low, high))


def _fold(builder: Any, x: Any, join: Callable[[Any, Any], Any]) -> Any:
    """Return one lane made of all, halving: the order is fixed, so the result is too."""
    count = LANES
    while count > 1:
        x = join(*_halves(builder, x, count))
        count //= 2
    return builder.extract_element(x, ir.Constant(I32, 0))


@intrinsic
def total(typingctx: Any, x: Any) -> Any:
    """total(vector) -> float32, total(sums) -> float64: the sum of the lanes."""
    result = types.float64 if isinstance(x, Sums) else types.float32
    return result(x), lambda ctx, b, sig, args: _fold(b, args[0], b.fadd)


@intrinsic
def no_sums(typingctx: Any) -> Any:
    """no_sums() -> sixteen float64 zeros."""
    return sums(), lambda ctx, b, sig, args: ir.Constant(V_F64, None)


@intrinsic
def add_squares(typingctx: Any, x: Any, y: Any) -> Any:
    """add_squares(sums, vector) -> sums + vector^2, in float64."""

    def emit(ctx: Any, b: Any, sig: Any, args: Any) -> Any:
        wide = b.fpext(args[1], V_F64)
        return b.fadd(args[0], b.fmul(wide, wide, flags=CONTRACT), flags=CONTRACT)

    return sums(sums, vector), emit


@intrinsic
def largest(typingctx: Any, x: Any) -> Any:
    """largest(vector) -> float32: the maximum of the lanes."""

    def emit(ctx: Any, b: Any, sig: Any, args: Any) -> Any:
        return _fold(b, args[0], lambda x, y: b.select(b.fcmp_ordered(">", x, y), x, y))

    return types.float32(vector), emit


@intrinsic
def first(typingctx: Any, x: Any, count: Any, other: Any) -> Any:
    """first(vector, intp count, float32 other) -> the first `count` lanes, the rest `other`."""

    def emit(ctx: Any, b: Any, sig: Any, args: Any) -> Any:
        x, count, other = args
        inside = b.icmp_signed("<", LANE_NUMBERS, broadcast(b, b.trunc(count, I32), V_I32))
        return b.select(inside, x, broadcast(b, other, V_F32))

    return vector(vector, types.intp, types.float32), emit


@intrinsic
def rest(typingctx: Any, x: Any, count: Any, other: Any) -> Any:
    """rest(vector, intp count, float32 other) -> the first `count` lanes `other`, the rest x's."""

    def emit(ctx: Any, b: Any, sig: Any, args: Any) -> Any:
        x, count, other = args
        before = b.icmp_signed("<", LANE_NUMBERS, broadcast(b, b.trunc(count, I32), V_I32))
        return b.select(before, broadcast(b, other, V_F32), x)

    return vector(vector, types.intp, types.float32), emit
