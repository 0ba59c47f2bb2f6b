"""The table of ops, and which call sites each of them serves."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from splitbit_kit.api import Backend, Hardware, Op, OpOffer, Peak, Site
from splitbit_numpy_backend import attention, dropout, flat, linear, loss, norms, pointwise, rotary

COMPUTE = ("float32", "float64")
IDS = "array:int32"
WEIGHT = "param packed lowrank"
PRECISIONS = {"auto": "fp32", "fp32": "fp32", "fp64": "fp64"}


def accepts(forward: Callable[..., Any], **kinds: str) -> Callable[[Site], str | None]:
    """Return the `accepts` of an op: `kinds` says for each operand which kinds are served.

    Static arguments are served if the forward function has a parameter of that name.
    """
    parameters = signature(forward).parameters.values()
    static = {p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY}

    def decide(site: Site) -> str | None:
        if unknown := [name for name, _ in site.static if name not in static]:
            return f"static argument {unknown[0]} is not known"
        if len(site.operands) > len(kinds):
            return f"{len(site.operands)} operands, where {len(kinds)} are known"
        compute = set()
        for (name, served), operand in zip(kinds.items(), site.operands, strict=False):
            if operand.partition(":")[0] not in served.split() and operand not in served.split():
                return f"{name}: {operand} is not served, only {served.replace(' ', ', ')}"
            kind, _, detail = operand.removeprefix("lowrank:").partition(":")
            if kind == "lowrank":
                return f"{name}: {operand} is not served, a low-rank weight's base must not be one"
            if kind in ("array", "param") and operand not in served.split():
                compute.add(detail)
        if wrong := compute.difference(COMPUTE):
            return f"{min(wrong)} is not served, only {' and '.join(COMPUTE)}"
        if len(compute) > 1:
            return f"operands of {' and '.join(sorted(compute))} are mixed"
        if site.train and "cache" in site.operands:
            return "a cache goes with inference only"
        return None

    return decide


OPS = {
    "embedding": OpOffer(
        Op(linear.embedding, linear.embedding_backward),
        accepts(linear.embedding, ids=IDS, table="param packed"),
    ),
    "layer_norm": OpOffer(
        Op(norms.layer_norm, norms.layer_norm_backward),
        accepts(norms.layer_norm, x="array", weight="param", bias="param none"),
    ),
    "rms_norm": OpOffer(
        Op(norms.rms_norm, norms.rms_norm_backward),
        accepts(norms.rms_norm, x="array", weight="param"),
    ),
    "linear": OpOffer(
        Op(linear.linear, linear.linear_backward),
        accepts(linear.linear, x="array", w=WEIGHT, b="param none"),
    ),
    "rotary": OpOffer(
        Op(rotary.rotary, rotary.rotary_backward),
        accepts(rotary.rotary, x="array", positions=IDS),
    ),
    "attention": OpOffer(
        Op(attention.attention, attention.attention_backward),
        accepts(
            attention.attention, q="array", k="array", v="array", starts=IDS, cache="cache none"
        ),
        attention.Cache,
    ),
    "gelu": OpOffer(
        Op(pointwise.gelu, pointwise.gelu_backward),
        accepts(pointwise.gelu, x="array"),
    ),
    "swiglu": OpOffer(
        Op(pointwise.swiglu, pointwise.swiglu_backward),
        accepts(pointwise.swiglu, gate="array", up="array"),
    ),
    "add": OpOffer(
        Op(pointwise.add, pointwise.add_backward),
        accepts(pointwise.add, x="array", y="array"),
    ),
    "dropout": OpOffer(
        Op(dropout.dropout, dropout.dropout_backward),
        accepts(dropout.dropout, x="array"),
    ),
    "cross_entropy": OpOffer(
        Op(loss.cross_entropy, loss.cross_entropy_backward),
        accepts(loss.cross_entropy, logits="array", targets=IDS),
    ),
}
FLAT: dict[str, Callable[..., Any]] = {
    "squared_norm": flat.squared_norm,
    "adamw": flat.adamw,
    "lion": flat.lion,
    "sgd": flat.sgd,
    "orthogonalize": flat.orthogonalize,
}


def build(hardware: Hardware, precision: str, threads: int) -> Backend:
    """Return the backend; matrix multiplies use `threads` threads from now on, in this process.

    Raises ValueError for a precision other than fp32 and fp64.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"numpy: no precision {precision}; choose fp32 or fp64")
    threadpool_limits(threads, user_api="blas")
    made: str = PRECISIONS[precision]
    return Backend(OPS, FLAT, made, peak=lambda: peak(made))


def peak(precision: str) -> Peak:
    """Return a square multiply by BLAS, which cuts it up for the caches itself."""
    dtype = np.float64 if precision == "fp64" else np.float32
    square = np.ones((1024, 1024), dtype)
    out = np.empty_like(square)

    def run() -> None:
        np.matmul(square, square, out=out)

    return Peak(run, 2.0 * len(square) ** 3)
