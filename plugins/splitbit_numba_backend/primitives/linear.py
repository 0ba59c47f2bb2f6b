"""linear: x W' + b, through storage and the packed multiply; a few rows by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from splitbit_kit.api import Context, Gradients, Param
from splitbit_kit.api.backend import Array
from splitbit_numba_backend.blocks.shared import (
    CONTROL,
    FIRST,
    ROWS,
    bias_gradient,
    product_scratch,
    scratch_of,
    weight_gradient,
)
from splitbit_numba_backend.kernels.gemv import FEW, multiply_few
from splitbit_numba_backend.kernels.matmul import (
    FLOAT32,
    ROWS_BY_COLUMNS,
    ROWS_BY_ROWS,
    Epilogue,
    multiply,
)
from splitbit_numba_backend.kernels.pointwise import convert
from splitbit_numba_backend.kernels.shares import Pointer, kernel
from splitbit_numba_backend.runtime import Program, Runtime, address, padded, target
from splitbit_numba_backend.simd.pointers import argument, bfloat16_pointer, float32_pointer
from splitbit_numba_backend.simd.tiles import like
from splitbit_numba_backend.threads import barrier

# the words of the arguments: of all programs, then of the backward one alone
INPUTS, OUTPUTS, STRIDE, X, STORED, WEIGHT, BIAS, OUT = range(FIRST, FIRST + 8)
(
    DOUT, DOUT_STORED, DOUT_STRIDE, DX, G_WEIGHT, G_BIAS, A_WEIGHT, A_BIAS,
) = range(FIRST + 8, FIRST + 16)  # fmt: skip


@kernel
def few_program(storage: Pointer, thread: int, threads: int, args: int) -> None:
    """Multiply a few rows."""
    multiply_few(
        thread, threads, float32_pointer(argument(args, X)), like(storage, argument(args, WEIGHT)),
        float32_pointer(argument(args, BIAS)), float32_pointer(0),
        float32_pointer(argument(args, OUT)), argument(args, ROWS), argument(args, INPUTS),
        argument(args, OUTPUTS),
    )  # fmt: skip


@kernel
def forward_program(storage: Pointer, thread: int, threads: int, args: int) -> None:
    """Run the forward pass."""
    rows, inputs, outputs = argument(args, ROWS), argument(args, INPUTS), argument(args, OUTPUTS)
    stored, stride = like(storage, argument(args, STORED)), argument(args, STRIDE)
    if argument(args, STORED) != argument(args, X):
        x = float32_pointer(argument(args, X))
        convert(thread, threads, x, stored, rows, inputs, inputs, stride)
        barrier(argument(args, CONTROL))
    multiply(
        thread, threads, ROWS_BY_ROWS, stored, stride, like(storage, argument(args, WEIGHT)),
        inputs, rows, outputs, inputs,
        Epilogue(FLOAT32, argument(args, OUT), outputs, 0, 0, 0, 0, argument(args, BIAS)),
        scratch_of(thread, args),
    )  # fmt: skip


@kernel
def backward_program(storage: Pointer, thread: int, threads: int, args: int) -> None:
    """Run the backward pass."""
    rows, inputs, outputs = argument(args, ROWS), argument(args, INPUTS), argument(args, OUTPUTS)
    stored, stride = like(storage, argument(args, STORED)), argument(args, STRIDE)
    dout, wide = like(storage, argument(args, DOUT_STORED)), argument(args, DOUT_STRIDE)
    if argument(args, DOUT_STORED) != argument(args, DOUT):
        given = float32_pointer(argument(args, DOUT))
        convert(thread, threads, given, dout, rows, outputs, outputs, wide)
        barrier(argument(args, CONTROL))
    weight_gradient(
        thread, threads, args, G_WEIGHT, A_WEIGHT, dout, wide, outputs, stored, stride, inputs
    )
    bias_gradient(thread, threads, args, G_BIAS, A_BIAS, dout, wide, outputs)
    multiply(
        thread, threads, ROWS_BY_COLUMNS, dout, wide, like(storage, argument(args, WEIGHT)),
        inputs, rows, inputs, outputs,
        Epilogue(FLOAT32, argument(args, DX), inputs, 0, 0, 0, 0, 0), scratch_of(thread, args),
    )  # fmt: skip


def _few_fp32(thread: int, threads: int, args: int) -> None:
    few_program(float32_pointer(0), thread, threads, args)


def _few_bf16(thread: int, threads: int, args: int) -> None:
    few_program(bfloat16_pointer(0), thread, threads, args)


def _forward_fp32(thread: int, threads: int, args: int) -> None:
    forward_program(float32_pointer(0), thread, threads, args)


def _forward_bf16(thread: int, threads: int, args: int) -> None:
    forward_program(bfloat16_pointer(0), thread, threads, args)


def _backward_fp32(thread: int, threads: int, args: int) -> None:
    backward_program(float32_pointer(0), thread, threads, args)


def _backward_bf16(thread: int, threads: int, args: int) -> None:
    backward_program(bfloat16_pointer(0), thread, threads, args)


FEW_ROWS = Program(_few_fp32, _few_bf16)
FORWARD = Program(_forward_fp32, _forward_bf16)
BACKWARD = Program(_backward_fp32, _backward_bf16)


class Linear:
    """x W' + b."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def forward(
        self, ctx: Context, x: Array, w: Param, b: Param | None = None
    ) -> tuple[Array, Any]:
        """Return x W' + b (N, O), and what the way back needs."""
        run, rows, (outputs, inputs) = self.runtime, len(x), w.shape
        out = ctx.workspace.take((rows, outputs), x.dtype)
        stride, few = padded(inputs), rows <= FEW and not ctx.grad
        stored = x if few else self._stored(ctx, x)
        nbytes = 0 if few else product_scratch(run.item, inputs)
        args = (
            run.control, run.scratch(nbytes), nbytes, rows, inputs, outputs, stride, address(x),
            address(stored), run.matrix(w), run.vector(b), address(out),
        )  # fmt: skip
        if rows:
            run.run(FEW_ROWS if few else FORWARD, args)
        return out, (args, w, b, (x, stored))

    def backward(self, ctx: Context, dout: Array, saved: Any, grads: Gradients) -> tuple[Array]:
        """Return (dx (N, I),)."""
        args, w, b, (x, _stored) = saved
        run, rows, (outputs, _inputs) = self.runtime, len(x), w.shape
        dx = ctx.workspace.take(x.shape, x.dtype)
        targets = [target(grads, param) for param in (w, b)]
        if rows:
            stored, nbytes = self._stored(ctx, dout), product_scratch(run.item, outputs, rows)
            words = [run.control, run.scratch(nbytes), nbytes, *args[ROWS:], address(dout)]
            words += [address(stored), padded(outputs), address(dx)]
            words += [where for where, _ in targets] + [accumulate for _, accumulate in targets]
            run.run(BACKWARD, words)
        return (dx,)

    def _stored(self, ctx: Context, x: Array) -> Array:
        """Return x itself if it is storage as it is, else a place for its copy."""
        rows, width = x.shape
        if self.runtime.precision != "bf16" and width == padded(width):
            return x
        return ctx.workspace.take((rows * padded(width) * self.runtime.item,), np.uint8)
