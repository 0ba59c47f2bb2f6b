"""Chains of backends as tests use them, built from the plugins' own offers."""

from __future__ import annotations

from functools import cache
from importlib import import_module

import numpy as np

from splitbit_kit.api import Backend, Hardware

HARDWARE = Hardware(threads=1, cores=1, memory_bytes=1 << 30, tier="minimal")
DTYPES = {"fp32": np.dtype(np.float32), "fp64": np.dtype(np.float64)}


@cache
def backend(name: str, precision: str) -> Backend:
    """Return one of our own backends, built for one thread."""
    (offer,) = import_module(f"splitbit_{name}_backend").backends()
    built: Backend = offer.build(HARDWARE, precision, 1)
    return built


def chain(name: str, precision: str) -> list[tuple[str, Backend]]:
    """Return what `--backend NAME` means: the backend, and NumPy behind it."""
    names = [name] if name == "numpy" else [name, "numpy"]
    return [(n, backend(n, precision)) for n in names]
