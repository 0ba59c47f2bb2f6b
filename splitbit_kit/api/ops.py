"""What every op means: its operands with their shapes, its static arguments, its mathematics.

This file is the one list of ops. A *primitive* is defined by its docstring, and the NumPy backend
(`plugins/splitbit_numpy_backend`) is its readable implementation. A *fused* op is defined by its
body, which makes it out of smaller ops: a backend may offer the whole, or none of it.

Positional arguments are operands (arrays, ids, parameters, a cache, or None where optional);
keyword arguments are static: plain values that are known when the model is built.

Shapes: N tokens (the rows of all sequences, one after another), C width, I inputs, O outputs,
V vocabulary, S sequences, H heads, D head size. Arrays that pass between ops are C-contiguous, in
the compute dtype (float32, or float64 for precision fp64); ids, positions and starts are int32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import Any, Concatenate, ParamSpec

import numpy as np

from splitbit_kit.api.backend import KVCache, Param

Array = np.ndarray[Any, np.dtype[Any]]
Arguments = ParamSpec("Arguments")
ACTIVATIONS = ("gelu", "swiglu")


@dataclass(frozen=True)
class OpSpec:
    """One op: the names of its operands and static arguments, and, if fused, its recipe."""

    name: str
    operands: tuple[str, ...]
    """in the order in which they are passed"""
    static: tuple[str, ...]
    defaults: Mapping[str, Any]
    """of static arguments; operands that are left out are None"""
    recipe: Callable[..., Array] | None
    """recipe(ops, *operands, **static) -> the result, made by smaller ops; None for a primitive"""
    doc: str

    @property
    def fused(self) -> bool:
        """Whether the op is defined by smaller ops."""
        return self.recipe is not None


def _op(
    recipe: Callable[Concatenate[Any, Arguments], Array], fused: bool
) -> Callable[Concatenate[Any, Arguments], Array]:
    parameters = list(signature(recipe).parameters.values())[1:]
    operands = tuple(p.name for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD)
    keywords = [p for p in parameters if p.kind is Parameter.KEYWORD_ONLY]
    static = {p.name: p.default for p in keywords if p.default is not Parameter.empty}
    names = tuple(p.name for p in keywords)
    doc = recipe.__doc__ or ""
    spec = OpSpec(recipe.__name__, operands, names, static, recipe if fused else None, doc)

    @wraps(recipe)
    def call(self: Any, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Array:
        missing = len(spec.operands) - len(args)
        if missing < 0:
            raise TypeError(f"{spec.name} takes the operands {spec.operands}, {-missing} less")
        filled = (*args, *(None,) * missing) if missing else args
        static: dict[str, Any] = kwargs
        if tuple(static) != spec.static:  # not all of them, or in another order
            given = {**spec.defaults, **static}
            if given.keys() != set(spec.static):
                raise TypeError(
                    f"{spec.name} takes the static arguments {spec.static}, not {tuple(given)}; "
                    "operands are positional"
                )
            static = {key: given[key] for key in spec.static}
        result: Array = self.call(spec, filled, static)
        return result

    call.spec = spec  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def primitive(
    method: Callable[Concatenate[Any, Arguments], Array],
) -> Callable[Concatenate[Any, Arguments], Array]:
    """Mark a method of `Ops` as an op that its docstring defines."""
    return _op(method, fused=False)


def fused(
    method: Callable[Concatenate[Any, Arguments], Array],
) -> Callable[Concatenate[Any, Arguments], Array]:
    """Mark a method of `Ops` as an op that its body, in smaller ops, defines."""
    return _op(method, fused=True)


class Ops:
    """The ops a model may call. A subclass decides what a call does: run, record, or plan it."""

    def call(self, spec: OpSpec, operands: tuple[Any, ...], static: dict[str, Any]) -> Array:
        """Carry out one op. Operands that were left out are None."""
        raise NotImplementedError

    # ---- primitives

    @primitive
    def embedding(self, ids: Array, table: Param) -> Array:  # ids (N,), table (V, C) -> (N, C)
        """Row ids[n] of the table. An id outside 0 .. V-1 is an error."""
        raise NotImplementedError

    @primitive
    def layer_norm(
        self, x: Array, weight: Param, bias: Param | None = None, *, eps: float = 1e-5
    ) -> Array:  # x (N, C), weight (C,), bias (C,) -> (N, C)
        """(x - mean) / sqrt(variance + eps) * weight + bias, over each row; the variance is biased.

        Ba, Kiros and Hinton 2016, https://arxiv.org/abs/1607.06450.
        """
        raise NotImplementedError

    @primitive
    def rms_norm(
        self, x: Array, weight: Param, *, eps: float = 1e-5
    ) -> Array:  # x (N, C), weight (C,) -> (N, C)
        """x / sqrt(mean(x^2) + eps) * weight, over each row.

        Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467.
        """
        raise NotImplementedError

    @primitive
    def linear(
        self, x: Array, w: Param, b: Param | None = None
    ) -> Array:  # x (N, I), w (O, I), b (O,) -> (N, O)
        """x w' + b. The weight may be packed or low-rank (see `Param`)."""
        raise NotImplementedError

    @primitive
    def rotary(
        self, x: Array, positions: Array, *, heads: int, base: float = 10_000.0
    ) -> Array:  # x (N, H * D), positions (N,) -> (N, H * D)
        """Each head's two halves (a, b) turned by the angles t = position * base^(-2i / D).

        (a cos t - b sin t, b cos t + a sin t), i = 0 .. D/2 - 1: halves are rotated as Hugging
        Face's Llama does, not interleaved pairs. Angles are computed in float64. D must be even.
        Su et al. 2021, https://arxiv.org/abs/2104.09864.
        """
        raise NotImplementedError

    @primitive
    def attention(
        self,
        q: Array,
        k: Array,
        v: Array,
        starts: Array,
        cache: KVCache | None = None,
        *,
        heads: int,
        kv_heads: int,
    ) -> Array:  # q (N, H * D), k and v (N, K * D), starts (S + 1,) -> (N, H * D)
        """Causal attention within each sequence: softmax(q k' / sqrt(D)) v, head by head.

        Rows starts[s] .. starts[s + 1] - 1 are sequence s, which may be empty. Row i sees the rows
        of its own sequence up to itself, after all that `cache` already holds for that sequence;
        k and v are appended to the cache first. starts rises from 0 to N. Query head h reads key
        head h // (H / K): grouped-query attention, Ainslie et al. 2023,
        https://arxiv.org/abs/2305.13245. A cache goes with inference only.
        """
        raise NotImplementedError

    @primitive
    def gelu(self, x: Array) -> Array:  # (N, C) -> (N, C)
        """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): the tanh form of GPT-2 and llama.cpp.

        Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415.
        """
        raise NotImplementedError

    @primitive
    def swiglu(self, gate: Array, up: Array) -> Array:  # (N, C), (N, C) -> (N, C)
        """gate * sigmoid(gate) * up. Shazeer 2020, https://arxiv.org/abs/2002.05202."""
        raise NotImplementedError

    @primitive
    def add(self, x: Array, y: Array) -> Array:  # (N, C), (N, C) -> (N, C)
        """x + y."""
        raise NotImplementedError

    @primitive
    def dropout(self, x: Array, *, rate: float, site: int) -> Array:  # (N, C) -> (N, C)
        """x / (1 - rate) where an element is kept, else 0; every backend keeps the same elements.

        Element i, counted over the flattened (N, C) array, is kept where word i mod 4 of
        philox4x32-10(key = seed; counter = (i div 4, site, step, micro-batch)) >= floor(rate 2^32).
        The key's words are the seed's low and high 32 bits. `site` numbers the model's dropouts.
        Never called with rate 0, nor at inference. Salmon et al. 2011,
        https://doi.org/10.1145/2063384.2063405.
        """
        raise NotImplementedError

    @primitive
    def cross_entropy(self, logits: Array, targets: Array) -> Array:  # (N, V), (N,) -> (N,)
        """log(sum(exp(logits[n]))) - logits[n, targets[n]] in nats. Targets lie in 0 .. V-1."""
        raise NotImplementedError

    # ---- fused ops: the body is the definition

    @fused
    def attention_block(
        self,
        x: Array,  # (N, C)
        positions: Array,  # (N,)
        starts: Array,  # (S + 1,)
        norm_weight: Param,  # (C,)
        norm_bias: Param | None,
        wq: Param,  # (H * D, C)
        wk: Param,  # (K * D, C)
        wv: Param,  # (K * D, C)
        wo: Param,  # (C, H * D)
        bq: Param | None = None,
        bk: Param | None = None,
        bv: Param | None = None,
        bo: Param | None = None,
        cache: KVCache | None = None,
        *,
        norm: str,  # "layer" or "rms"
        eps: float = 1e-5,
        heads: int,
        kv_heads: int,
        rotary_base: float | None = None,  # None: positions are not rotated
        dropout: float = 0.0,
        site: int = 0,
    ) -> Array:  # -> (N, C)
        """x + dropout(out(attention(rotary(qkv(norm(x)))))): the first half of a decoder layer."""
        h = self.norm(x, norm_weight, norm_bias, norm=norm, eps=eps)
        q, k, v = self.linear(h, wq, bq), self.linear(h, wk, bk), self.linear(h, wv, bv)
        if rotary_base is not None:
            q = self.rotary(q, positions, heads=heads, base=rotary_base)
            k = self.rotary(k, positions, heads=kv_heads, base=rotary_base)
        a = self.attention(q, k, v, starts, cache, heads=heads, kv_heads=kv_heads)
        out = self.linear(a, wo, bo)
        if dropout:
            out = self.dropout(out, rate=dropout, site=site)
        return self.add(x, out)

    @fused
    def mlp_block(
        self,
        x: Array,  # (N, C)
        norm_weight: Param,  # (C,)
        norm_bias: Param | None,
        gate: Param | None,  # (hidden, C) for swiglu, None for gelu
        up: Param,  # (hidden, C)
        down: Param,  # (C, hidden)
        up_bias: Param | None = None,
        down_bias: Param | None = None,
        *,
        norm: str,  # "layer" or "rms"
        eps: float = 1e-5,
        activation: str,  # "gelu" or "swiglu"
        dropout: float = 0.0,
        site: int = 0,
    ) -> Array:  # -> (N, C)
        """x + dropout(down(act(up(norm(x))))): the second half of a decoder layer."""
        h = self.norm(x, norm_weight, norm_bias, norm=norm, eps=eps)
        if (activation == "swiglu") != (gate is not None) or activation not in ACTIVATIONS:
            raise ValueError(f"activation: gelu, or swiglu with a gate, not {activation!r}")
        if gate is not None:
            a = self.swiglu(self.linear(h, gate), self.linear(h, up, up_bias))
        else:
            a = self.gelu(self.linear(h, up, up_bias))
        out = self.linear(a, down, down_bias)
        if dropout:
            out = self.dropout(out, rate=dropout, site=site)
        return self.add(x, out)

    @fused
    def head_loss(
        self,
        x: Array,  # (N, C)
        norm_weight: Param,  # (C,)
        norm_bias: Param | None,
        head: Param,  # (V, C)
        targets: Array,  # (N,)
        weights: Array,  # (N,)
        *,
        norm: str,
        eps: float = 1e-5,
    ) -> Array:  # -> (N,)
        """Negative log-likelihood of each target, in nats; the loss is sum(weights * nll).

        The caller promises that the gradient of the result will be `weights`, so a backend may
        compute the gradient of x in the forward pass, in row chunks, and never hold all logits.
        """
        h = self.norm(x, norm_weight, norm_bias, norm=norm, eps=eps)
        return self.cross_entropy(self.linear(h, head), targets)

    @fused
    def logits(
        self,
        x: Array,  # (N, C)
        norm_weight: Param,  # (C,)
        norm_bias: Param | None,
        head: Param,  # (V, C)
        *,
        norm: str,
        eps: float = 1e-5,
    ) -> Array:  # -> (N, V)
        """The next token's scores, before softmax."""
        return self.linear(self.norm(x, norm_weight, norm_bias, norm=norm, eps=eps), head)

    # ---- not an op: which of the two norms

    def norm(self, x: Array, weight: Param, bias: Param | None, *, norm: str, eps: float) -> Array:
        """`layer_norm` or `rms_norm`, as the static argument `norm` says: "layer" or "rms"."""
        if norm == "layer":
            return self.layer_norm(x, weight, bias, eps=eps)
        if norm != "rms" or bias is not None:
            raise ValueError(f"norm: layer, or rms without a bias, is expected, not {norm!r}")
        return self.rms_norm(x, weight, eps=eps)


OPS: Mapping[str, OpSpec] = {
    name: method.spec for name, method in vars(Ops).items() if hasattr(method, "spec")
}
"""Every op by name, primitives first, in the order above."""
