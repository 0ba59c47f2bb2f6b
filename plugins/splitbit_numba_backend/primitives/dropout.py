"""dropout, by itself and behind the blocks, which leave their residual to it."""

from __future__ import annotations

from typing import Any

from splitbit_kit.api import Context, Gradients
from splitbit_kit.api.backend import Array
from splitbit_numba_backend.kernels.dropout import dropout
from splitbit_numba_backend.runtime import NULL, Program, Runtime, address, float_word
from splitbit_numba_backend.simd.pointers import argument, float32_pointer, real

ROWS, WIDTH, SEED, SITE, STEP, MICRO_BATCH, THRESHOLD, SCALE, X, RESIDUAL, OUT = range(11)


def _dropout(thread: int, threads: int, args: int) -> None:
    dropout(
        thread, threads, float32_pointer(argument(args, X)),
        float32_pointer(argument(args, RESIDUAL)), float32_pointer(argument(args, OUT)),
        argument(args, ROWS), argument(args, WIDTH), argument(args, WIDTH), argument(args, SEED),
        argument(args, SITE), argument(args, STEP), argument(args, MICRO_BATCH),
        argument(args, THRESHOLD), real(args, SCALE),
    )  # fmt: skip


DROPOUT = Program(_dropout, _dropout)


class Dropout:
    """x / (1 - rate) where an element is kept, else 0."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def forward(self, ctx: Context, x: Array, *, rate: float, site: int) -> tuple[Array, Any]:
        """Return x with elements dropped, and what says which."""
        which = words(ctx, x, rate, site)
        out = ctx.workspace.take(x.shape, x.dtype)
        self.run(which, address(x), NULL, address(out))
        return out, which

    def backward(self, ctx: Context, dout: Array, saved: Any, grads: Gradients) -> tuple[Array]:
        """Return (dx,): the same elements of dout are dropped."""
        return (self.gradient(ctx, dout, saved),)

    def gradient(self, ctx: Context, dout: Array, which: tuple[int, ...]) -> Array:
        """Return dout with the same elements dropped."""
        dx = ctx.workspace.take(dout.shape, dout.dtype)
        self.run(which, address(dout), NULL, address(dx))
        return dx

    def run(self, which: tuple[int, ...], x: int, residual: int, out: int) -> None:
        """Write what is kept of x, plus residual, to out, which may be x: addresses of float32."""
        self.runtime.run(DROPOUT, (*which, x, residual, out))


def words(ctx: Context, x: Array, rate: float, site: int) -> tuple[int, ...]:
    """Return the arguments that say which elements of an array like x are kept."""
    seed = ctx.seed - (1 << 64) if ctx.seed >> 63 else ctx.seed  # the same 64 bits, signed
    threshold, scale = int(rate * 2**32), float_word(1 / (1 - rate))
    return (*x.shape, seed, site, ctx.step, ctx.micro_batch, threshold, scale)
