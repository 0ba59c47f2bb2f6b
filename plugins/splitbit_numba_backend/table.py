"""The table of ops of a built backend."""

from __future__ import annotations

from typing import Any

from splitbit_kit.api import Backend, Hardware, OpOffer
from splitbit_numba_backend.cache import use_safe_cache
from splitbit_numba_backend.simd.features import NATIVE_BF16

PRECISIONS = ("auto", "bf16", "fp32")


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
    from splitbit_numba_backend.border import accepts, guarded, serialised
    from splitbit_numba_backend.first_run import first_run
    from splitbit_numba_backend.flat import Flat
    from splitbit_numba_backend.peak import peak
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
            guarded(name, op, runtime),
            first_run.watched(accepts(name, op.forward), precision, threads),
            getattr(op, "make_cache", None),
        )
        for name, op in ops.items()
    }
    loops = {
        loop.__name__: serialised(runtime, loop)
        for loop in (flat.squared_norm, flat.adamw, flat.lion, flat.sgd, flat.orthogonalize)
    }
    return Backend(
        offers,
        loops,
        precision,
        uncached or "",
        own_threads=True,
        peak=lambda: peak(runtime),
        hear=first_run.hear,
    )
