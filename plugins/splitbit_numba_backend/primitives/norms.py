"""layer_norm and rms_norm, in float32."""

from __future__ import annotations

from typing import Any

from splitbit_kit.api import Context, Gradients, Param
from splitbit_kit.api.backend import Array
from splitbit_numba_backend.kernels.norms import (
    norm_backward,
    norm_forward,
    norm_parameters,
    partial_elements,
)
from splitbit_numba_backend.runtime import NULL, Program, Runtime, address, float_word, target
from splitbit_numba_backend.simd.pointers import argument, float32_pointer, real
from splitbit_numba_backend.threads import barrier

# the words of the arguments: of both programs, then of the backward one alone
CONTROL, ROWS, WIDTH, EPS, X, WEIGHT, BIAS, MEAN, RSTD, OUT = range(10)
DOUT, DX, PARTIALS, G_WEIGHT, G_BIAS, A_WEIGHT, A_BIAS = range(10, 17)


def _forward(thread: int, threads: int, args: int) -> None:
    norm_forward(
        thread, threads, float32_pointer(argument(args, X)),
        float32_pointer(argument(args, WEIGHT)), float32_pointer(argument(args, BIAS)),
        float32_pointer(argument(args, OUT)), float32_pointer(argument(args, MEAN)),
        float32_pointer(argument(args, RSTD)), argument(args, ROWS), argument(args, WIDTH),
        argument(args, WIDTH), real(args, EPS),
    )  # fmt: skip


def _backward(thread: int, threads: int, args: int) -> None:
    rows, width = argument(args, ROWS), argument(args, WIDTH)
    norm_backward(
        thread, threads, float32_pointer(argument(args, DOUT)),
        float32_pointer(argument(args, X)), float32_pointer(argument(args, WEIGHT)),
        float32_pointer(argument(args, MEAN)), float32_pointer(argument(args, RSTD)),
        float32_pointer(0), float32_pointer(argument(args, DX)), float32_pointer(0),
        float32_pointer(argument(args, PARTIALS)), rows, width, width, 0,
        argument(args, G_BIAS) != 0,
    )  # fmt: skip
    barrier(argument(args, CONTROL))
    norm_parameters(
        thread, threads, float32_pointer(argument(args, PARTIALS)),
        float32_pointer(argument(args, G_WEIGHT)), float32_pointer(argument(args, G_BIAS)), rows,
        width, argument(args, A_WEIGHT) != 0, argument(args, A_BIAS) != 0,
    )  # fmt: skip


FORWARD, BACKWARD = Program(_forward, _forward), Program(_backward, _backward)


class RmsNorm:
    """x / sqrt(mean(x^2) + eps) * weight."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def forward(self, ctx: Context, x: Array, weight: Param, *, eps: float) -> tuple[Array, Any]:
        """Return the normed rows (N, C), and what the way back needs."""
        return self._norm(ctx, x, weight, None, eps, centred=False)

    def _norm(
        self, ctx: Context, x: Array, weight: Param, bias: Param | None, eps: float, centred: bool
    ) -> tuple[Array, Any]:
        run, (rows, width) = self.runtime, x.shape
        out = ctx.workspace.take(x.shape, x.dtype)
        statistics = ctx.workspace.take((2, rows), x.dtype)
        rstd = address(statistics)
        args = (
            run.control, rows, width, float_word(eps), address(x), run.vector(weight),
            run.vector(bias), rstd + 4 * rows if centred else NULL, rstd, address(out),
        )  # fmt: skip
        if rows:
            run.run(FORWARD, args)
        return out, (args, (weight, bias), (x, statistics))

    def backward(self, ctx: Context, dout: Array, saved: Any, grads: Gradients) -> tuple[Array]:
        """Return (dx (N, C),)."""
        args, params, _alive = saved
        dx = ctx.workspace.take(dout.shape, dout.dtype)
        partials = ctx.workspace.take((partial_elements(*dout.shape),), dout.dtype)
        targets = [target(grads, param) for param in params]
        if len(dout):
            words = [*args, address(dout), address(dx), address(partials)]
            words += [where for where, _ in targets] + [accumulate for _, accumulate in targets]
            self.runtime.run(BACKWARD, words)
        return (dx,)


class LayerNorm(RmsNorm):
    """(x - mean) / sqrt(variance + eps) * weight + bias."""

    def forward(  # type: ignore[override]
        self, ctx: Context, x: Array, weight: Param, bias: Param | None = None, *, eps: float
    ) -> tuple[Array, Any]:
        """Return the normed rows (N, C), and what the way back needs."""
        return self._norm(ctx, x, weight, bias, eps, centred=True)
