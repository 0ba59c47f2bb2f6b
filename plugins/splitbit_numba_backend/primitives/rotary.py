"""rotary: halves of each head turned by the angles of the positions."""

from __future__ import annotations

from typing import Any

from splitbit_kit.api import Context, Gradients
from splitbit_kit.api.backend import Array
from splitbit_numba_backend.kernels.rotary import rotary
from splitbit_numba_backend.runtime import Program, Runtime, address
from splitbit_numba_backend.simd.pointers import argument, float32_pointer, int32_pointer

X, OUT, ROWS, HEADS, SIZE, POSITIONS, ANGLES, DIRECTION = range(8)


def _turn(thread: int, threads: int, args: int) -> None:
    stride = argument(args, HEADS) * argument(args, SIZE)
    rotary(
        thread, threads, float32_pointer(argument(args, X)), stride,
        float32_pointer(argument(args, OUT)), stride, argument(args, ROWS), argument(args, HEADS),
        argument(args, SIZE), int32_pointer(argument(args, POSITIONS)),
        float32_pointer(argument(args, ANGLES)), argument(args, DIRECTION),
    )  # fmt: skip


TURN = Program(_turn, _turn)


class Rotary:
    """Rotated heads; the gradient is turned back."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def forward(
        self, ctx: Context, x: Array, positions: Array, *, heads: int, base: float
    ) -> tuple[Array, Any]:
        """Return the turned rows (N, H * D)."""
        return self._turned(ctx, x, positions, heads, base, 1), (positions, heads, base)

    def backward(self, ctx: Context, dout: Array, saved: Any, grads: Gradients) -> tuple[Array]:
        """Return (dx (N, H * D),)."""
        return (self._turned(ctx, dout, *saved, -1),)

    def _turned(
        self, ctx: Context, x: Array, positions: Array, heads: int, base: float, direction: int
    ) -> Array:
        out = ctx.workspace.take(x.shape, x.dtype)
        if len(x):
            size = x.shape[1] // heads
            # the table may have been made anew since: its address is good for this call only
            angles = self.runtime.angles(size, base, int(positions.max()))
            where = (address(x), address(out), len(x), heads, size, address(positions))
            self.runtime.run(TURN, (*where, angles, direction))
        return out
