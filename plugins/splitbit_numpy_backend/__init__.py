"""The NumPy backend: every op in readable form, the definition that faster backends are tested by.

One module a subject; `table` puts them together. Nothing but numpy, threadpoolctl and the plugin
API is imported.
"""

from __future__ import annotations

from splitbit_kit.api import Backend, BackendOffer, Hardware, hookimpl


def build(hardware: Hardware, precision: str, threads: int) -> Backend:
    """Return the built backend. Raises ValueError for a precision other than fp32 and fp64."""
    from splitbit_numpy_backend import table

    return table.build(hardware, precision, threads)


@hookimpl
def backends() -> list[BackendOffer]:
    """Offer the backend "numpy"."""
    return [BackendOffer("numpy", "every op in plain NumPy; runs everywhere", build)]
