"""Functions of vectors: exp, and what is made of it."""

from __future__ import annotations

from typing import Any

from splitbit_numba_backend.simd.vector import (
    V_F32,
    V_I32,
    constant,
    function,
    integers,
    unary,
)

# exp(x) = 2^n p(r), x = n log 2 + r; log 2 in two parts (Cephes expf's), so that r is exact enough
_LOG2_HIGH, _LOG2_LOW = 0.693359375, -2.12194440e-4
_TERMS = (0.008290272, 0.04189816, 0.16667639, 0.49999148, 0.9999997, 1.0)
"""p, the highest power first: of all with p(0) = 1 the least relative error, 9.2e-8"""
_SHIFT = 1.5 * 2.0**23 + 127  # added to n, it leaves n and an exponent's bias in the lowest bits


def emit_exp(b: Any, x: Any, sign: float = 1.0, most: float = 88.3) -> Any:
    """Emit exp(sign x), sign 1 or -1; within 2 units in the last place.

    Where the exponent is above `most` or below -87.3 it saturates. NaN stays NaN: a comparison with
    it is false, so neither bound replaces it, and what is made of its bits is but a factor of it.
    """
    low, high = sorted((-87.3 * sign, most * sign))
    for relation, bound in ((">", constant(high)), ("<", constant(low))):
        x = b.select(b.fcmp_ordered(relation, x, bound), bound, x)
    fma = function(b, "llvm.fmuladd.v16f32", V_F32, [V_F32] * 3)
    shifted = b.call(fma, [x, constant(sign * 1.4426950408889634), constant(_SHIFT)])
    n = b.fsub(shifted, constant(_SHIFT))
    r = b.call(fma, [n, constant(-_LOG2_HIGH), x if sign > 0 else b.fneg(x)])
    r = b.call(fma, [n, constant(-_LOG2_LOW), r])
    p = constant(_TERMS[0])
    for term in _TERMS[1:]:
        p = b.call(fma, [p, r, constant(term)])
    power = b.shl(b.bitcast(shifted, V_I32), integers(23))
    return b.fmul(p, b.bitcast(power, V_F32))


def emit_sigmoid(b: Any, x: Any) -> Any:
    """Emit 1 / (1 + exp(-x))."""
    one = constant(1.0)
    return b.fdiv(one, b.fadd(one, emit_exp(b, x, -1.0)))


def emit_exp_below(b: Any, x: Any) -> Any:
    """Emit exp(x) where x is at most 0, but for rounding.

    Of a score near 1e30, less the largest, rounding alone may leave 1e22, whose exponential would
    overflow a sum; here it is no more than e.
    """
    return emit_exp(b, x, most=1.0)


exp = unary("exp", emit_exp)
exp_below = unary("exp_below", emit_exp_below)
sigmoid = unary("sigmoid", emit_sigmoid)
