"""head_loss: final norm, head and cross-entropy, in row chunks; forward and backward.

The logits of one chunk of rows exist at a time, in float32. The contract promises the gradient of
the result beforehand (`weights`), so the forward pass also makes the gradient of the logits, in
storage, while they are at hand.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from splitbit_kit.api import Context, Gradients, Param
from splitbit_kit.api.backend import Array
from splitbit_numba_backend.blocks.shared import (
    CONTROL,
    FIRST,
    ROWS,
    SCRATCH,
    SCRATCH_BYTES,
    product_scratch,
    scratch_of,
    weight_gradient,
)
from splitbit_numba_backend.kernels.loss import cross_entropy
from splitbit_numba_backend.kernels.matmul import (
    FLOAT32,
    ROWS_BY_COLUMNS,
    ROWS_BY_ROWS,
    Epilogue,
    multiply,
)
from splitbit_numba_backend.kernels.norms import (
    norm_backward,
    norm_forward,
    norm_parameters,
    partial_elements,
)
from splitbit_numba_backend.kernels.shares import Pointer, kernel
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
from splitbit_numba_backend.simd.pointers import address as where
from splitbit_numba_backend.simd.pointers import (
    argument,
    bfloat16_pointer,
    float32_pointer,
    int32_pointer,
    real,
)
from splitbit_numba_backend.simd.tiles import like
from splitbit_numba_backend.threads import barrier

LOGIT_BYTES = 2 << 20  # of a chunk: they should stay in the second caches

# the words of the arguments: of both programs, then of the backward one alone
(
    WIDTH, STRIDE, VOCABULARY, LOGIT_STRIDE, CHUNK, EPS, X, NORM_WEIGHT, NORM_BIAS, HEAD, TARGETS,
    WEIGHTS, MEAN, RSTD, NORMED, LOGITS, DLOGITS, NLL,
) = range(FIRST, 22)  # fmt: skip
(
    DX, DNORMED, PARTIALS, G_HEAD, G_WEIGHT, G_BIAS, A_HEAD, A_WEIGHT, A_BIAS,
) = range(22, 31)  # fmt: skip


@kernel
def forward_program(storage: Pointer, thread: int, threads: int, args: int) -> None:
    """Run the forward pass."""
    control, rows, width = argument(args, CONTROL), argument(args, ROWS), argument(args, WIDTH)
    vocabulary, wide = argument(args, VOCABULARY), argument(args, LOGIT_STRIDE)
    normed, stride = like(storage, argument(args, NORMED)), argument(args, STRIDE)
    norm_forward(
        thread, threads, float32_pointer(argument(args, X)),
        float32_pointer(argument(args, NORM_WEIGHT)), float32_pointer(argument(args, NORM_BIAS)),
        normed, float32_pointer(argument(args, MEAN)), float32_pointer(argument(args, RSTD)), rows,
        width, stride, real(args, EPS),
    )  # fmt: skip
    for row in range(0, rows, argument(args, CHUNK)):
        barrier(control)
        some = min(argument(args, CHUNK), rows - row)
        multiply(
            thread, threads, ROWS_BY_ROWS, normed + row * stride, stride,
            like(storage, argument(args, HEAD)), width, some, vocabulary, width,
            Epilogue(FLOAT32, argument(args, LOGITS), wide, 0, 0, 0, 0, 0),
            scratch_of(thread, args),
        )  # fmt: skip
        barrier(control)
        gradient = argument(args, DLOGITS)
        if gradient != 0:
            gradient = where(like(storage, gradient) + row * wide)
        cross_entropy(
            thread, threads, float32_pointer(argument(args, LOGITS)),
            int32_pointer(argument(args, TARGETS)) + row,
            float32_pointer(argument(args, WEIGHTS)) + row,
            float32_pointer(argument(args, NLL)) + row, like(storage, gradient), some, vocabulary,
            wide, wide,
        )  # fmt: skip


@kernel
def backward_program(storage: Pointer, thread: int, threads: int, args: int) -> None:
    """Run the backward pass."""
    control, rows, width = argument(args, CONTROL), argument(args, ROWS), argument(args, WIDTH)
    vocabulary, wide = argument(args, VOCABULARY), argument(args, LOGIT_STRIDE)
    normed, stride = like(storage, argument(args, NORMED)), argument(args, STRIDE)
    dlogits = like(storage, argument(args, DLOGITS))
    weight_gradient(
        thread, threads, args, G_HEAD, A_HEAD, dlogits, wide, vocabulary, normed, stride, width
    )
    multiply(
        thread, threads, ROWS_BY_COLUMNS, dlogits, wide, like(storage, argument(args, HEAD)),
        width, rows, width, vocabulary,
        Epilogue(FLOAT32, argument(args, DNORMED), width, 0, 0, 0, 0, 0), scratch_of(thread, args),
    )  # fmt: skip
    barrier(control)
    norm_backward(
        thread, threads, float32_pointer(argument(args, DNORMED)),
        float32_pointer(argument(args, X)), float32_pointer(argument(args, NORM_WEIGHT)),
        float32_pointer(argument(args, MEAN)), float32_pointer(argument(args, RSTD)),
        float32_pointer(0), float32_pointer(argument(args, DX)), like(storage, 0),
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


class HeadLoss:
    """The op: `forward` and `backward` as the contract has them."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def forward(
        self,
        ctx: Context,
        x: Array,
        norm_weight: Param,
        norm_bias: Param | None,
        head: Param,
        targets: Array,
        weights: Array,
        *,
        norm: str,
        eps: float,
    ) -> tuple[Array, Any]:
        """Return each target's negative log-likelihood (N,), and what the way back needs."""
        run, item = self.runtime, self.runtime.item
        rows, width = x.shape
        vocabulary = head.shape[0]
        stride, wide = padded(width), padded(vocabulary)
        chunk = max(32, LOGIT_BYTES // (4 * wide) // 32 * 32)
        memory = Memory()
        places = [
            memory.place(nbytes)
            for nbytes in (
                4 * rows if norm == "layer" else 0,
                4 * rows,
                item * rows * stride,
                item * rows * wide if ctx.grad else 0,
            )
        ]
        kept = ctx.workspace.take((memory.size,), np.uint8)
        mean, rstd, normed, dlogits = (address(kept) + at for at in places)
        logits = ctx.workspace.take((min(chunk, rows), wide), np.float32)
        nll = ctx.workspace.take((rows,), x.dtype)
        nbytes = product_scratch(item, width)
        args = [
            run.control, run.scratch(nbytes), nbytes, rows, width, stride, vocabulary, wide, chunk,
            float_word(eps), address(x), run.vector(norm_weight), run.vector(norm_bias),
            run.matrix(head), address(targets), address(weights),
            mean if norm == "layer" else NULL, rstd, normed, address(logits),
            dlogits if ctx.grad else NULL, address(nll),
        ]  # fmt: skip
        if rows:
            run.run(FORWARD, args)
        if not ctx.grad:
            return nll, None
        return nll, (args, (head, norm_weight, norm_bias), (x, kept))

    def backward(
        self, ctx: Context, dout: Array, saved: Any, grads: Gradients
    ) -> tuple[Array, None]:
        """Return (dx (N, C), None): `dout` is the weights of the forward pass, as promised."""
        args, params, (x, _kept) = saved
        run, item = self.runtime, self.runtime.item
        rows, width = args[ROWS], args[WIDTH]
        memory = Memory()
        places = [memory.place(4 * rows * width), memory.place(4 * partial_elements(rows, width))]
        temporary = ctx.workspace.take((memory.size,), np.uint8)
        dx = ctx.workspace.take(x.shape, x.dtype)
        targets = [target(grads, param) for param in params]
        if not rows:
            return (dx, None)
        nbytes = product_scratch(item, args[VOCABULARY], rows)
        args = list(args)
        args[SCRATCH], args[SCRATCH_BYTES] = run.scratch(nbytes), nbytes
        args += [address(dx), *(address(temporary) + at for at in places)]
        args += [where_ for where_, _ in targets] + [accumulate for _, accumulate in targets]
        run.run(BACKWARD, args)
        return (dx, None)
