"""The blocks for few rows and no gradient: what a token costs when text is generated.

Weights are read as they are stored, rows stay in float32, and what one thread needs of another's
waits at a barrier within one program. Prompts, which are longer, go through the primitives.
"""

from __future__ import annotations

import numpy as np

from splitbit_kit.api import Context, Param
from splitbit_kit.api.backend import Array
from splitbit_numba_backend.kernels import pointwise
from splitbit_numba_backend.kernels.decode import Cache, cached_attention, cached_scratch
from splitbit_numba_backend.kernels.gemv import FEW, multiply_few
from splitbit_numba_backend.kernels.norms import norm_forward
from splitbit_numba_backend.kernels.rotary import rotary
from splitbit_numba_backend.kernels.shares import Pointer, kernel, share
from splitbit_numba_backend.primitives.attention import Attention, check_cache
from splitbit_numba_backend.primitives.linear import Linear
from splitbit_numba_backend.primitives.norms import LayerNorm, RmsNorm
from splitbit_numba_backend.primitives.rotary import Rotary
from splitbit_numba_backend.runtime import (
    NULL,
    Memory,
    Program,
    Runtime,
    address,
    float_word,
)
from splitbit_numba_backend.simd.pointers import (
    argument,
    bfloat16_pointer,
    float32_pointer,
    int32_pointer,
    real,
)
from splitbit_numba_backend.simd.tiles import like
from splitbit_numba_backend.simd.vector import LANES
from splitbit_numba_backend.threads import barrier

# the words of the arguments: of both programs, then of each alone
(
    CONTROL, ROWS, WIDTH, EPS, X, NORM_WEIGHT, NORM_BIAS, MEAN, RSTD, NORMED, OUT,
) = range(11)  # fmt: skip
(
    HIDDEN, GATE, GATE_BIAS, UP, UP_BIAS, GATED, ENTERING, DOWN, DOWN_BIAS,
) = range(11, 20)  # fmt: skip
(
    SCRATCH, SCRATCH_BYTES, HEADS, KV_HEADS, SIZE, POSITIONS, ANGLES, STARTS, SEQUENCES, LENGTHS,
    CACHED_KEYS, CACHED_VALUES, BLOCKS, WQ, WK, WV, WO, BQ, BK, BV, BO, Q, K, V, S_Q, S_K, S_V,
    MIXED,
) = range(11, 39)  # fmt: skip


@kernel
def norm(thread: int, threads: int, args: int) -> None:
    """Norm the rows, and wait until all are."""
    width = argument(args, WIDTH)
    norm_forward(
        thread, threads, float32_pointer(argument(args, X)),
        float32_pointer(argument(args, NORM_WEIGHT)), float32_pointer(argument(args, NORM_BIAS)),
        float32_pointer(argument(args, NORMED)), float32_pointer(argument(args, MEAN)),
        float32_pointer(argument(args, RSTD)), argument(args, ROWS), width, width, real(args, EPS),
    )  # fmt: skip
    barrier(argument(args, CONTROL))


@kernel
def times(
    storage: Pointer, thread: int, threads: int, args: int, weight: int, bias: int, out: int,
    wide: int,
) -> None:  # fmt: skip
    """Multiply the normed rows by a weight (wide, C). weight, bias, out: words of args."""
    multiply_few(
        thread, threads, float32_pointer(argument(args, NORMED)),
        like(storage, argument(args, weight)), float32_pointer(argument(args, bias)),
        float32_pointer(0), float32_pointer(argument(args, out)), argument(args, ROWS),
        argument(args, WIDTH), wide,
    )  # fmt: skip


@kernel
def mlp_program(storage: Pointer, thread: int, threads: int, args: int) -> None:
    """Run mlp_block."""
    rows, width, hidden = argument(args, ROWS), argument(args, WIDTH), argument(args, HIDDEN)
    gated, entering = float32_pointer(argument(args, GATED)), argument(args, ENTERING)
    norm(thread, threads, args)
    times(storage, thread, threads, args, UP, UP_BIAS, ENTERING, hidden)
    if argument(args, GATE) != 0:
        times(storage, thread, threads, args, GATE, GATE_BIAS, GATED, hidden)
    # a thread has made the same columns of both
    start, stop = share(thread, threads, hidden, LANES)
    for r in range(rows):
        up = float32_pointer(entering) + (r * hidden + start)
        if argument(args, GATE) != 0:
            pointwise.swiglu(0, 1, gated + (r * hidden + start), up, up, stop - start)
        else:
            pointwise.gelu(0, 1, up, up, stop - start)
    barrier(argument(args, CONTROL))
    multiply_few(
        thread, threads, float32_pointer(entering), like(storage, argument(args, DOWN)),
        float32_pointer(argument(args, DOWN_BIAS)), float32_pointer(argument(args, X)),
        float32_pointer(argument(args, OUT)), rows, hidden, width,
    )  # fmt: skip


@kernel
def attention_program(storage: Pointer, thread: int, threads: int, args: int) -> None:
    """Run attention_block with a cache."""
    control, rows, width = argument(args, CONTROL), argument(args, ROWS), argument(args, WIDTH)
    heads, kv_heads, size = argument(args, HEADS), argument(args, KV_HEADS), argument(args, SIZE)
    wide, narrow = heads * size, kv_heads * size
    q, k = float32_pointer(argument(args, Q)), float32_pointer(argument(args, K))
    v, stored_v = float32_pointer(argument(args, V)), like(storage, argument(args, S_V))
    stored_q, stored_k = like(storage, argument(args, S_Q)), like(storage, argument(args, S_K))
    mixed = like(storage, argument(args, MIXED))
    norm(thread, threads, args)
    times(storage, thread, threads, args, WQ, BQ, Q, wide)
    times(storage, thread, threads, args, WK, BK, K, narrow)
    times(storage, thread, threads, args, WV, BV, V, narrow)
    barrier(control)
    if argument(args, ANGLES) != 0:
        positions = int32_pointer(argument(args, POSITIONS))
        angles = float32_pointer(argument(args, ANGLES))
        rotary(thread, threads, q, wide, stored_q, wide, rows, heads, size, positions, angles, 1)
        rotary(
            thread, threads, k, narrow, stored_k, narrow, rows, kv_heads, size, positions, angles,
            1,
        )  # fmt: skip
    else:
        pointwise.convert(thread, threads, q, stored_q, rows, wide, wide, wide)
        pointwise.convert(thread, threads, k, stored_k, rows, narrow, narrow, narrow)
    pointwise.convert(thread, threads, v, stored_v, rows, narrow, narrow, narrow)
    barrier(control)
    cached_attention(
        thread, threads, stored_q, wide, stored_k, narrow, stored_v, narrow, mixed, wide,
        int32_pointer(argument(args, STARTS)), int32_pointer(argument(args, LENGTHS)),
        argument(args, SEQUENCES), heads, kv_heads, size,
        like(storage, argument(args, CACHED_KEYS)), like(storage, argument(args, CACHED_VALUES)),
        argument(args, BLOCKS),
        like(storage, argument(args, SCRATCH) + thread * argument(args, SCRATCH_BYTES)),
    )  # fmt: skip
    barrier(control)
    multiply_few(
        thread, threads, mixed, like(storage, argument(args, WO)),
        float32_pointer(argument(args, BO)), float32_pointer(argument(args, X)),
        float32_pointer(argument(args, OUT)), rows, wide, width,
    )  # fmt: skip


def _mlp_fp32(thread: int, threads: int, args: int) -> None:
    mlp_program(float32_pointer(0), thread, threads, args)


def _mlp_bf16(thread: int, threads: int, args: int) -> None:
    mlp_program(bfloat16_pointer(0), thread, threads, args)


def _attention_fp32(thread: int, threads: int, args: int) -> None:
    attention_program(float32_pointer(0), thread, threads, args)


def _attention_bf16(thread: int, threads: int, args: int) -> None:
    attention_program(bfloat16_pointer(0), thread, threads, args)


MLP = Program(_mlp_fp32, _mlp_bf16)
ATTENTION = Program(_attention_fp32, _attention_bf16)


class FewMlp:
    """mlp_block for few rows."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def forward(
        self,
        ctx: Context,
        x: Array,
        norm_weight: Param,
        norm_bias: Param | None,
        gate: Param | None,
        up: Param,
        down: Param,
        up_bias: Param | None,
        down_bias: Param | None,
        *,
        norm: str,
        eps: float,
    ) -> Array:
        """Return x + down(act(up(norm(x)))) (N, C)."""
        run, (rows, width), hidden = self.runtime, x.shape, up.shape[0]
        memory = Memory()
        sizes = (rows, rows, rows * width, rows * hidden, rows * hidden)
        places = [memory.place(4 * size) for size in sizes]
        temporary = ctx.workspace.take((memory.size,), np.uint8)
        mean, rstd, normed, gated, entering = (address(temporary) + at for at in places)
        out = ctx.workspace.take(x.shape, x.dtype)
        args = (
            run.control, rows, width, float_word(eps), address(x), run.vector(norm_weight),
            run.vector(norm_bias), mean if norm == "layer" else NULL, rstd, normed, address(out),
            hidden, NULL if gate is None else run.matrix(gate), NULL, run.matrix(up),
            run.vector(up_bias), gated, entering, run.matrix(down), run.vector(down_bias),
        )  # fmt: skip
        run.run(MLP, args)
        return out


class CachedAttention:
    """attention_block with a cache: one program for few rows, the primitives for prompts."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.layer_norm, self.rms_norm = LayerNorm(runtime), RmsNorm(runtime)
        self.linear, self.rotary = Linear(runtime), Rotary(runtime)
        self.attention = Attention(runtime)

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
        bq: Param | None,
        bk: Param | None,
        bv: Param | None,
        bo: Param | None,
        cache: Cache,
        *,
        norm: str,
        eps: float,
        heads: int,
        kv_heads: int,
        rotary_base: float | None,
    ) -> Array:
        """Return x + out(attention(rotary(qkv(norm(x))))) (N, C)."""
        if not 0 < len(x) <= FEW:
            if norm == "layer":
                h, _ = self.layer_norm.forward(ctx, x, norm_weight, norm_bias, eps=eps)
            else:
                h, _ = self.rms_norm.forward(ctx, x, norm_weight, eps=eps)
            q, k, v = (
                self.linear.forward(ctx, h, w, b)[0] for w, b in ((wq, bq), (wk, bk), (wv, bv))
            )
            if rotary_base is not None:
                q, _ = self.rotary.forward(ctx, q, positions, heads=heads, base=rotary_base)
                k, _ = self.rotary.forward(ctx, k, positions, heads=kv_heads, base=rotary_base)
            static = {"heads": heads, "kv_heads": kv_heads}
            a, _ = self.attention.forward(ctx, q, k, v, starts, cache, **static)
            out, _ = self.linear.forward(ctx, a, wo, bo)
            np.add(out, x, out=out)
            return out
        run, item, (rows, width) = self.runtime, self.runtime.item, x.shape
        wide, narrow = wq.shape[0], wk.shape[0]
        size = wide // heads
        check_cache(cache, len(starts) - 1, kv_heads, size, item)
        angles = NULL
        if rotary_base is not None:
            angles = run.angles(size, rotary_base, int(positions.max()))
        grown = cache.grown(starts)
        nbytes = cached_scratch(int(grown.max()), size, heads // kv_heads, item)
        memory = Memory()
        sizes = (rows, rows, rows * width, rows * wide, rows * narrow, rows * narrow)
        places = [memory.place(4 * elements) for elements in sizes]
        sizes = (rows * wide, rows * narrow, rows * narrow, rows * wide)
        places += [memory.place(item * elements) for elements in sizes]
        temporary = ctx.workspace.take((memory.size,), np.uint8)
        mean, rstd, normed, *rest = (address(temporary) + at for at in places)
        out = ctx.workspace.take(x.shape, x.dtype)
        args = (
            run.control, rows, width, float_word(eps), address(x), run.vector(norm_weight),
            run.vector(norm_bias), mean if norm == "layer" else NULL, rstd, normed, address(out),
            run.scratch(nbytes), nbytes, heads, kv_heads, size, address(positions), angles,
            address(starts), len(starts) - 1, address(cache.lengths), address(cache.k),
            address(cache.v), cache.blocks, run.matrix(wq), run.matrix(wk), run.matrix(wv),
            run.matrix(wo), run.vector(bq), run.vector(bk), run.vector(bv), run.vector(bo), *rest,
        )  # fmt: skip
        run.run(ATTENTION, args)
        cache.lengths = grown
        return out


def few(ctx: Context, x: Array) -> bool:
    """Return whether rows go this way."""
    return not ctx.grad and 0 < len(x) <= FEW
