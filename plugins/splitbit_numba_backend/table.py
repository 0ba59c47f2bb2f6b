"""The table of ops, and which call sites each of them serves."""

from __future__ import annotations

import llvmlite.binding as llvm

from splitbit_kit.api import Backend, Hardware, Op, OpOffer, Site
from splitbit_numba_backend.cache import use_safe_cache

PRECISIONS = ("auto", "bf16", "fp32")


def accepts(site: Site) -> str | None:
    """Accept float32 arrays and parameters; neither dropout nor a cache, yet."""
    for kind in site.operands:
        if kind not in ("array:float32", "array:int32", "param:float32", "none"):
            return f"{kind} is not served"
    if dict(site.static).get("dropout"):
        return "dropout is not served"
    return None


def build(hardware: Hardware, precision: str, threads: int) -> Backend:
    """Return the backend. Raises ValueError for a precision other than bf16 and fp32."""
    if precision not in PRECISIONS:
        raise ValueError(f"numba: no precision {precision}; choose bf16 or fp32")
    if precision == "auto":
        features = llvm.get_host_cpu_features()
        native = features.get("amx-bf16") or features.get("avx512bf16")
        precision = "bf16" if native else "fp32"
    uncached = use_safe_cache()
    # from here on what compiles is imported
    from splitbit_numba_backend.blocks.attention import AttentionBlock
    from splitbit_numba_backend.blocks.head import HeadLoss
    from splitbit_numba_backend.blocks.mlp import MlpBlock
    from splitbit_numba_backend.blocks.small import Add, Embedding
    from splitbit_numba_backend.flat import Flat
    from splitbit_numba_backend.runtime import Runtime

    runtime = Runtime(precision, threads)
    flat = Flat(runtime)
    ops = {
        "embedding": Embedding(runtime),
        "add": Add(runtime),
        "attention_block": AttentionBlock(runtime),
        "mlp_block": MlpBlock(runtime),
        "head_loss": HeadLoss(runtime),
    }
    offers = {name: OpOffer(Op(op.forward, op.backward), accepts) for name, op in ops.items()}
    loops = {"squared_norm": flat.squared_norm, "adamw": flat.adamw}
    return Backend(offers, loops, precision, uncached or "", own_threads=True)
