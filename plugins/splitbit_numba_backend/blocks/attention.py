"""attention_block: x + out(attention(rotary(qkv(norm(x))))), forward and backward.

q, k and v of a token lie in one row of storage, each from a multiple of 32 columns on. Saved for
the way back, in storage: the normed input, the rotated q, k, v and the mixed values; in float32:
the row statistics and the log-sum-exp.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from splitbit_kit.api import Context, Gradients, Param
from splitbit_kit.api.backend import Array
from splitbit_numba_backend.blocks.few import CachedAttention
from splitbit_numba_backend.blocks.shared import (
    CONTROL,
    FIRST,
    ROWS,
    SCRATCH,
    SCRATCH_BYTES,
    bias_gradient,
    clear_padding,
    product_scratch,
    scratch_of,
    weight_gradient,
)
from splitbit_numba_backend.kernels.attention import (
    attention_backward,
    attention_forward,
    backward_scratch,
    forward_scratch,
)
from splitbit_numba_backend.kernels.decode import Cache
from splitbit_numba_backend.kernels.matmul import (
    ADD,
    FLOAT32,
    RESIDUAL,
    ROWS_BY_COLUMNS,
    ROWS_BY_ROWS,
    STORAGE,
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
from splitbit_numba_backend.kernels.rotary import rotary
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

# the words of the arguments: of both programs, then of the backward one alone
(
    WIDTH, NORMED_STRIDE, HEADS, KV_HEADS, SIZE, MIXED_STRIDE, K_AT, V_AT, QKV_STRIDE, SEQUENCES,
    STARTS, POSITIONS, ANGLES, EPS, X, NORM_WEIGHT, NORM_BIAS, WQ, WK, WV, WO, BQ, BK, BV, BO, MEAN,
    RSTD, NORMED, QKV, MIXED, LSE, OUT, LAST,
) = range(FIRST, 37)  # fmt: skip
(
    DOUT, BRANCH, DX, STORED, DMIXED, DQKV, DNORMED, PARTIALS, GQ, GK, GV, GO, GBQ, GBK, GBV, GBO,
    GW, GB, AQ, AK, AV, AO, ABQ, ABK, ABV, ABO, AW, AB,
) = range(37, 65)  # fmt: skip


@kernel
def project(
    storage: Pointer,
    thread: int,
    threads: int,
    args: int,
    weight: int,
    bias: int,
    at: int,
    wide: int,
) -> None:
    """Multiply the normed input by a weight (wide, C), into the columns of q, k, v from `at` on."""
    stride, width = argument(args, NORMED_STRIDE), argument(args, WIDTH)
    out = where(like(storage, argument(args, QKV)) + at)
    end = Epilogue(STORAGE, out, argument(args, QKV_STRIDE), 0, 0, 0, 0, argument(args, bias))
    multiply(
        thread, threads, ROWS_BY_ROWS, like(storage, argument(args, NORMED)), stride,
        like(storage, argument(args, weight)), width, argument(args, ROWS), wide, width, end,
        scratch_of(thread, args),
    )  # fmt: skip


@kernel
def turn(
    storage: Pointer, thread: int, threads: int, args: int, what: int, at: int, heads: int, way: int
) -> None:
    """Rotate q or k, or their gradients, in place."""
    stride = argument(args, QKV_STRIDE)
    x = like(storage, argument(args, what)) + at
    rotary(
        thread, threads, x, stride, x, stride, argument(args, ROWS), heads, argument(args, SIZE),
        int32_pointer(argument(args, POSITIONS)), float32_pointer(argument(args, ANGLES)), way,
    )  # fmt: skip


@kernel
def forward_program(storage: Pointer, thread: int, threads: int, args: int) -> None:
    """Run the forward pass."""
    control, rows, width = argument(args, CONTROL), argument(args, ROWS), argument(args, WIDTH)
    heads, kv_heads, size = argument(args, HEADS), argument(args, KV_HEADS), argument(args, SIZE)
    k_at, v_at, stride = argument(args, K_AT), argument(args, V_AT), argument(args, QKV_STRIDE)
    mine = scratch_of(thread, args)
    mixed, mixed_stride = like(storage, argument(args, MIXED)), argument(args, MIXED_STRIDE)
    norm_forward(
        thread, threads, float32_pointer(argument(args, X)),
        float32_pointer(argument(args, NORM_WEIGHT)), float32_pointer(argument(args, NORM_BIAS)),
        like(storage, argument(args, NORMED)), float32_pointer(argument(args, MEAN)),
        float32_pointer(argument(args, RSTD)), rows, width, argument(args, NORMED_STRIDE),
        real(args, EPS),
    )  # fmt: skip
    barrier(control)
    project(storage, thread, threads, args, WQ, BQ, 0, heads * size)
    project(storage, thread, threads, args, WK, BK, k_at, kv_heads * size)
    project(storage, thread, threads, args, WV, BV, v_at, kv_heads * size)
    barrier(control)
    if argument(args, ANGLES) != 0:
        turn(storage, thread, threads, args, QKV, 0, heads, 1)
        turn(storage, thread, threads, args, QKV, k_at, kv_heads, 1)
        barrier(control)
    qkv = like(storage, argument(args, QKV))
    clear_padding(thread, threads, mixed, rows, heads * size, mixed_stride, mixed_stride)
    attention_forward(
        thread, threads, qkv, stride, qkv + k_at, stride, qkv + v_at, stride, mixed, mixed_stride,
        float32_pointer(argument(args, LSE)), int32_pointer(argument(args, STARTS)),
        argument(args, SEQUENCES), heads, kv_heads, size, like(storage, mine),
    )  # fmt: skip
    barrier(control)
    end = Epilogue(
        argument(args, LAST),
        argument(args, OUT),
        width,
        0,
        argument(args, X),
        0,
        width,
        argument(args, BO),
    )
    multiply(
        thread, threads, ROWS_BY_ROWS, mixed, mixed_stride, like(storage, argument(args, WO)),
        heads * size, rows, width, heads * size, end, mine,
    )  # fmt: skip


@kernel
def backward_program(storage: Pointer, thread: int, threads: int, args: int) -> None:
    """Run the backward pass."""
    control, rows, width = argument(args, CONTROL), argument(args, ROWS), argument(args, WIDTH)
    heads, kv_heads, size = argument(args, HEADS), argument(args, KV_HEADS), argument(args, SIZE)
    k_at, v_at, stride = argument(args, K_AT), argument(args, V_AT), argument(args, QKV_STRIDE)
    mine = scratch_of(thread, args)
    mixed, mixed_stride = like(storage, argument(args, MIXED)), argument(args, MIXED_STRIDE)
    normed, normed_stride = like(storage, argument(args, NORMED)), argument(args, NORMED_STRIDE)
    dout, stored = float32_pointer(argument(args, DOUT)), like(storage, argument(args, STORED))
    dmixed, dqkv = like(storage, argument(args, DMIXED)), like(storage, argument(args, DQKV))
    branch = float32_pointer(argument(args, BRANCH))
    convert(thread, threads, branch, stored, rows, width, width, normed_stride)
    barrier(control)
    weight_gradient(
        thread, threads, args, GO, AO, stored, normed_stride, width, mixed, mixed_stride,
        heads * size,
    )  # fmt: skip
    bias_gradient(thread, threads, args, GBO, ABO, stored, normed_stride, width)
    multiply(
        thread, threads, ROWS_BY_COLUMNS, stored, normed_stride, like(storage, argument(args, WO)),
        heads * size, rows, heads * size, width,
        Epilogue(STORAGE, argument(args, DMIXED), mixed_stride, 0, 0, 0, 0, 0), mine,
    )  # fmt: skip
    clear_padding(thread, threads, dqkv, rows, heads * size, k_at, stride)
    clear_padding(thread, threads, dqkv + k_at, rows, kv_heads * size, v_at - k_at, stride)
    clear_padding(thread, threads, dqkv + v_at, rows, kv_heads * size, stride - v_at, stride)
    barrier(control)
    qkv = like(storage, argument(args, QKV))
    attention_backward(
        thread, threads, qkv, stride, qkv + k_at, stride, qkv + v_at, stride, mixed, mixed_stride,
        dmixed, mixed_stride, float32_pointer(argument(args, LSE)), dqkv, stride, dqkv + k_at,
        stride, dqkv + v_at, stride, int32_pointer(argument(args, STARTS)),
        argument(args, SEQUENCES), heads, kv_heads, size, like(storage, mine),
    )  # fmt: skip
    barrier(control)
    if argument(args, ANGLES) != 0:
        turn(storage, thread, threads, args, DQKV, 0, heads, -1)
        turn(storage, thread, threads, args, DQKV, k_at, kv_heads, -1)
        barrier(control)
    kind = FLOAT32
    for part in range(3):
        at, wide = 0, heads * size
        if part > 0:
            at, wide = k_at, kv_heads * size
        if part == 2:
            at = v_at
        dy = dqkv + at
        weight_gradient(
            thread, threads, args, GQ + part, AQ + part, dy, stride, wide, normed,
            normed_stride, width,
        )  # fmt: skip
        bias_gradient(thread, threads, args, GBQ + part, ABQ + part, dy, stride, wide)
        # a thread owns the same rectangle of all three, so that no barrier is needed to add
        multiply(
            thread, threads, ROWS_BY_COLUMNS, dy, stride, like(storage, argument(args, WQ + part)),
            width, rows, width, wide,
            Epilogue(kind, argument(args, DNORMED), width, 0, 0, 0, 0, 0), mine,
        )  # fmt: skip
        kind = ADD
    barrier(control)
    norm_backward(
        thread, threads, float32_pointer(argument(args, DNORMED)),
        float32_pointer(argument(args, X)), float32_pointer(argument(args, NORM_WEIGHT)),
        float32_pointer(argument(args, MEAN)), float32_pointer(argument(args, RSTD)), dout,
        float32_pointer(argument(args, DX)), like(storage, 0),
        float32_pointer(argument(args, PARTIALS)), rows, width, width, 0, argument(args, GB) != 0,
    )  # fmt: skip
    barrier(control)
    if argument(args, PARTIALS) != 0:
        norm_parameters(
            thread, threads, float32_pointer(argument(args, PARTIALS)),
            float32_pointer(argument(args, GW)), float32_pointer(argument(args, GB)), rows, width,
            argument(args, AW) != 0, argument(args, AB) != 0,
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


class AttentionBlock:
    """The op: `forward` and `backward` as the contract has them."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.dropout = Dropout(runtime)
        self.cached = CachedAttention(runtime)
        self.make_cache = self.cached.attention.make_cache

    def forward(
        self,
        ctx: Context,
        x: Array,
        positions: Array,
        starts: Array,
        norm_weight: Param,
        norm_bias: Param | None,
        wq: Param,
        wk: Param,
        wv: Param,
        wo: Param,
        bq: Param | None = None,
        bk: Param | None = None,
        bv: Param | None = None,
        bo: Param | None = None,
        cache: Cache | None = None,
        *,
        norm: str,
        eps: float,
        heads: int,
        kv_heads: int,
        rotary_base: float | None,
        dropout: float,
        site: int,
    ) -> tuple[Array, Any]:
        """Return x + out(attention(rotary(qkv(norm(x))))) (N, C), and what the way back needs."""
        if cache is not None:
            params = (norm_weight, norm_bias, wq, wk, wv, wo, bq, bk, bv, bo)
            static = {"norm": norm, "eps": eps, "heads": heads, "kv_heads": kv_heads}
            where = (ctx, x, positions, starts)
            out = self.cached.forward(*where, *params, cache, rotary_base=rotary_base, **static)
            return out, None
        run, item = self.runtime, self.runtime.item
        rows, width = x.shape
        size = wq.shape[0] // heads
        longest = int(np.diff(starts).max(initial=0))
        normed_stride, mixed_stride = padded(width), padded(heads * size)
        k_at = mixed_stride
        v_at = k_at + padded(kv_heads * size)
        stride = v_at + padded(kv_heads * size)
        memory = Memory()
        places = [
            memory.place(nbytes)
            for nbytes in (
                4 * rows if norm == "layer" else 0,
                4 * rows,
                item * rows * normed_stride,
                item * rows * stride,
                item * rows * mixed_stride,
                4 * rows * heads,
            )
        ]
        kept = ctx.workspace.take((memory.size,), np.uint8)
        base = address(kept)
        mean, rstd, normed, qkv, mixed, lse = (base + place for place in places)
        out = ctx.workspace.take(x.shape, x.dtype)
        nbytes = max(
            product_scratch(item, width, heads * size), forward_scratch(longest, size, item)
        )
        angles = NULL
        if rotary_base is not None and rows:
            angles = run.angles(size, rotary_base, int(positions.max()))
        args = [
            run.control, run.scratch(nbytes), nbytes, rows, width, normed_stride, heads, kv_heads,
            size, mixed_stride, k_at, v_at, stride, len(starts) - 1, address(starts),
            address(positions), angles, float_word(eps), address(x), run.vector(norm_weight),
            run.vector(norm_bias), run.matrix(wq), run.matrix(wk), run.matrix(wv), run.matrix(wo),
            run.vector(bq), run.vector(bk), run.vector(bv), run.vector(bo),
            mean if norm == "layer" else NULL, rstd, normed, qkv, mixed, lse, address(out),
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
        params = (norm_weight, norm_bias, wq, wk, wv, wo, bq, bk, bv, bo)
        return out, (args, params, longest, dropped, (x, positions, starts, kept))

    def backward(self, ctx: Context, dout: Array, saved: Any, grads: Gradients) -> tuple[Array]:
        """Return (dx (N, C),)."""
        args, params, longest, dropped, _alive = saved
        norm_weight, norm_bias, wq, wk, wv, wo, bq, bk, bv, bo = params
        run, item = self.runtime, self.runtime.item
        rows, width, heads, size = (args[n] for n in (ROWS, WIDTH, HEADS, SIZE))
        memory = Memory()
        places = [
            memory.place(nbytes)
            for nbytes in (
                item * rows * args[NORMED_STRIDE],
                item * rows * args[MIXED_STRIDE],
                item * rows * args[QKV_STRIDE],
                4 * rows * width,
                4 * partial_elements(rows, width),
            )
        ]
        temporary = ctx.workspace.take((memory.size,), np.uint8)
        base = address(temporary)
        dx = ctx.workspace.take(dout.shape, dout.dtype)
        targets = [target(grads, p) for p in (wq, wk, wv, wo, bq, bk, bv, bo, norm_weight)]
        targets.append(target(grads, norm_bias))
        if not rows:
            return (dx,)
        nbytes = max(
            product_scratch(item, width, heads * size, args[KV_HEADS] * size, rows),
            backward_scratch(longest, size, item),
        )
        args = list(args)
        args[SCRATCH], args[SCRATCH_BYTES] = run.scratch(nbytes), nbytes
        branch = dout if dropped is None else self.dropout.gradient(ctx, dout, dropped)
        args += [address(dout), address(branch), address(dx), *(base + place for place in places)]
        args += [where_ for where_, _ in targets] + [accumulate for _, accumulate in targets]
        run.run(BACKWARD, args)
        return (dx,)
