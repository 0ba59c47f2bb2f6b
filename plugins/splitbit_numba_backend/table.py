"""The table of ops, and which call sites each of them serves."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

from splitbit_kit.api import OPS, Backend, Hardware, Op, OpOffer, Site
from splitbit_numba_backend.cache import use_safe_cache
from splitbit_numba_backend.simd.features import NATIVE_BF16

PRECISIONS = ("auto", "bf16", "fp32")

# What each operand may be, in the order of the contract. F: a float32 array, I: int32, P: a float32
# parameter, C: a cache; P? and C?: or nothing.
KINDS = {
    "F": ("array:float32",),
    "I": ("array:int32",),
    "P": ("param:float32",),
    "P?": ("param:float32", "none"),
    "C?": ("cache", "none"),
}
OPERANDS = {
    "embedding": "I P",
    "layer_norm": "F P P?",
    "rms_norm": "F P",
    "linear": "F P P?",
    "rotary": "F I",
    "attention": "F F F I C?",
    "gelu": "F",
    "swiglu": "F F",
    "add": "F F",
    "dropout": "F",
    "cross_entropy": "F I",
    "attention_block": "F I I P P? P P P P P? P? P? P? C?",
    "mlp_block": "F P P? P? P P P? P?",
    "head_loss": "F P P? P I F",
}


def accepts(name: str, forward: Callable[..., Any]) -> Callable[[Site], str | None]:
    """Return the `accepts` of an op: operands as above, static arguments that `forward` has."""
    kinds = OPERANDS[name].split()
    parameters = signature(forward).parameters.values()
    static = {p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY}

    def decide(site: Site) -> str | None:
        if len(site.operands) > len(kinds):
            return f"{len(site.operands)} operands, where {len(kinds)} are known"
        for place, (kind, operand) in enumerate(zip(kinds, site.operands, strict=False)):
            if operand not in KINDS[kind]:
                return f"{OPS[name].operands[place]}: {operand} is not served"
        if unknown := [argument for argument, _ in site.static if argument not in static]:
            return f"static argument {unknown[0]} is not known"
        if site.train and "cache" in site.operands:
            return "a cache goes with inference only"
        if "cache" in site.operands and dict(site.static).get("dropout"):
            return "dropout does not go with a cache"
        return None

    return decide


def build(hardware: Hardware, precision: str, threads: int) -> Backend:
    """Return the backend. Raises ValueError for a precision other than bf16 and fp32."""
    if precision not in PRECISIONS:
        raise ValueError(f"numba: no precision {precision}; choose bf16 or fp32")
    if precision == "auto":
        precision = "bf16" if NATIVE_BF16 else "fp32"
    uncached = use_safe_cache()
    # from here on what compiles is imported
    from splitbit_numba_backend.blocks.attention import AttentionBlock
    from splitbit_numba_backend.blocks.head import HeadLoss
    from splitbit_numba_backend.blocks.mlp import MlpBlock
    from splitbit_numba_backend.blocks.small import Add, Embedding
    from splitbit_numba_backend.flat import Flat
    from splitbit_numba_backend.primitives.attention import Attention
    from splitbit_numba_backend.primitives.dropout import Dropout
    from splitbit_numba_backend.primitives.linear import Linear
    from splitbit_numba_backend.primitives.loss import CrossEntropy
    from splitbit_numba_backend.primitives.norms import LayerNorm, RmsNorm
    from splitbit_numba_backend.primitives.pointwise import Gelu, Swiglu
    from splitbit_numba_backend.primitives.rotary import Rotary
    from splitbit_numba_backend.runtime import Runtime

    runtime = Runtime(precision, threads)
    flat = Flat(runtime)
    ops: dict[str, Any] = {
        "embedding": Embedding(runtime),
        "layer_norm": LayerNorm(runtime),
        "rms_norm": RmsNorm(runtime),
        "linear": Linear(runtime),
        "rotary": Rotary(runtime),
        "attention": Attention(runtime),
        "gelu": Gelu(runtime),
        "swiglu": Swiglu(runtime),
        "add": Add(runtime),
        "dropout": Dropout(runtime),
        "cross_entropy": CrossEntropy(runtime),
        "attention_block": AttentionBlock(runtime),
        "mlp_block": MlpBlock(runtime),
        "head_loss": HeadLoss(runtime),
    }
    offers = {
        name: OpOffer(
            Op(op.forward, op.backward),
            accepts(name, op.forward),
            getattr(op, "make_cache", None),
        )
        for name, op in ops.items()
    }
    loops = {"squared_norm": flat.squared_norm, "adamw": flat.adamw, "sgd": flat.sgd}
    return Backend(offers, loops, precision, uncached or "", own_threads=True)
