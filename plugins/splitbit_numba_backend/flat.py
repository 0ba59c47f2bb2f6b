"""Loops over flat buffers, as `splitbit_kit.api.FlatOps` pins them."""

from __future__ import annotations

import numpy as np

from splitbit_kit.api import Parameters
from splitbit_kit.api.backend import Array
from splitbit_numba_backend.kernels import optimizers
from splitbit_numba_backend.kernels.shares import CHUNKS
from splitbit_numba_backend.runtime import NULL, Program, Runtime, address, float_word
from splitbit_numba_backend.simd.pointers import (
    argument,
    bfloat16_pointer,
    float32_pointer,
    float64_pointer,
    real,
)

X, PARTIALS, COUNT = range(3)
VALUES, GRADS, M, V, SHADOW, SIZE, DECAYED, FACTORS = range(8)


def _squared_norm(thread: int, threads: int, args: int) -> None:
    optimizers.squared_norm(
        thread,
        threads,
        float32_pointer(argument(args, X)),
        float64_pointer(argument(args, PARTIALS)),
        argument(args, COUNT),
    )


def _adamw(thread: int, threads: int, args: int) -> None:
    optimizers.adamw(
        thread,
        threads,
        float32_pointer(argument(args, VALUES)),
        float32_pointer(argument(args, GRADS)),
        float32_pointer(argument(args, M)),
        float32_pointer(argument(args, V)),
        bfloat16_pointer(argument(args, SHADOW)),
        argument(args, SIZE),
        argument(args, DECAYED),
        real(args, FACTORS),
        real(args, FACTORS + 1),
        real(args, FACTORS + 2),
        real(args, FACTORS + 3),
        real(args, FACTORS + 4),
        real(args, FACTORS + 5),
        real(args, FACTORS + 6),
        real(args, FACTORS + 7),
        real(args, FACTORS + 8),
    )


def _sgd(thread: int, threads: int, args: int) -> None:
    optimizers.sgd(
        thread,
        threads,
        float32_pointer(argument(args, VALUES)),
        float32_pointer(argument(args, GRADS)),
        float32_pointer(argument(args, M)),
        bfloat16_pointer(argument(args, SHADOW)),
        argument(args, SIZE),
        argument(args, DECAYED),
        real(args, FACTORS),
        real(args, FACTORS + 1),
        real(args, FACTORS + 2),
        real(args, FACTORS + 3),
    )


SQUARED_NORM, ADAMW = Program(_squared_norm, _squared_norm), Program(_adamw, _adamw)
SGD = Program(_sgd, _sgd)


class Flat:
    """The loops of one built backend."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._shadow: tuple[Array, Array] | None = None  # of which values, in bfloat16

    def squared_norm(self, x: Array) -> float:
        """Return the sum of x^2; the order does not depend on the threads."""
        partials = np.zeros(CHUNKS)
        self.runtime.run(SQUARED_NORM, (address(x), address(partials), len(x)))
        return float(partials.sum())

    def adamw(
        self,
        params: Parameters,
        grads: Array,
        m: Array,
        v: Array,
        *,
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        grad_scale: float,
    ) -> None:
        """Make one step in place, and renew the bfloat16 shadow of the values in the same pass."""
        factors = optimizers.adamw_factors(
            step=step,
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            weight_decay=weight_decay,
            grad_scale=grad_scale,
        )
        shadow = self._renewed(params) if self.runtime.precision == "bf16" else NULL
        where = [address(array) for array in (params.values, grads, m, v)]
        words = [*where, shadow, len(grads), params.decayed, *map(float_word, factors)]
        self.runtime.run(ADAMW, words)

    def sgd(
        self,
        params: Parameters,
        grads: Array,
        m: Array | None,
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        grad_scale: float,
    ) -> None:
        """Make one step in place; m is None without momentum. The shadow is renewed as above."""
        factors = (grad_scale, momentum, lr, 1 - lr * weight_decay)
        shadow = self._renewed(params) if self.runtime.precision == "bf16" else NULL
        where = [address(params.values), address(grads), NULL if m is None else address(m), NULL]
        words = [*where, shadow, len(grads), params.decayed, *map(float_word, factors)]
        self.runtime.run(SGD, words)

    def _renewed(self, params: Parameters) -> int:
        """Return the address of the shadow, and tell who uses its parts of the version to come."""
        if self._shadow is None or self._shadow[0] is not params.values:
            self._shadow = (params.values, np.empty(params.values.shape, np.uint16))
        shadow = self._shadow[1]
        for param in params:
            self.runtime.renewed(param, params.view(shadow, param))
        return address(shadow)
