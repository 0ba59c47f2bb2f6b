"""Loops over flat buffers, as `splitbit_kit.api.FlatOps` pins them."""

from __future__ import annotations

import numpy as np

from splitbit_kit.api import Parameters
from splitbit_kit.api.backend import Array
from splitbit_kit.api.learning import NEWTON_SCHULZ
from splitbit_numba_backend.blocks.shared import product_scratch
from splitbit_numba_backend.kernels import optimizers
from splitbit_numba_backend.kernels.newton_schulz import newton_schulz
from splitbit_numba_backend.kernels.shares import CHUNKS, Pointer, kernel
from splitbit_numba_backend.runtime import (
    ALIGNMENT,
    FLOAT,
    NULL,
    Memory,
    Program,
    Runtime,
    address,
    float_word,
    padded,
    whole,
)
from splitbit_numba_backend.simd.pointers import (
    argument,
    bfloat16_pointer,
    float32_pointer,
    float64_pointer,
    real,
)

X, PARTIALS, COUNT = range(3)
VALUES, GRADS, M, V, SHADOW, SIZE, DECAYED, FACTORS = range(8)
(
    CONTROL, SCRATCH, SCRATCH_BYTES, MATRIX, LEFT, RIGHT, GRAM, SQUARE, ROWS, COLUMNS, STRIDE,
    GRAM_STRIDE, STEPS, COEFFICIENTS,
) = range(14)  # fmt: skip


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


def _lion(thread: int, threads: int, args: int) -> None:
    optimizers.lion(
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
        real(args, FACTORS + 4),
        real(args, FACTORS + 5),
        real(args, FACTORS + 6),
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


@kernel
def orthogonalize_program(storage: Pointer, thread: int, threads: int, args: int) -> None:
    """Bring the singular values of a matrix near to 1."""
    newton_schulz(
        storage,
        thread,
        threads,
        argument(args, CONTROL),
        argument(args, MATRIX),
        argument(args, LEFT),
        argument(args, RIGHT),
        argument(args, GRAM),
        argument(args, SQUARE),
        argument(args, ROWS),
        argument(args, COLUMNS),
        argument(args, STRIDE),
        argument(args, GRAM_STRIDE),
        argument(args, STEPS),
        real(args, COEFFICIENTS),
        real(args, COEFFICIENTS + 1),
        real(args, COEFFICIENTS + 2),
        argument(args, SCRATCH) + thread * argument(args, SCRATCH_BYTES),
    )


def _orthogonalize_fp32(thread: int, threads: int, args: int) -> None:
    orthogonalize_program(float32_pointer(0), thread, threads, args)


def _orthogonalize_bf16(thread: int, threads: int, args: int) -> None:
    orthogonalize_program(bfloat16_pointer(0), thread, threads, args)


SQUARED_NORM, ADAMW = Program(_squared_norm, _squared_norm), Program(_adamw, _adamw)
LION, SGD = Program(_lion, _lion), Program(_sgd, _sgd)
ORTHOGONALIZE = Program(_orthogonalize_fp32, _orthogonalize_bf16)


class Flat:
    """The loops of one built backend."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._shadows: dict[int, tuple[Array, Array]] = {}  # of which values, in bfloat16
        self._room = np.empty(0, np.uint8)  # what orthogonalize works in

    def squared_norm(self, x: Array) -> float:
        """Return the sum of x^2; the order does not depend on the threads."""
        _check("squared_norm", len(x), x=x)
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
        _check("adamw", len(params.values), True, values=params.values, grads=grads, m=m, v=v)
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

    def lion(
        self,
        params: Parameters,
        grads: Array,
        m: Array,
        *,
        lr: float,
        beta1: float,
        beta2: float,
        weight_decay: float,
        grad_scale: float,
    ) -> None:
        """Make one step in place. The shadow is renewed as above."""
        _check("lion", len(params.values), True, values=params.values, grads=grads, m=m)
        factors = (grad_scale, beta1, 1 - beta1, beta2, 1 - beta2, lr, 1 - lr * weight_decay)
        shadow = self._renewed(params) if self.runtime.precision == "bf16" else NULL
        where = [address(params.values), address(grads), address(m), NULL]
        words = [*where, shadow, len(grads), params.decayed, *map(float_word, factors)]
        self.runtime.run(LION, words)

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
        state = {} if m is None else {"m": m}
        _check("sgd", len(params.values), True, values=params.values, grads=grads, **state)
        factors = (grad_scale, momentum, lr, 1 - lr * weight_decay)
        shadow = self._renewed(params) if self.runtime.precision == "bf16" else NULL
        where = [address(params.values), address(grads), NULL if m is None else address(m), NULL]
        words = [*where, shadow, len(grads), params.decayed, *map(float_word, factors)]
        self.runtime.run(SGD, words)

    def orthogonalize(self, x: Array, *, steps: int) -> None:
        """Bring the singular values of x (R, C) near to 1, in place."""
        if not whole(x, FLOAT, written=True) or x.ndim != 2 or not x.size:
            raise ValueError("orthogonalize: x is no plain float32 matrix")
        x /= max(self.squared_norm(x.reshape(-1)) ** 0.5, 1e-7)
        tall = len(x) > x.shape[1]
        matrix = np.ascontiguousarray(x.T) if tall else x
        rows, columns = matrix.shape
        stride, gram_stride, run = padded(columns), padded(rows), self.runtime
        memory = Memory()
        left, right = (memory.place(rows * stride * run.item) for _ in range(2))
        gram, square = (memory.place(rows * gram_stride * run.item) for _ in range(2))
        if self._room.size < memory.size + ALIGNMENT:
            self._room = np.empty(memory.size + ALIGNMENT, np.uint8)
        room = -(-address(self._room) // ALIGNMENT) * ALIGNMENT
        nbytes = product_scratch(run.item, rows, columns)
        words = [run.control, run.scratch(nbytes), nbytes, address(matrix)]
        words += [room + place for place in (left, right, gram, square)]
        words += [rows, columns, stride, gram_stride, steps, *map(float_word, NEWTON_SCHULZ)]
        run.run(ORTHOGONALIZE, words)
        if tall:
            x[...] = matrix.T

    def _renewed(self, params: Parameters) -> int:
        """Return the address of the shadow, and tell who uses its parts of the version to come."""
        key = params.values.ctypes.data  # a part of the parameters is a new array each time
        known = self._shadows.get(key)
        if known is None or known[0].shape != params.values.shape:
            # the values are kept too, so that no others can come to lie there
            known = self._shadows[key] = params.values, np.empty(params.values.shape, np.uint16)
        shadow = known[1]
        for param in params:
            self.runtime.renewed(param, params.view(shadow, param))
        return address(shadow)


def _check(loop: str, size: int, written: bool = False, **arrays: Array) -> None:
    """Raise ValueError unless all are plain float32 arrays of the size, writable if need be."""
    for name, array in arrays.items():
        if not whole(array, FLOAT, written) or array.shape != (size,):
            raise ValueError(f"{loop}: {name} is no plain float32 array of shape ({size},)")
