"""Side B of the spike: the same kernels as a backend behind the op contract.

Throwaway, but written as the real backend will be: sites declined in `accepts`, saved state in the
precision of the kernels and private, memory from the workspace, gradients through `grads.into`, a
bf16 copy of the weights that `adamw` renews in its own pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import common
import numba
import numpy as np
from bare import (
    ADD,
    BLOCK,
    FORWARD,
    GELU,
    GELU_GRADIENT,
    INPUT_GRADIENT,
    OVERWRITE,
    PANEL,
    RESIDUAL,
    SCRATCH,
    STORE,
    WEIGHT_GRADIENT,
)
from common import address

from splitbit_kit.api import (
    Backend,
    Context,
    Gradients,
    Op,
    OpOffer,
    Param,
    Parameters,
    Site,
    SplitbitError,
)
from splitbit_kit.engine.workspace import aligned

Array = np.ndarray[Any, np.dtype[Any]]
F32, U8 = np.dtype(np.float32), np.dtype(np.uint8)
LONGEST = 1024  # tokens in a sequence: as many as fit the scratch memory of attention


def build(precision: str, threads: int) -> Backend:
    """Return the backend for bf16 or fp32."""
    return Spike(precision, threads).backend()


def _up(nbytes: int) -> int:
    return (nbytes + 63) & -64


class _Weights:
    """Where the kernels read one matrix, or several as one: the values, or a copy of them."""

    __slots__ = ("address", "copy", "parts", "shadowed", "version")

    def __init__(
        self,
        address: int,
        parts: list[tuple[int, int, int]],
        copy: Array | None = None,
        shadowed: bool = False,
    ) -> None:
        self.address = address
        self.shadowed = shadowed  # adamw renews the copy
        self.parts = parts  # (from, to, elements): what to convert when stale; none if read as is
        self.copy = copy  # keeps the copy alive
        self.version = -1


class Spike:
    """Kernels of one precision, with what they keep between calls."""

    def __init__(self, precision: str, threads: int) -> None:
        if precision not in ("bf16", "fp32"):
            raise ValueError(f"spike: no precision {precision}; choose bf16 or fp32")
        numba.set_num_threads(threads)
        self.precision, self.nth = precision, threads
        self.bf = precision == "bf16"
        self.eb = 2 if self.bf else 4
        self.k = common.load("bf16" if self.bf else "f32")
        self._scratch = aligned((threads * SCRATCH,), U8, zero=True)
        self.ws = address(self._scratch)
        self._reductions = aligned((1 << 20,), U8)
        self.ws2 = address(self._reductions)
        self._inside = aligned((1 << 20,), U8)  # what lives within one op only
        self._places: dict[Param, int] = {}
        self._weights: dict[tuple[Param, ...], _Weights] = {}
        self._shadow: Array | None = None  # (P,) of the whole flat buffer, once adamw has made it
        self._shadow_of: tuple[int, int] = (0, 0)  # the flat buffer's first and last address
        self._shadow_version = -1
        self._last: Array | None = None  # the last gradient returned, with its bf16 twin behind it

    def backend(self) -> Backend:
        """Return the table."""
        ops = {
            "embedding": OpOffer(
                Op(self.embedding, self.embedding_backward), _accepts("array:int32", P)
            ),
            "add": OpOffer(Op(self.add, self.add_backward), _accepts(A, A)),
            "attention_block": OpOffer(
                Op(self.attention_block, self.attention_block_backward), _accepts_attention
            ),
            "mlp_block": OpOffer(Op(self.mlp_block, self.mlp_block_backward), _accepts_mlp),
            "head_loss": OpOffer(
                Op(self.head_loss, self.head_loss_backward),
                _accepts(A, P, "none", P, "array:int32", A, norm="layer", eps=1e-5),
            ),
        }
        flat = {"squared_norm": self.squared_norm, "adamw": self.adamw}
        return Backend(ops, flat, self.precision)

    # ---- addresses

    def _at(self, param: Param) -> int:
        """The address of a parameter's float32 values."""
        place = self._places.get(param)
        if place is None:
            place = self._places[param] = address(param.array)
        return place

    def _read(self, *params: Param) -> int:
        """The address of matrices, one below the other, as the multiplies read them."""
        found = self._weights.get(params)
        if found is None:
            found = self._weights[params] = self._place(params)
        if found.parts:
            version = params[0].version
            if version != found.version and not (
                found.shadowed and version == self._shadow_version
            ):
                for source, target, size in found.parts:
                    (self.k.cvt if self.bf else _copy)(self.nth, source, target, size)
                found.version = version
        return found.address

    def _place(self, params: tuple[Param, ...]) -> _Weights:
        values = [param.array for param in params]
        starts = [address(value) for value in values]
        adjacent = all(
            a + v.nbytes == b for a, b, v in zip(starts, starts[1:], values, strict=False)
        )
        if not self.bf and adjacent:
            return _Weights(starts[0], [])
        first, last = self._shadow_of
        shadowed = self._shadow is not None and adjacent and first <= starts[0] < last
        if shadowed:
            to, copy = address(self._shadow) + (starts[0] - first) // 2, self._shadow
        else:
            size = sum(value.size for value in values)
            copy = aligned((size,), np.uint16 if self.bf else F32)
            to = address(copy)
        parts, at = [], to
        for start, value in zip(starts, values, strict=True):
            parts.append((start, at, value.size))
            at += value.size * self.eb
        return _Weights(to, parts, copy, shadowed)

    def _temporary(self, nbytes: int) -> int:
        """The address of memory for the rest of this op."""
        if nbytes > self._inside.nbytes:
            self._inside = aligned((nbytes,), U8)
        return address(self._inside)

    def _mm(self, mode, A, lda, B, ldb, M, N, K, epi, C1, ld1, C2=0, ld2=0):
        self.k.gemm(
            self.nth, mode[0], A, lda, mode[1], B, ldb, M, N, K, epi, C1, ld1, C2, ld2, 0,
            self.ws, SCRATCH, BLOCK, PANEL,
        )  # fmt: skip

    # ---- parameter gradients

    def _dw(
        self, grads: Gradients, param: Param, dy: int, ldy: int, x: int, ldx: int, tokens: int
    ) -> None:
        """The gradient of one matrix, dy' x."""
        place = grads.into(param)
        if place is None:
            return
        rows, columns = param.shape
        epilogue = ADD if place[1] else OVERWRITE
        out = address(place[0])
        self._mm(WEIGHT_GRADIENT, dy, ldy, x, ldx, rows, columns, tokens, epilogue, out, columns)

    def _dw_together(
        self, grads: Gradients, params: tuple[Param, ...], dy: int, x: int, c: int, tokens: int
    ) -> None:
        """The gradients of (c, c) matrices side by side: one multiply where they lie so."""
        places = [grads.into(param) for param in params]
        width = len(params) * c
        ats = [None if place is None else (address(place[0]), place[1]) for place in places]
        first = ats[0]
        size = 4 * c * c
        if first is not None and all(
            at == (first[0] + i * size, first[1]) for i, at in enumerate(ats)
        ):
            epilogue = ADD if first[1] else OVERWRITE
            self._mm(WEIGHT_GRADIENT, dy, width, x, c, width, c, tokens, epilogue, first[0], c)
            return
        for i, at in enumerate(ats):
            if at is not None:
                epilogue = ADD if at[1] else OVERWRITE
                part = dy + self.eb * i * c
                self._mm(WEIGHT_GRADIENT, part, width, x, c, c, c, tokens, epilogue, at[0], c)

    def _norm_backward(
        self, ctx: Context, grads: Gradients, weight: Param, dy: int, x: Array, mean: int,
        rstd: int, residual: int,
    ) -> Array:  # fmt: skip
        """The gradient of x: the norm's, plus `residual` where it is not 0; a bf16 twin behind."""
        n, c = x.shape
        size = 4 * n * c
        raw = ctx.workspace.take((size + 2 * n * c if self.bf else size,), U8)
        dx = raw[:size].view(F32).reshape(n, c)
        at = address(raw)
        place = grads.into(weight)
        if place is None:
            gain, accumulate = self.ws2 + (1 << 19), False  # a frozen gain's goes nowhere
        else:
            gain, accumulate = address(place[0]), place[1]
        twin = at + size if self.bf else 0
        self.k.ln_bwd(
            self.nth, dy, address(x), self._at(weight), mean, rstd, residual, at, twin, n, c,
            gain, 0, accumulate, self.ws2,
        )  # fmt: skip
        self._last = dx
        return dx

    def _as_stored(self, ctx: Context, dout: Array) -> tuple[int, Array | None]:
        """The address of dout in the kernels' precision, and what keeps it alive."""
        if not self.bf:
            return address(dout), None
        last, self._last = self._last, None
        if last is dout:  # arrays are not changed once they are handed on: the twin still holds
            return address(dout) + dout.nbytes, None
        copy = ctx.workspace.take(dout.shape, np.dtype(np.uint16))
        at = address(copy)
        self.k.cvt(self.nth, address(dout), at, dout.size)
        return at, copy

    # ---- ops

    def embedding(self, ctx: Context, ids: Array, table: Param) -> tuple[Array, Any]:
        n, (v, c) = ids.size, table.shape
        out = ctx.workspace.take((n, c), F32)
        bad = common.gather(self.nth, address(ids), self._at(table), address(out), n, v, c)
        if bad:
            raise SplitbitError(f"{table.name}: {bad} ids are outside 0 .. {v - 1}")
        return out, (ids, table)

    def embedding_backward(
        self, ctx: Context, dout: Array, saved: Any, grads: Gradients
    ) -> tuple[Array | None, ...]:
        ids, table = saved
        place = grads.into(table)
        if place is not None:
            v, c = table.shape
            common.scatter(
                self.nth, address(ids), address(dout), address(place[0]), ids.size, v, c, place[1]
            )
        return ()

    def add(self, ctx: Context, x: Array, y: Array) -> tuple[Array, Any]:
        out = ctx.workspace.take(x.shape, F32)
        common.add(self.nth, address(x), address(y), address(out), x.size)
        return out, None

    def add_backward(
        self, ctx: Context, dout: Array, saved: Any, grads: Gradients
    ) -> tuple[Array | None, ...]:
        return dout, dout

    def attention_block(
        self, ctx: Context, x: Array, positions: Array, starts: Array, norm_weight: Param,
        norm_bias: None, wq: Param, wk: Param, wv: Param, wo: Param, bq: None, bk: None,
        bv: None, bo: None, cache: None, *, norm: str, eps: float, heads: int, kv_heads: int,
        rotary_base: None, dropout: float, site: int,
    ) -> tuple[Array, Any]:  # fmt: skip
        n, c = x.shape
        if c // heads % 32 or c % heads:
            raise SplitbitError(f"spike: head size {c / heads}; multiples of 32 only")
        k, nth, act = self.k, self.nth, _up(self.eb * n * c)
        row = _up(4 * n)
        memory = ctx.workspace.take((5 * act + (2 + heads) * row,), U8)
        xn = address(memory)
        qkv, y, mean = xn + act, xn + 4 * act, xn + 5 * act
        rstd, lse = mean + row, mean + 2 * row
        out = ctx.workspace.take((n, c), F32)
        at = address(x)
        sequences = starts.size - 1
        k.ln_fwd(nth, at, self._at(norm_weight), 0, xn, mean, rstd, n, c)
        self._mm(FORWARD, xn, c, self._read(wq, wk, wv), c, n, 3 * c, c, STORE, qkv, 3 * c)
        k.attn_fwd(
            nth, qkv, y, lse, address(starts), sequences, heads, c // heads, self.ws, SCRATCH
        )
        self._mm(FORWARD, y, c, self._read(wo), c, n, c, c, RESIDUAL, address(out), c, at, c)
        if not ctx.grad:
            return out, None
        return out, (x, starts, norm_weight, wq, wk, wv, wo, heads, memory)

    def attention_block_backward(
        self, ctx: Context, dout: Array, saved: Any, grads: Gradients
    ) -> tuple[Array | None, ...]:
        x, starts, norm_weight, wq, wk, wv, wo, heads, memory = saved
        n, c = x.shape
        act, row = _up(self.eb * n * c), _up(4 * n)
        xn = address(memory)
        qkv, y, mean = xn + act, xn + 4 * act, xn + 5 * act
        rstd, lse = mean + row, mean + 2 * row
        dy = self._temporary(4 * act + 4 * n * c)
        dqkv, dxn = dy + act, dy + 4 * act
        d, _twin = self._as_stored(ctx, dout)
        self._dw(grads, wo, d, c, y, c, n)
        self._mm(INPUT_GRADIENT, d, c, self._read(wo), c, n, c, c, STORE, dy, c)
        self.k.attn_bwd(
            self.nth, qkv, y, dy, lse, dqkv, address(starts), starts.size - 1, heads, c // heads,
            self.ws, SCRATCH,
        )  # fmt: skip
        self._dw_together(grads, (wq, wk, wv), dqkv, xn, c, n)
        w = self._read(wq, wk, wv)
        self._mm(INPUT_GRADIENT, dqkv, 3 * c, w, c, n, c, 3 * c, OVERWRITE, dxn, c)
        return (self._norm_backward(ctx, grads, norm_weight, dxn, x, mean, rstd, address(dout)),)

    def mlp_block(
        self, ctx: Context, x: Array, norm_weight: Param, norm_bias: None, gate: None,
        up: Param, down: Param, up_bias: None, down_bias: None, *, norm: str, eps: float,
        activation: str, dropout: float, site: int,
    ) -> tuple[Array, Any]:  # fmt: skip
        n, c = x.shape
        hidden = up.shape[0]
        narrow, wide, row = _up(self.eb * n * c), _up(self.eb * n * hidden), _up(4 * n)
        memory = ctx.workspace.take((narrow + 2 * wide + 2 * row,), U8)
        xn = address(memory)
        pre = xn + narrow
        act, mean = pre + wide, pre + 2 * wide
        rstd = mean + row
        out = ctx.workspace.take((n, c), F32)
        at = address(x)
        self.k.ln_fwd(self.nth, at, self._at(norm_weight), 0, xn, mean, rstd, n, c)
        self._mm(FORWARD, xn, c, self._read(up), c, n, hidden, c, GELU, act, hidden, pre, hidden)
        self._mm(
            FORWARD, act, hidden, self._read(down), hidden, n, c, hidden, RESIDUAL, address(out),
            c, at, c,
        )  # fmt: skip
        if not ctx.grad:
            return out, None
        return out, (x, norm_weight, up, down, memory)

    def mlp_block_backward(
        self, ctx: Context, dout: Array, saved: Any, grads: Gradients
    ) -> tuple[Array | None, ...]:
        x, norm_weight, up, down, memory = saved
        n, c = x.shape
        hidden = up.shape[0]
        narrow, wide, row = _up(self.eb * n * c), _up(self.eb * n * hidden), _up(4 * n)
        xn = address(memory)
        pre = xn + narrow
        act, mean = pre + wide, pre + 2 * wide
        dpre = self._temporary(wide + 4 * n * c)
        dxn = dpre + wide
        d, _twin = self._as_stored(ctx, dout)
        self._dw(grads, down, d, c, act, hidden, n)
        w = self._read(down)
        self._mm(
            INPUT_GRADIENT, d, c, w, hidden, n, hidden, c, GELU_GRADIENT, dpre, hidden, pre, hidden
        )
        self._dw(grads, up, dpre, hidden, xn, c, n)
        w = self._read(up)
        self._mm(INPUT_GRADIENT, dpre, hidden, w, c, n, c, hidden, OVERWRITE, dxn, c)
        return (
            self._norm_backward(ctx, grads, norm_weight, dxn, x, mean, mean + row, address(dout)),
        )

    def head_loss(
        self, ctx: Context, x: Array, norm_weight: Param, norm_bias: None, head: Param,
        targets: Array, weights: Array, *, norm: str, eps: float,
    ) -> tuple[Array, Any]:  # fmt: skip
        n, c = x.shape
        v = head.shape[0]
        padded = -(-v // 32) * 32
        act, row = _up(self.eb * n * c), _up(4 * n)
        memory = ctx.workspace.take((act + 2 * row + self.eb * n * padded,), U8)
        xn = address(memory)
        mean = xn + act
        rstd, dlogits = mean + row, mean + 2 * row
        logits = self._temporary(4 * n * padded)
        nll = ctx.workspace.take((n,), F32)
        self.k.ln_fwd(self.nth, address(x), self._at(norm_weight), 0, xn, mean, rstd, n, c)
        self._mm(FORWARD, xn, c, self._read(head), c, n, v, c, OVERWRITE, logits, padded)
        bad = self.k.ce(
            self.nth, logits, padded, address(targets), dlogits, padded, address(nll), n, v,
            address(weights),
        )  # fmt: skip
        if bad:
            raise SplitbitError(f"{bad} targets are outside 0 .. {v - 1}")
        if not ctx.grad:
            return nll, None
        return nll, (x, norm_weight, head, memory)

    def head_loss_backward(
        self, ctx: Context, dout: Array, saved: Any, grads: Gradients
    ) -> tuple[Array | None, ...]:
        x, norm_weight, head, memory = saved
        n, c = x.shape
        v = head.shape[0]
        padded = -(-v // 32) * 32
        act, row = _up(self.eb * n * c), _up(4 * n)
        xn = address(memory)
        mean = xn + act
        rstd, dlogits = mean + row, mean + 2 * row
        dxn = self._temporary(4 * n * c)
        self._dw(grads, head, dlogits, padded, xn, c, n)
        self._mm(INPUT_GRADIENT, dlogits, padded, self._read(head), c, n, c, v, OVERWRITE, dxn, c)
        dx = self._norm_backward(ctx, grads, norm_weight, dxn, x, mean, rstd, 0)
        return dx, None  # the weights of the loss have no gradient

    # ---- flat buffers

    def squared_norm(self, x: Array) -> float:
        return float(common.sumsq(self.nth, address(x), x.size))

    def adamw(
        self, params: Parameters, grads: Array, m: Array, v: Array, *, step: int, lr: float,
        beta1: float, beta2: float, eps: float, weight_decay: float, grad_scale: float,
    ) -> None:  # fmt: skip
        values = params.values
        first = address(values)
        if self.bf and self._shadow_of[0] != first:
            self._shadow = aligned(values.shape, np.uint16, zero=True)
            self._shadow_of = (first, first + values.nbytes)
            self._weights.clear()  # to be found again, in the shadow
        common.adamw(
            self.nth, first, address(grads), address(m), address(v),
            address(self._shadow) if self._shadow is not None else 0, values.size, params.decayed,
            grad_scale, lr, beta1, beta2, eps, weight_decay, float(step), self.bf,
        )  # fmt: skip
        self._shadow_version = params.version + 1


def _copy(threads: int, source: int, target: int, size: int) -> None:
    import ctypes

    ctypes.memmove(target, source, 4 * size)


# ---- which sites are served

A, P = "array:float32", "param:float32"


def _accepts(*operands: str, **static: Any) -> Callable[[Site], str | None]:
    def decide(site: Site) -> str | None:
        for served, kind in zip(operands, site.operands, strict=True):
            if kind != served:
                return f"{kind} where {served} is served"
        for name, value in site.static:
            if name not in static or static[name] not in (value, any):
                return f"{name}={value!r} is not served"
        return None

    return decide


_attention_operands = _accepts(
    A, "array:int32", "array:int32", P, "none", P, P, P, P, *["none"] * 5,
    norm="layer", eps=1e-5, heads=any, kv_heads=any, rotary_base=None, dropout=0.0, site=any,
)  # fmt: skip
_accepts_mlp = _accepts(
    A, P, "none", "none", P, P, "none", "none",
    norm="layer", eps=1e-5, activation="gelu", dropout=0.0, site=any,
)  # fmt: skip


def _accepts_attention(site: Site) -> str | None:
    static = dict(site.static)
    if static.get("heads") != static.get("kv_heads"):
        return "grouped queries are not served"
    return _attention_operands(site)
