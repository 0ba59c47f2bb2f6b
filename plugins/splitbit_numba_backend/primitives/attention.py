"""attention within sequences, and with a cache of keys and values.

Arrays are float32, the kernels work on storage: in bf16, arrays are copied on the way in and out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from splitbit_kit.api import Context, Gradients
from splitbit_kit.api.backend import Array
from splitbit_numba_backend.kernels.attention import (
    attention_backward,
    attention_forward,
    backward_scratch,
    forward_scratch,
)
from splitbit_numba_backend.kernels.decode import Cache, cached_attention, cached_scratch
from splitbit_numba_backend.kernels.pointwise import convert
from splitbit_numba_backend.kernels.shares import Pointer, kernel
from splitbit_numba_backend.runtime import Program, Runtime, address
from splitbit_numba_backend.simd.pointers import (
    argument,
    bfloat16_pointer,
    float32_pointer,
    int32_pointer,
)
from splitbit_numba_backend.simd.tiles import like
from splitbit_numba_backend.threads import barrier

# The words of the arguments: of all programs, then of each alone. S_...: the array in storage, or
# itself where arrays are storage.
(
    CONTROL, SCRATCH, SCRATCH_BYTES, ROWS, HEADS, KV_HEADS, SIZE, SEQUENCES, STARTS, LSE, Q, K, V,
    OUT, S_Q, S_K, S_V, S_OUT,
) = range(18)  # fmt: skip
DOUT, DQ, DK, DV, S_DOUT, S_DQ, S_DK, S_DV = range(18, 26)
LENGTHS, CACHED_KEYS, CACHED_VALUES, BLOCKS = range(18, 22)


@kernel
def enter(
    storage: Pointer, thread: int, threads: int, args: int, array: int, stored: int, heads: int
) -> None:
    """Copy rows to storage, unless they are in it. array, stored, heads: words of args."""
    if argument(args, array) != argument(args, stored):
        wide = argument(args, heads) * argument(args, SIZE)
        x, copy = float32_pointer(argument(args, array)), like(storage, argument(args, stored))
        convert(thread, threads, x, copy, argument(args, ROWS), wide, wide, wide)


@kernel
def leave(
    storage: Pointer, thread: int, threads: int, args: int, array: int, stored: int, heads: int
) -> None:
    """Copy rows from storage, unless they are in place."""
    if argument(args, array) != argument(args, stored):
        wide = argument(args, heads) * argument(args, SIZE)
        x, copy = float32_pointer(argument(args, array)), like(storage, argument(args, stored))
        convert(thread, threads, copy, x, argument(args, ROWS), wide, wide, wide)


@kernel
def enter_all(storage: Pointer, thread: int, threads: int, args: int) -> None:
    """Copy q, k and v to storage."""
    enter(storage, thread, threads, args, Q, S_Q, HEADS)
    enter(storage, thread, threads, args, K, S_K, KV_HEADS)
    enter(storage, thread, threads, args, V, S_V, KV_HEADS)
    barrier(argument(args, CONTROL))


@kernel
def own(storage: Pointer, thread: int, args: int) -> Pointer:
    """Return a thread's scratch memory."""
    return like(storage, argument(args, SCRATCH) + thread * argument(args, SCRATCH_BYTES))


@kernel
def forward_program(storage: Pointer, thread: int, threads: int, args: int) -> None:
    """Run the forward pass."""
    heads, kv_heads, size = argument(args, HEADS), argument(args, KV_HEADS), argument(args, SIZE)
    wide, narrow = heads * size, kv_heads * size
    enter_all(storage, thread, threads, args)
    attention_forward(
        thread, threads, like(storage, argument(args, S_Q)), wide,
        like(storage, argument(args, S_K)), narrow, like(storage, argument(args, S_V)), narrow,
        like(storage, argument(args, S_OUT)), wide, float32_pointer(argument(args, LSE)),
        int32_pointer(argument(args, STARTS)), argument(args, SEQUENCES), heads, kv_heads, size,
        own(storage, thread, args),
    )  # fmt: skip
    barrier(argument(args, CONTROL))
    leave(storage, thread, threads, args, OUT, S_OUT, HEADS)


@kernel
def backward_program(storage: Pointer, thread: int, threads: int, args: int) -> None:
    """Run the backward pass."""
    heads, kv_heads, size = argument(args, HEADS), argument(args, KV_HEADS), argument(args, SIZE)
    wide, narrow = heads * size, kv_heads * size
    enter(storage, thread, threads, args, DOUT, S_DOUT, HEADS)
    barrier(argument(args, CONTROL))
    attention_backward(
        thread, threads, like(storage, argument(args, S_Q)), wide,
        like(storage, argument(args, S_K)), narrow, like(storage, argument(args, S_V)), narrow,
        like(storage, argument(args, S_OUT)), wide, like(storage, argument(args, S_DOUT)), wide,
        float32_pointer(argument(args, LSE)), like(storage, argument(args, S_DQ)), wide,
        like(storage, argument(args, S_DK)), narrow, like(storage, argument(args, S_DV)), narrow,
        int32_pointer(argument(args, STARTS)), argument(args, SEQUENCES), heads, kv_heads, size,
        own(storage, thread, args),
    )  # fmt: skip
    barrier(argument(args, CONTROL))
    leave(storage, thread, threads, args, DQ, S_DQ, HEADS)
    leave(storage, thread, threads, args, DK, S_DK, KV_HEADS)
    leave(storage, thread, threads, args, DV, S_DV, KV_HEADS)


@kernel
def cached_program(storage: Pointer, thread: int, threads: int, args: int) -> None:
    """Append to the cache, and attend over it."""
    heads, kv_heads, size = argument(args, HEADS), argument(args, KV_HEADS), argument(args, SIZE)
    wide, narrow = heads * size, kv_heads * size
    enter_all(storage, thread, threads, args)
    cached_attention(
        thread, threads, like(storage, argument(args, S_Q)), wide,
        like(storage, argument(args, S_K)), narrow, like(storage, argument(args, S_V)), narrow,
        like(storage, argument(args, S_OUT)), wide, int32_pointer(argument(args, STARTS)),
        int32_pointer(argument(args, LENGTHS)), argument(args, SEQUENCES), heads, kv_heads, size,
        like(storage, argument(args, CACHED_KEYS)), like(storage, argument(args, CACHED_VALUES)),
        argument(args, BLOCKS), own(storage, thread, args),
    )  # fmt: skip
    barrier(argument(args, CONTROL))
    leave(storage, thread, threads, args, OUT, S_OUT, HEADS)


def _forward_fp32(thread: int, threads: int, args: int) -> None:
    forward_program(float32_pointer(0), thread, threads, args)


def _forward_bf16(thread: int, threads: int, args: int) -> None:
    forward_program(bfloat16_pointer(0), thread, threads, args)


def _backward_fp32(thread: int, threads: int, args: int) -> None:
    backward_program(float32_pointer(0), thread, threads, args)


def _backward_bf16(thread: int, threads: int, args: int) -> None:
    backward_program(bfloat16_pointer(0), thread, threads, args)


def _cached_fp32(thread: int, threads: int, args: int) -> None:
    cached_program(float32_pointer(0), thread, threads, args)


def _cached_bf16(thread: int, threads: int, args: int) -> None:
    cached_program(bfloat16_pointer(0), thread, threads, args)


FORWARD = Program(_forward_fp32, _forward_bf16)
BACKWARD = Program(_backward_fp32, _backward_bf16)
CACHED = Program(_cached_fp32, _cached_bf16)


class Attention:
    """softmax(q k' / sqrt(D)) v, head by head."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def make_cache(
        self, *, sequences: int, capacity: int, kv_heads: int, head_size: int, dtype: Any
    ) -> Cache:
        """Return an empty cache, in storage: `dtype`, that of arrays between ops, is float32."""
        kind = np.uint16 if self.runtime.precision == "bf16" else np.float32  # bits of bfloat16
        return Cache(
            sequences=sequences, capacity=capacity, kv_heads=kv_heads, head_size=head_size,
            dtype=kind,
        )  # fmt: skip

    def forward(
        self,
        ctx: Context,
        q: Array,
        k: Array,
        v: Array,
        starts: Array,
        cache: Cache | None = None,
        *,
        heads: int,
        kv_heads: int,
    ) -> tuple[Array, Any]:
        """Return the mixed values (N, H * D). ValueError: the cache is full."""
        run, (rows, wide) = self.runtime, q.shape
        size = wide // heads
        out = ctx.workspace.take(q.shape, q.dtype)
        lse = ctx.workspace.take((rows, heads if cache is None else 0), q.dtype)
        stored = self._stored(ctx, q, k, v, out)
        where = (
            rows, heads, kv_heads, size, len(starts) - 1,
            *map(address, (starts, lse, q, k, v, out, *stored)),
        )  # fmt: skip
        if cache is not None:
            self._attend_cached(cache, starts, where)
            return out, None
        longest = int(np.diff(starts).max(initial=0))
        nbytes = forward_scratch(longest, size, run.item)
        if rows:
            run.run(FORWARD, (run.control, run.scratch(nbytes), nbytes, *where))
        return out, (where, longest, (q, k, v, starts, lse, *stored))

    def _attend_cached(self, cache: Cache, starts: Array, where: tuple[int, ...]) -> None:
        rows, heads, kv_heads, size, sequences = where[:5]
        run = self.runtime
        check_cache(cache, sequences, kv_heads, size, run.item)
        grown = cache.grown(starts)
        nbytes = cached_scratch(int(grown.max(initial=0)), size, heads // kv_heads, run.item)
        held = (address(cache.lengths), address(cache.k), address(cache.v), cache.blocks)
        if rows:
            run.run(CACHED, (run.control, run.scratch(nbytes), nbytes, *where, *held))
        cache.lengths = grown

    def backward(
        self, ctx: Context, dout: Array, saved: Any, grads: Gradients
    ) -> tuple[Array, Array, Array]:
        """Return (dq (N, H * D), dk and dv (N, K * D))."""
        where, longest, (q, k, v, *_alive) = saved
        run, size = self.runtime, where[3]
        dq, dk, dv = (ctx.workspace.take(x.shape, x.dtype) for x in (q, k, v))
        gradients = (dout, dq, dk, dv)
        stored = self._stored(ctx, *gradients)
        nbytes = backward_scratch(longest, size, run.item)
        if len(dout):
            words = (run.control, run.scratch(nbytes), nbytes, *where)
            run.run(BACKWARD, (*words, *map(address, (*gradients, *stored))))
        return dq, dk, dv

    def _stored(self, ctx: Context, *arrays: Array) -> tuple[Array, ...]:
        """Return the arrays themselves where they are storage, else places for their copies."""
        if self.runtime.precision != "bf16":
            return arrays
        return tuple(ctx.workspace.take(x.shape, np.uint16) for x in arrays)


def check_cache(cache: Cache, sequences: int, kv_heads: int, size: int, item: int) -> None:
    """Raise ValueError unless the cache is one of ours, for these sequences, heads and storage."""
    if not isinstance(cache, Cache):
        raise ValueError(f"attention: {type(cache).__name__} is the cache of another backend")
    if cache.k.shape[:2] != (sequences, kv_heads) or cache.head_size != size:
        raise ValueError("attention: the cache was made for other sequences or heads")
    if cache.k.itemsize != item:
        raise ValueError("attention: the cache was made for another precision")
