"""The spike's backend with each block as one compiled call: what a backend can save by itself.

Throwaway. Only for what the bench has: trainable weights, with wq, wk and wv side by side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from backend import F32, U8, Spike, _up
from bare import SCRATCH
from common import address

from splitbit_kit.api import Context, Gradients

Array = np.ndarray[Any, np.dtype[Any]]


class Whole(Spike):
    """As `Spike`, with another way into the kernels of the two blocks."""

    def _gradient(self, ctx: Context, x: Array) -> tuple[Array, int, int]:
        size = x.nbytes
        raw = ctx.workspace.take((size + size // 2 if self.bf else size,), U8)
        self._last = dx = raw[:size].view(F32).reshape(x.shape)
        at = address(raw)
        return dx, at, at + size if self.bf else 0

    def _into(self, grads: Gradients, param: Any) -> tuple[int, bool]:
        view, accumulate = grads.into(param)  # type: ignore[misc]
        return address(view), accumulate

    def attention_block(  # type: ignore[override]
        self, ctx, x, positions, starts, norm_weight, norm_bias, wq, wk, wv, wo, bq, bk, bv, bo,
        cache, *, heads, **static,
    ):  # fmt: skip
        n, c = x.shape
        act, row = _up(self.eb * n * c), _up(4 * n)
        memory = ctx.workspace.take((5 * act + (2 + heads) * row,), U8)
        out = ctx.workspace.take((n, c), F32)
        xn = address(memory)
        mean = xn + 5 * act
        at = (
            address(x), self._at(norm_weight), self._read(wq, wk, wv), self._read(wo),
            address(starts),
        )  # fmt: skip
        inside = (xn, xn + act, xn + 4 * act, mean, mean + row, mean + 2 * row)
        s = starts.size - 1
        self.k.attention_whole(
            self.nth, n, c, heads, s, *at, address(out), *inside, self.ws, SCRATCH
        )
        return out, (x, starts, norm_weight, wq, wk, wv, wo, heads, memory, at, inside)

    def attention_block_backward(self, ctx, dout, saved, grads):
        x, starts, norm_weight, wq, wk, wv, wo, heads, _memory, at, inside = saved
        n, c = x.shape
        act = _up(self.eb * n * c)
        d, _twin = self._as_stored(ctx, dout)
        dx, to, twin = self._gradient(ctx, x)
        dy = self._temporary(4 * act + 4 * n * c)
        q, k, v = (self._into(grads, w) for w in (wq, wk, wv))
        size = 4 * c * c
        assert k == (q[0] + size, q[1]) and v == (q[0] + 2 * size, q[1])
        self.k.attention_whole_backward(
            self.nth, n, c, heads, starts.size - 1, *at, address(dout), d, to, twin, *inside,
            dy, dy + act, dy + 4 * act, *q, *self._into(grads, wo),
            *self._into(grads, norm_weight), self.ws, SCRATCH, self.ws2,
        )  # fmt: skip
        return (dx,)

    def mlp_block(  # type: ignore[override]
        self, ctx, x, norm_weight, norm_bias, gate, up, down, up_bias, down_bias, **static
    ):
        n, c = x.shape
        f = up.shape[0]
        narrow, wide, row = _up(self.eb * n * c), _up(self.eb * n * f), _up(4 * n)
        memory = ctx.workspace.take((narrow + 2 * wide + 2 * row,), U8)
        out = ctx.workspace.take((n, c), F32)
        xn = address(memory)
        pre = xn + narrow
        mean = pre + 2 * wide
        at = (address(x), self._at(norm_weight), self._read(up), self._read(down))
        inside = (xn, pre, pre + wide, mean, mean + row)
        self.k.mlp_whole(self.nth, n, c, f, *at, address(out), *inside, self.ws, SCRATCH)
        return out, (x, norm_weight, up, down, memory, at, inside)

    def mlp_block_backward(self, ctx, dout, saved, grads):
        x, norm_weight, up, down, _memory, at, inside = saved
        n, c = x.shape
        f = up.shape[0]
        wide = _up(self.eb * n * f)
        d, _twin = self._as_stored(ctx, dout)
        dx, to, twin = self._gradient(ctx, x)
        dpre = self._temporary(wide + 4 * n * c)
        self.k.mlp_whole_backward(
            self.nth, n, c, f, *at, address(dout), d, to, twin, *inside, dpre, dpre + wide,
            *self._into(grads, up), *self._into(grads, down), *self._into(grads, norm_weight),
            self.ws, SCRATCH, self.ws2,
        )  # fmt: skip
        return (dx,)
