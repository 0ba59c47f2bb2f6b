"""Activation functions of vectors and their slopes, for the ends of multiplies as for whole arrays.

With sigmoid(u) = (1 + tanh(u / 2)) / 2 the tanh form of GELU is x sigmoid(2 sqrt(2/pi) (x +
0.044715 x^3)): one exponential and no cancellation. SwiGLU's gate is swish(x) = x sigmoid(x).
"""

from __future__ import annotations

from math import pi, sqrt

import numpy as np

from splitbit_numba_backend.kernels.shares import ONE, Vector, inline
from splitbit_numba_backend.simd.math import sigmoid
from splitbit_numba_backend.simd.vector import splat

LINEAR = np.float32(2 * sqrt(2 / pi))
CUBIC = np.float32(2 * sqrt(2 / pi) * 0.044715)
THREE_CUBIC = np.float32(6 * sqrt(2 / pi) * 0.044715)


@inline
def gelu_of(x: Vector) -> Vector:
    """Return gelu(x)."""
    return x * sigmoid(x * (splat(LINEAR) + splat(CUBIC) * (x * x)))


@inline
def gelu_slope(x: Vector) -> Vector:
    """Return the derivative of gelu at x: s + x s (1 - s) du, with s = sigmoid(u)."""
    square = x * x
    s = sigmoid(x * (splat(LINEAR) + splat(CUBIC) * square))
    return s + x * s * (splat(ONE) - s) * (splat(LINEAR) + splat(THREE_CUBIC) * square)


@inline
def swish_of(x: Vector) -> Vector:
    """Return x sigmoid(x)."""
    return x * sigmoid(x)


@inline
def swish_and_slope(x: Vector) -> tuple[Vector, Vector]:
    """Return swish(x) and its derivative: s + x s (1 - s)."""
    s = sigmoid(x)
    swish = x * s
    return swish, s + swish * (splat(ONE) - s)
