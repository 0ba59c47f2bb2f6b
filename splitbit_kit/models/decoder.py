"""The decoder-only transformer of both families, forward only: the tape does the way back.

Shapes: N tokens (all sequences, one after another), C width, H heads, K key/value heads, D head
size, V vocabulary, F hidden. Radford et al. 2019 (GPT-2); Touvron et al. 2023,
https://arxiv.org/abs/2302.13971 (Llama).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Protocol

import numpy as np

from splitbit_kit.api import KVCache, Ops, Param
from splitbit_kit.engine.params import ParameterStore, ParamSpec
from splitbit_kit.models.config import ModelConfig

Array = np.ndarray[Any, np.dtype[Any]]


class Batch(Protocol):
    """Tokens that go through a model together."""

    @property
    def ids(self) -> Array:  # (N,)
        """Token ids, sequence after sequence."""

    @property
    def positions(self) -> Array:  # (N,)
        """Each token's place in its sequence."""

    @property
    def starts(self) -> Array:  # (S + 1,)
        """Where each sequence begins, and N."""


def parameter_specs(config: ModelConfig, vocabulary: int) -> list[ParamSpec]:
    """Return every parameter with its shape and initialisation.

    Normal with deviation 0.02; the two projections that end a block are scaled down by
    sqrt(2 layers), since that many of them add up in the residual stream (GPT-2).
    """
    c, f = config.width, config.hidden
    kv = config.kv_heads * config.head_size
    last = 0.02 / sqrt(2 * config.layers)
    layer_norm = config.family == "gpt2"
    specs: list[ParamSpec] = []

    def matrix(name: str, rows: int, columns: int, std: float = 0.02) -> None:
        hidden = name.startswith("layers.")
        specs.append(
            ParamSpec(f"{name}.weight", (rows, columns), std=std, decay=True, hidden=hidden)
        )
        if config.bias and hidden:
            specs.append(ParamSpec(f"{name}.bias", (rows,)))

    def norm(name: str) -> None:
        specs.append(ParamSpec(f"{name}.weight", (c,), fill=1.0))
        if config.bias and layer_norm:
            specs.append(ParamSpec(f"{name}.bias", (c,)))

    matrix("tok", vocabulary, c)
    if layer_norm:
        matrix("pos", config.context, c)
    for i in range(config.layers):
        layer = f"layers.{i}"
        norm(f"{layer}.attn_norm")
        matrix(f"{layer}.attn.q", c, c)
        matrix(f"{layer}.attn.k", kv, c)
        matrix(f"{layer}.attn.v", kv, c)
        matrix(f"{layer}.attn.o", c, c, last)
        norm(f"{layer}.mlp_norm")
        if config.family == "llama":
            matrix(f"{layer}.mlp.gate", f, c)
        matrix(f"{layer}.mlp.up", f, c)
        matrix(f"{layer}.mlp.down", c, f, last)
    norm("norm")
    if not config.tied:
        matrix("head", vocabulary, c)
    return specs


@dataclass(frozen=True)
class Layer:
    """One layer's handles, named as the blocks in `splitbit_kit.api.ops` name them."""

    attn_norm: Param
    attn_norm_bias: Param | None
    wq: Param
    wk: Param
    wv: Param
    wo: Param
    bq: Param | None
    bk: Param | None
    bv: Param | None
    bo: Param | None
    mlp_norm: Param
    mlp_norm_bias: Param | None
    gate: Param | None
    up: Param
    down: Param
    up_bias: Param | None
    down_bias: Param | None

    @classmethod
    def of(cls, params: ParameterStore, i: int) -> Layer:
        """Return the handles of layer i."""
        must, may = params.__getitem__, params.get
        attn, mlp = f"layers.{i}.attn", f"layers.{i}.mlp"
        return cls(
            attn_norm=must(f"{attn}_norm.weight"),
            attn_norm_bias=may(f"{attn}_norm.bias"),
            wq=must(f"{attn}.q.weight"),
            wk=must(f"{attn}.k.weight"),
            wv=must(f"{attn}.v.weight"),
            wo=must(f"{attn}.o.weight"),
            bq=may(f"{attn}.q.bias"),
            bk=may(f"{attn}.k.bias"),
            bv=may(f"{attn}.v.bias"),
            bo=may(f"{attn}.o.bias"),
            mlp_norm=must(f"{mlp}_norm.weight"),
            mlp_norm_bias=may(f"{mlp}_norm.bias"),
            gate=may(f"{mlp}.gate.weight"),
            up=must(f"{mlp}.up.weight"),
            down=must(f"{mlp}.down.weight"),
            up_bias=may(f"{mlp}.up.bias"),
            down_bias=may(f"{mlp}.down.bias"),
        )


class Decoder:
    """A model: its shape and its handles. Every method is a plain sequence of op calls."""

    def __init__(self, config: ModelConfig, params: ParameterStore) -> None:
        self.config = config
        self.params = params
        self.tok = params["tok.weight"]
        self.pos = params.get("pos.weight")
        self.layers = [Layer.of(params, i) for i in range(config.layers)]
        self.final_norm = params["norm.weight"]
        self.final_norm_bias = params.get("norm.bias")
        self.head = self.tok if config.tied else params["head.weight"]
        self.norm = "layer" if config.family == "gpt2" else "rms"
        self.activation = "gelu" if config.family == "gpt2" else "swiglu"
        self.rotary_base = config.rotary_base if config.family == "llama" else None

    def hidden(
        self,
        ops: Ops,
        batch: Batch,
        caches: Sequence[KVCache] | None = None,
        train: bool = False,
    ) -> Array:  # -> (N, C)
        """The residual stream after the last layer, before the final norm."""
        config = self.config
        rate = config.dropout if train else 0.0
        x = ops.embedding(batch.ids, self.tok)
        if self.pos is not None:
            x = ops.add(x, ops.embedding(batch.positions, self.pos))
        if rate:
            x = ops.dropout(x, rate=rate, site=0)
        for i, p in enumerate(self.layers):
            x = ops.attention_block(
                x,
                batch.positions,
                batch.starts,
                p.attn_norm,
                p.attn_norm_bias,
                p.wq,
                p.wk,
                p.wv,
                p.wo,
                p.bq,
                p.bk,
                p.bv,
                p.bo,
                caches[i] if caches else None,
                norm=self.norm,
                eps=config.norm_eps,
                heads=config.heads,
                kv_heads=config.kv_heads,
                rotary_base=self.rotary_base,
                dropout=rate,
                site=2 * i + 1 if rate else 0,
            )
            x = ops.mlp_block(
                x,
                p.mlp_norm,
                p.mlp_norm_bias,
                p.gate,
                p.up,
                p.down,
                p.up_bias,
                p.down_bias,
                norm=self.norm,
                eps=config.norm_eps,
                activation=self.activation,
                dropout=rate,
                site=2 * i + 2 if rate else 0,
            )
        return x

    def loss(
        self, ops: Ops, batch: Batch, targets: Array, weights: Array, train: bool = True
    ) -> Array:  # targets (N,), weights (N,) -> (N,)
        """Each token's negative log-likelihood in nats; the loss is sum(weights * nll)."""
        return ops.head_loss(
            self.hidden(ops, batch, train=train),
            self.final_norm,
            self.final_norm_bias,
            self.head,
            targets,
            weights,
            norm=self.norm,
            eps=self.config.norm_eps,
        )

    def logits(
        self,
        ops: Ops,
        batch: Batch,
        caches: Sequence[KVCache] | None = None,
        rows: Array | None = None,
    ) -> Array:  # -> (N or len(rows), V)
        """The next token's scores after each token, or after those in `rows` only."""
        x = self.hidden(ops, batch, caches)
        return ops.logits(
            x if rows is None else x[rows],
            self.final_norm,
            self.final_norm_bias,
            self.head,
            norm=self.norm,
            eps=self.config.norm_eps,
        )
