"""gelu and swiglu, in float32. `add` is in `blocks.small`: it is what stands between blocks."""

from __future__ import annotations

from typing import Any

from splitbit_kit.api import Context, Gradients
from splitbit_kit.api.backend import Array
from splitbit_numba_backend.kernels import pointwise
from splitbit_numba_backend.runtime import Program, Runtime, address
from splitbit_numba_backend.simd.pointers import argument, float32_pointer

COUNT, X, UP, OUT, DX, DUP = range(6)  # out: of the backward programs, its gradient


def _gelu(thread: int, threads: int, args: int) -> None:
    pointwise.gelu(
        thread, threads, float32_pointer(argument(args, X)), float32_pointer(argument(args, OUT)),
        argument(args, COUNT),
    )  # fmt: skip


def _gelu_backward(thread: int, threads: int, args: int) -> None:
    pointwise.gelu_backward(
        thread, threads, float32_pointer(argument(args, OUT)), float32_pointer(argument(args, X)),
        float32_pointer(argument(args, DX)), argument(args, COUNT),
    )  # fmt: skip


def _swiglu(thread: int, threads: int, args: int) -> None:
    pointwise.swiglu(
        thread, threads, float32_pointer(argument(args, X)), float32_pointer(argument(args, UP)),
        float32_pointer(argument(args, OUT)), argument(args, COUNT),
    )  # fmt: skip


def _swiglu_backward(thread: int, threads: int, args: int) -> None:
    pointwise.swiglu_backward(
        thread, threads, float32_pointer(argument(args, OUT)), float32_pointer(argument(args, X)),
        float32_pointer(argument(args, UP)), float32_pointer(argument(args, DX)),
        float32_pointer(argument(args, DUP)), argument(args, COUNT),
    )  # fmt: skip


GELU, GELU_BACKWARD = Program(_gelu, _gelu), Program(_gelu_backward, _gelu_backward)
SWIGLU = Program(_swiglu, _swiglu)
SWIGLU_BACKWARD = Program(_swiglu_backward, _swiglu_backward)


class Gelu:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def forward(self, ctx: Context, x: Array) -> tuple[Array, Any]:
        """Return gelu(x)."""
        out = ctx.workspace.take(x.shape, x.dtype)
        self.runtime.run(GELU, (x.size, address(x), 0, address(out)))
        return out, x

    def backward(self, ctx: Context, dout: Array, saved: Any, grads: Gradients) -> tuple[Array]:
        """Return (dx,)."""
        dx = ctx.workspace.take(dout.shape, dout.dtype)
        args = (dout.size, address(saved), 0, address(dout), address(dx))
        self.runtime.run(GELU_BACKWARD, args)
        return (dx,)


class Swiglu:
    """gate * sigmoid(gate) * up."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def forward(self, ctx: Context, gate: Array, up: Array) -> tuple[Array, Any]:
        """Return swish(gate) * up."""
        out = ctx.workspace.take(gate.shape, gate.dtype)
        self.runtime.run(SWIGLU, (gate.size, address(gate), address(up), address(out)))
        return out, (gate, up)

    def backward(
        self, ctx: Context, dout: Array, saved: Any, grads: Gradients
    ) -> tuple[Array, Array]:
        """Return (dgate, dup)."""
        dgate, dup = (ctx.workspace.take(dout.shape, dout.dtype) for _ in range(2))
        self.runtime.run(SWIGLU_BACKWARD, (dout.size, *map(address, (*saved, dout, dgate, dup))))
        return dgate, dup
