"""Side A of the spike: a GPT training step that calls the kernels on fixed addresses, nothing else.

Throwaway. The flat layout is that of `splitbit_kit.engine.params.ParameterStore`, so that values
and gradients of both sides can be compared entry by entry.
"""

from __future__ import annotations

from typing import Any

import common
import numpy as np

from splitbit_kit.engine.params import ParameterStore
from splitbit_kit.engine.workspace import aligned
from splitbit_kit.models.config import ModelConfig

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = (0, 0), (0, 1), (1, 1)  # how gemm reads A and B
SCRATCH = 8 << 20  # bytes a thread: packed panels
OVERWRITE, ADD, STORE, GELU, RESIDUAL, GELU_GRADIENT = range(6)  # gemm epilogues
BLOCK, PANEL = 192, (1 << 20) + 1  # gemm: depth of a k block, bytes of packed A (odd: prefetch)


class Buffer:
    """An array whose address is known."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.a = aligned(shape, dtype, zero=True)
        self.p = self.a.ctypes.data
        self.ld = shape[-1]


class Bare:
    """The whole step of one model. params gives the layout and the first values."""

    def __init__(
        self,
        config: ModelConfig,
        vocabulary: int,
        batch: int,
        seq_len: int,
        params: ParameterStore,
        kind: str,
        threads: int,
    ) -> None:
        self.k = common.load(kind)
        self.nth, self.bf = threads, kind == "bf16"
        self.eb = 2 if self.bf else 4
        act = np.uint16 if self.bf else np.float32
        self.L, self.H, self.D, self.F = config.layers, config.heads, config.width, config.hidden
        self.V, self.B, self.T, self.M = vocabulary, batch, seq_len, batch * seq_len
        size = params.values.size
        self.n, self.nd = size, params.decayed
        self.P, self.G, self.m, self.v = (Buffer((size,), np.float32) for _ in range(4))
        self.P.a[:] = params.values
        self.PB = Buffer((size,), np.uint16) if self.bf else self.P
        base = params.values.ctypes.data
        self.at = {p.name: (p.array.ctypes.data - base) // 4 for p in params}
        self.part = np.zeros(64)
        self.count = 0
        self.ws = Buffer((threads * SCRATCH,), np.uint8)
        self.ws2 = Buffer((64 * self.D,), np.uint8)

        def f(*shape: int) -> Buffer:
            return Buffer(shape, np.float32)

        def a(*shape: int) -> Buffer:
            return Buffer(shape, act)

        M, D, F = self.M, self.D, self.F
        self.layers = [
            dict(  # noqa: C408
                x=f(M, D), m1=f(M), r1=f(M), xn1=a(M, D), qkv=a(M, 3 * D), lse=f(self.H * M),
                y=a(M, D), xm=f(M, D), m2=f(M), r2=f(M), xn2=a(M, D), pre=a(M, F), act=a(M, F),
            )
            for _ in range(self.L)
        ]  # fmt: skip
        self.xf, self.mf, self.rf, self.xnf = f(M, D), f(M), f(M), a(M, D)
        padded = -(-vocabulary // 32) * 32
        self.logits, self.dlog, self.loss = f(M, padded), a(M, padded), f(M)
        self.dres = f(M, D)
        self.dresb = a(M, D) if self.bf else self.dres
        self.dpre, self.dxn, self.dy, self.dqkv = a(M, F), f(M, D), a(M, D), a(M, 3 * D)
        self.ids, self.targets = Buffer((M,), np.int32), Buffer((M,), np.int32)
        self.starts = Buffer((batch + 1,), np.int32)
        self.starts.a[:] = np.arange(batch + 1) * seq_len
        self.weights = f(M)
        self.weights.a[:] = 1.0 / M
        if self.bf:
            self.k.cvt(threads, self.P.p, self.PB.p, size)

    def p(self, name: str) -> int:
        return self.P.p + 4 * self.at[name]

    def w(self, name: str) -> int:
        return self.PB.p + self.eb * self.at[name]

    def g(self, name: str) -> int:
        return self.G.p + 4 * self.at[name]

    def mm(self, mode, A, lda, B, ldb, M, N, K, epi, C1, ld1, C2=0, ld2=0):
        self.k.gemm(
            self.nth, mode[0], A, lda, mode[1], B, ldb, M, N, K, epi, C1, ld1, C2, ld2, 0,
            self.ws.p, SCRATCH, BLOCK, PANEL,
        )  # fmt: skip

    def forward(self) -> None:
        k, nth, M, D, F = self.k, self.nth, self.M, self.D, self.F
        x = self.layers[0]["x"]
        common.embed_fwd(
            nth, self.ids.p, self.p("tok.weight"), self.p("pos.weight"), x.p, M, self.T, D
        )
        for i, b in enumerate(self.layers):
            h = f"layers.{i}."
            k.ln_fwd(
                nth,
                b["x"].p,
                self.p(h + "attn_norm.weight"),
                0,
                b["xn1"].p,
                b["m1"].p,
                b["r1"].p,
                M,
                D,
            )
            self.mm(
                FORWARD,
                b["xn1"].p,
                D,
                self.w(h + "attn.q.weight"),
                D,
                M,
                3 * D,
                D,
                STORE,
                b["qkv"].p,
                3 * D,
            )
            k.attn_fwd(
                nth,
                b["qkv"].p,
                b["y"].p,
                b["lse"].p,
                self.starts.p,
                self.B,
                self.H,
                D // self.H,
                self.ws.p,
                SCRATCH,
            )
            self.mm(
                FORWARD,
                b["y"].p,
                D,
                self.w(h + "attn.o.weight"),
                D,
                M,
                D,
                D,
                RESIDUAL,
                b["xm"].p,
                D,
                b["x"].p,
                D,
            )
            k.ln_fwd(
                nth,
                b["xm"].p,
                self.p(h + "mlp_norm.weight"),
                0,
                b["xn2"].p,
                b["m2"].p,
                b["r2"].p,
                M,
                D,
            )
            self.mm(
                FORWARD,
                b["xn2"].p,
                D,
                self.w(h + "mlp.up.weight"),
                D,
                M,
                F,
                D,
                GELU,
                b["act"].p,
                F,
                b["pre"].p,
                F,
            )
            out = self.layers[i + 1]["x"] if i + 1 < self.L else self.xf
            self.mm(
                FORWARD,
                b["act"].p,
                F,
                self.w(h + "mlp.down.weight"),
                F,
                M,
                D,
                F,
                RESIDUAL,
                out.p,
                D,
                b["xm"].p,
                D,
            )
        k.ln_fwd(nth, self.xf.p, self.p("norm.weight"), 0, self.xnf.p, self.mf.p, self.rf.p, M, D)
        self.mm(
            FORWARD,
            self.xnf.p,
            D,
            self.w("tok.weight"),
            D,
            M,
            self.V,
            D,
            OVERWRITE,
            self.logits.p,
            self.logits.ld,
        )
        k.ce(
            nth,
            self.logits.p,
            self.logits.ld,
            self.targets.p,
            self.dlog.p,
            self.dlog.ld,
            self.loss.p,
            M,
            self.V,
            self.weights.p,
        )

    def backward(self) -> None:
        k, nth, M, D, F = self.k, self.nth, self.M, self.D, self.F
        dl, R, Rb = self.dlog, self.dres.p, self.dresb.p
        rb = Rb if self.bf else 0
        self.mm(
            WEIGHT_GRADIENT,
            dl.p,
            dl.ld,
            self.xnf.p,
            D,
            self.V,
            D,
            M,
            OVERWRITE,
            self.g("tok.weight"),
            D,
        )
        self.mm(
            INPUT_GRADIENT,
            dl.p,
            dl.ld,
            self.w("tok.weight"),
            D,
            M,
            D,
            self.V,
            OVERWRITE,
            self.dxn.p,
            D,
        )
        k.ln_bwd(
            nth,
            self.dxn.p,
            self.xf.p,
            self.p("norm.weight"),
            self.mf.p,
            self.rf.p,
            0,
            R,
            rb,
            M,
            D,
            self.g("norm.weight"),
            0,
            False,
            self.ws2.p,
        )
        for i in range(self.L - 1, -1, -1):
            b, h = self.layers[i], f"layers.{i}."
            self.mm(
                WEIGHT_GRADIENT,
                Rb,
                D,
                b["act"].p,
                F,
                D,
                F,
                M,
                OVERWRITE,
                self.g(h + "mlp.down.weight"),
                F,
            )
            self.mm(
                INPUT_GRADIENT,
                Rb,
                D,
                self.w(h + "mlp.down.weight"),
                F,
                M,
                F,
                D,
                GELU_GRADIENT,
                self.dpre.p,
                F,
                b["pre"].p,
                F,
            )
            self.mm(
                WEIGHT_GRADIENT,
                self.dpre.p,
                F,
                b["xn2"].p,
                D,
                F,
                D,
                M,
                OVERWRITE,
                self.g(h + "mlp.up.weight"),
                D,
            )
            self.mm(
                INPUT_GRADIENT,
                self.dpre.p,
                F,
                self.w(h + "mlp.up.weight"),
                D,
                M,
                D,
                F,
                OVERWRITE,
                self.dxn.p,
                D,
            )
            k.ln_bwd(
                nth,
                self.dxn.p,
                b["xm"].p,
                self.p(h + "mlp_norm.weight"),
                b["m2"].p,
                b["r2"].p,
                R,
                R,
                rb,
                M,
                D,
                self.g(h + "mlp_norm.weight"),
                0,
                False,
                self.ws2.p,
            )
            self.mm(
                WEIGHT_GRADIENT,
                Rb,
                D,
                b["y"].p,
                D,
                D,
                D,
                M,
                OVERWRITE,
                self.g(h + "attn.o.weight"),
                D,
            )
            self.mm(
                INPUT_GRADIENT, Rb, D, self.w(h + "attn.o.weight"), D, M, D, D, STORE, self.dy.p, D
            )
            k.attn_bwd(
                nth,
                b["qkv"].p,
                b["y"].p,
                self.dy.p,
                b["lse"].p,
                self.dqkv.p,
                self.starts.p,
                self.B,
                self.H,
                D // self.H,
                self.ws.p,
                SCRATCH,
            )
            self.mm(
                WEIGHT_GRADIENT,
                self.dqkv.p,
                3 * D,
                b["xn1"].p,
                D,
                3 * D,
                D,
                M,
                OVERWRITE,
                self.g(h + "attn.q.weight"),
                D,
            )
            self.mm(
                INPUT_GRADIENT,
                self.dqkv.p,
                3 * D,
                self.w(h + "attn.q.weight"),
                D,
                M,
                D,
                3 * D,
                OVERWRITE,
                self.dxn.p,
                D,
            )
            k.ln_bwd(
                nth,
                self.dxn.p,
                b["x"].p,
                self.p(h + "attn_norm.weight"),
                b["m1"].p,
                b["r1"].p,
                R,
                R,
                rb,
                M,
                D,
                self.g(h + "attn_norm.weight"),
                0,
                False,
                self.ws2.p,
            )
        common.embed_bwd(
            nth, self.ids.p, R, self.g("tok.weight"), self.g("pos.weight"), M, self.T, D
        )

    def step(self) -> float:
        """Make one optimizer step; return the gradient's norm."""
        self.forward()
        self.backward()
        self.count += 1
        return common.clip_adamw(
            self.nth, self.P.p, self.G.p, self.m.p, self.v.p, self.PB.p, self.n, self.nd,
            1.0, 1e-3, 0.9, 0.99, 1e-8, 0.1, float(self.count), self.bf, self.part,
        )  # fmt: skip
