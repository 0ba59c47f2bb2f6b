"""mlp_block: x + down(act(up(norm(x)))), forward and backward, for GELU and SwiGLU.

Saved for the way back, in storage: the normed input, what enters the activation (for SwiGLU gate
and up) and what leaves it; in float32: the row statistics.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from splitbit_kit.api import Context, Gradients, Param
from splitbit_kit.api.backend import Array
from splitbit_numba_backend.blocks.few import FewMlp, few
from splitbit_numba_backend.blocks.shared import (
    CONTROL,
    FIRST,
    ROWS,
    SCRATCH,
    SCRATCH_BYTES,
    bias_gradient,
    product_scratch,
    scratch_of,
    weight_gradient,
)
from splitbit_numba_backend.kernels.matmul import (
    ADD,
    FLOAT32,
    GELU,
    GELU_GRADIENT,
    RESIDUAL,
    ROWS_BY_COLUMNS,
    ROWS_BY_ROWS,
    STORAGE,
    SWIGLU,
    SWIGLU_GRADIENT,
    Epilogue,
    multiply,
)
from splitbit_numba_backend.kernels.norms import (
    norm_backward,
    norm_forward,
    norm_parameters,
    partial_elements,
)
from splitbit_numba_backend.kernels.pointwise import convert
from splitbit_numba_backend.kernels.shares import Pointer, kernel
from splitbit_numba_backend.primitives.dropout import Dropout, words
from splitbit_numba_backend.runtime import (
    NULL,
    Memory,
    Program,
    Runtime,
    address,
    float_word,
    padded,
    target,
)
from splitbit_numba_backend.simd.pointers import (
    argument,
    bfloat16_pointer,
    float32_pointer,
    real,
)
from splitbit_numba_backend.simd.tiles import like
from splitbit_numba_backend.threads import barrier

# the words of the arguments: of both programs, then of the backward one alone
(
    WIDTH, STRIDE, HIDDEN, HIDDEN_STRIDE, EPS, X, NORM_WEIGHT, NORM_BIAS, GATE, UP, DOWN, UP_BIAS,
    DOWN_BIAS, MEAN, RSTD, NORMED, GATED, ENTERING, LEAVING, OUT, LAST,
) = range(FIRST, 25)  # fmt: skip
(
    DOUT, BRANCH, DX, STORED, DGATE, DUP, DNORMED, PARTIALS, G_GATE, G_UP, G_DOWN, G_UP_BIAS,
    G_DOWN_BIAS, G_WEIGHT, G_BIAS, A_GATE, A_UP, A_DOWN, A_UP_BIAS, A_DOWN_BIAS, A_WEIGHT, A_BIAS,
) = range(25, 47)  # fmt: skip


@kernel
def forward_program(storage: Pointer, thread: int, threads: int, args: int) -> None:
    """Run the forward pass."""
    control, rows, width = argument(args, CONTROL), argument(args, ROWS), argument(args, WIDTH)
    hidden, wide = argument(args, HIDDEN), argument(args, HIDDEN_STRIDE)
    normed, stride = like(storage, argument(args, NORMED)), argument(args, STRIDE)
    gated, entering = argument(args, GATED), argument(args, ENTERING)
    leaving, mine = argument(args, LEAVING), scratch_of(thread, args)
    norm_forward(
        thread, threads, float32_pointer(argument(args, X)),
        float32_pointer(argument(args, NORM_WEIGHT)), float32_pointer(argument(args, NORM_BIAS)),
        normed, float32_pointer(argument(args, MEAN)), float32_pointer(argument(args, RSTD)), rows,
        width, stride, real(args, EPS),
    )  # fmt: skip
    barrier(control)
    end = Epilogue(GELU, leaving, wide, entering, 0, 0, 0, argument(args, UP_BIAS))
    if gated != 0:
        multiply(
            thread, threads, ROWS_BY_ROWS, normed, stride, like(storage, argument(args, GATE)),
            width, rows, hidden, width, Epilogue(STORAGE, gated, wide, 0, 0, 0, 0, 0), mine,
        )  # fmt: skip
        # a thread owns the same rectangle of both products: it reads the gate it has just written
        end = Epilogue(SWIGLU, leaving, wide, entering, gated, 0, wide, argument(args, UP_BIAS))
    multiply(
        thread, threads, ROWS_BY_ROWS, normed, stride, like(storage, argument(args, UP)), width,
        rows, hidden, width, end, mine,
    )  # fmt: skip
    barrier(control)
    multiply(
        thread, threads, ROWS_BY_ROWS, like(storage, leaving), wide,
        like(storage, argument(args, DOWN)), hidden, rows, width, hidden,
        Epilogue(
            argument(args, LAST), argument(args, OUT), width, 0, argument(args, X), 0, width,
            argument(args, DOWN_BIAS),
        ),
        mine,
    )  # fmt: skip


@kernel
def backward_program(storage: Pointer, thread: int, threads: int, args: int) -> None:
    """Run the backward pass."""
    control, rows, width = argument(args, CONTROL), argument(args, ROWS), argument(args, WIDTH)
    hidden, wide = argument(args, HIDDEN), argument(args, HIDDEN_STRIDE)
    normed, stride = like(storage, argument(args, NORMED)), argument(args, STRIDE)
    dout, stored = float32_pointer(argument(args, DOUT)), like(storage, argument(args, STORED))
    gated, dgate, dup = argument(args, GATED), argument(args, DGATE), argument(args, DUP)
    mine = scratch_of(thread, args)
    branch = float32_pointer(argument(args, BRANCH))
    convert(thread, threads, branch, stored, rows, width, width, stride)
    barrier(control)
    weight_gradient(
        thread, threads, args, G_DOWN, A_DOWN, stored, stride, width,
        like(storage, argument(args, LEAVING)), wide, hidden,
    )  # fmt: skip
    bias_gradient(thread, threads, args, G_DOWN_BIAS, A_DOWN_BIAS, stored, stride, width)
    end = Epilogue(GELU_GRADIENT, dup, wide, 0, argument(args, ENTERING), 0, wide, 0)
    if gated != 0:
        end = Epilogue(SWIGLU_GRADIENT, dgate, wide, dup, gated, argument(args, ENTERING), wide, 0)
    multiply(
        thread, threads, ROWS_BY_COLUMNS, stored, stride, like(storage, argument(args, DOWN)),
        hidden, rows, hidden, width, end, mine,
    )  # fmt: skip
    barrier(control)
    kind = FLOAT32
    if gated != 0:
        weight_gradient(
            thread, threads, args, G_GATE, A_GATE, like(storage, dgate), wide, hidden, normed,
            stride, width,
        )  # fmt: skip
        multiply(
            thread, threads, ROWS_BY_COLUMNS, like(storage, dgate), wide,
            like(storage, argument(args, GATE)), width, rows, width, hidden,
            Epilogue(FLOAT32, argument(args, DNORMED), width, 0, 0, 0, 0, 0), mine,
        )  # fmt: skip
        kind = ADD  # to a rectangle that is this thread's own in both products
    weight_gradient(
        thread, threads, args, G_UP, A_UP, like(storage, dup), wide, hidden, normed, stride, width
    )
    bias_gradient(thread, threads, args, G_UP_BIAS, A_UP_BIAS, like(storage, dup), wide, hidden)
    multiply(
        thread, threads, ROWS_BY_COLUMNS, like(storage, dup), wide,
        like(storage, argument(args, UP)), width, rows, width, hidden,
        Epilogue(kind, argument(args, DNORMED), width, 0, 0, 0, 0, 0), mine,
    )  # fmt: skip
    barrier(control)
    norm_backward(
        thread, threads, float32_pointer(argument(args, DNORMED)),
        float32_pointer(argument(args, X)), float32_pointer(argument(args, NORM_WEIGHT)),
        float32_pointer(argument(args, MEAN)), float32_pointer(argument(args, RSTD)), dout,
        float32_pointer(argument(args, DX)), like(storage, 0),
        float32_pointer(argument(args, PARTIALS)), rows, width, width, 0,
        argument(args, G_BIAS) != 0,
    )  # fmt: skip
    barrier(control)
    norm_parameters(
        thread, threads, float32_pointer(argument(args, PARTIALS)),
        float32_pointer(argument(args, G_WEIGHT)), float32_pointer(argument(args, G_BIAS)), rows,
        width, argument(args, A_WEIGHT) != 0, argument(args, A_BIAS) != 0,
    )  # fmt: skip


def _forward_fp32(thread: int, threads: int, args: int) -> None:
    forward_program(float32_pointer(0), thread, threads, args)


def _forward_bf16(thread: int, threads: int, args: int) -> None:
    forward_program(bfloat16_pointer(0), thread, threads, args)


def _backward_fp32(thread: int, threads: int, args: int) -> None:
    backward_program(float32_pointer(0), thread, threads, args)


def _backward_bf16(thread: int, threads: int, args: int) -> None:
    backward_program(bfloat16_pointer(0), thread, threads, args)


FORWARD = Program(_forward_fp32, _forward_bf16)
BACKWARD = Program(_backward_fp32, _backward_bf16)


class MlpBlock:
    """The op: `forward` and `backward` as the contract has them."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.dropout = Dropout(runtime)
        self.few = FewMlp(runtime)

    def forward(
        self,
        ctx: Context,
        x: Array,
        norm_weight: Param,
        norm_bias: Param | None,
        gate: Param | None,
        up: Param,
        down: Param,
        up_bias: Param | None = None,
        down_bias: Param | None = None,
        *,
        norm: str,
        eps: float,
        activation: str,
        dropout: float,
        site: int,
    ) -> tuple[Array, Any]:
        """Return x + down(act(up(norm(x)))) (N, C), and what the way back needs."""
        if few(ctx, x) and not dropout:
            params = (norm_weight, norm_bias, gate, up, down, up_bias, down_bias)
            return self.few.forward(ctx, x, *params, norm=norm, eps=eps), None
        run, item = self.runtime, self.runtime.item
        rows, width = x.shape
        hidden = up.shape[0]
        stride, wide = padded(width), padded(hidden)
        memory = Memory()
        places = [
            memory.place(nbytes)
            for nbytes in (
                4 * rows if norm == "layer" else 0,
                4 * rows,
                item * rows * stride,
                item * rows * wide if gate is not None else 0,
                item * rows * wide,
                item * rows * wide,
            )
        ]
        kept = ctx.workspace.take((memory.size,), np.uint8)
        mean, rstd, normed, gated, entering, leaving = (address(kept) + at for at in places)
        out = ctx.workspace.take(x.shape, x.dtype)
        nbytes = product_scratch(item, width, hidden)
        args = [
            run.control, run.scratch(nbytes), nbytes, rows, width, stride, hidden, wide,
            float_word(eps), address(x), run.vector(norm_weight), run.vector(norm_bias),
            NULL if gate is None else run.matrix(gate), run.matrix(up), run.matrix(down),
            run.vector(up_bias), run.vector(down_bias), mean if norm == "layer" else NULL, rstd,
            normed, NULL if gate is None else gated, entering, leaving, address(out),
            FLOAT32 if dropout else RESIDUAL,
        ]  # fmt: skip
        if rows:
            run.run(FORWARD, args)
        dropped = None
        if dropout:
            dropped = words(ctx, x, dropout, site)
            self.dropout.run(dropped, address(out), address(x), address(out))
        if not ctx.grad:
            return out, None
        params = (gate, up, down, up_bias, down_bias, norm_weight, norm_bias)
        return out, (args, params, dropped, (x, kept))

    def backward(self, ctx: Context, dout: Array, saved: Any, grads: Gradients) -> tuple[Array]:
        """Return (dx (N, C),)."""
        args, params, dropped, _alive = saved
        run, item = self.runtime, self.runtime.item
        rows, width, hidden, wide = (args[n] for n in (ROWS, WIDTH, HIDDEN, HIDDEN_STRIDE))
        memory = Memory()
        places = [
            memory.place(nbytes)
            for nbytes in (
                item * rows * args[STRIDE],
                item * rows * wide if args[GATED] else 0,
                item * rows * wide,
                4 * rows * width,
                4 * partial_elements(rows, width),
            )
        ]
        temporary = ctx.workspace.take((memory.size,), np.uint8)
        dx = ctx.workspace.take(dout.shape, dout.dtype)
        targets = [target(grads, param) for param in params]
        if not rows:
            return (dx,)
        nbytes = product_scratch(item, width, hidden, rows)
        args = list(args)
        args[SCRATCH], args[SCRATCH_BYTES] = run.scratch(nbytes), nbytes
        branch = dout if dropped is None else self.dropout.gradient(ctx, dout, dropped)
        args += [
            address(dout),
            address(branch),
            address(dx),
            *(address(temporary) + at for at in places),
        ]
        args += [where for where, _ in targets] + [accumulate for _, accumulate in targets]
        run.run(BACKWARD, args)
        return (dx,)
