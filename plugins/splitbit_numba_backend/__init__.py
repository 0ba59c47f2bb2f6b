"""The Numba backend: fused blocks compiled for this processor, in float32 and bfloat16.

`runtime` holds what all ops share, `blocks` the fused ops, `kernels` what they are made of, and
`simd` the vector layer below. Nothing of Numba is imported before the backend is built.
"""

from __future__ import annotations

from splitbit_kit.api import Backend, BackendOffer, Hardware, hookimpl


def build(hardware: Hardware, precision: str, threads: int) -> Backend:
    """Return the built backend. Raises ValueError for a precision other than bf16 and fp32."""
    from splitbit_numba_backend import table

    return table.build(hardware, precision, threads)


@hookimpl
def backends() -> list[BackendOffer]:
    """Offer the backend "numba"."""
    return [BackendOffer("numba", "compiled and fused; float32 and bfloat16", build, ("numba",))]
