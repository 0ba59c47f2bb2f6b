"""Functions of vectors: exp, and what is made of it."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from splitbit_numba_backend.simd.vector import (
    V_F32,
    V_I32,
    constant,
    function,
    integers,
    unary,
)

# Cephes expf: exp(x) = 2^n p(r), x = n log 2 + r; log 2 in two parts, so that r is exact enough
_LOG2_HIGH, _LOG2_LOW = 0.693359375, -2.12194440e-4
_TERMS = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)


def emit_exp(b: Any, x: Any) -> Any:
    """Emit exp(x): within 2 units in the last place; above 88.3 and below -87.3 it saturates.

    NaN stays NaN: a comparison with it is false, so neither bound replaces it.
    """
    for sign, bound in ((">", constant(88.3)), ("<", constant(-87.3))):
        x = b.select(b.fcmp_ordered(sign, x, bound), bound, x)
    rint = function(b, "llvm.rint.v16f32", V_F32, [V_F32])
    fma = function(b, "llvm.fmuladd.v16f32", V_F32, [V_F32] * 3)
    n = b.call(rint, [b.fmul(x, constant(1.4426950408889634))])
    r = b.call(fma, [n, constant(-_LOG2_HIGH), x])
    r = b.call(fma, [n, constant(-_LOG2_LOW), r])
    p = constant(_TERMS[0])
    for term in _TERMS[1:]:
        p = b.call(fma, [p, r, constant(term)])
    p = b.call(fma, [p, b.fmul(r, r), b.fadd(r, constant(1.0))])
    power = b.shl(b.fptosi(n, V_I32), integers(23))
    return b.bitcast(b.add(b.bitcast(p, V_I32), power), V_F32)


def emit_sigmoid(b: Any, x: Any) -> Any:
    """Emit 1 / (1 + exp(-x))."""
    one = constant(1.0)
    return b.fdiv(one, b.fadd(one, emit_exp(b, b.fsub(ir.Constant(V_F32, None), x))))


exp = unary("exp", emit_exp)
sigmoid = unary("sigmoid", emit_sigmoid)
