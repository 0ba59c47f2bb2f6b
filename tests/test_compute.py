"""Which backends a run gets: the chain, its precision, and what `auto` says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from splitbit_kit import compute as compute_module
from splitbit_kit.api import Backend, Hardware, SplitbitError, UsageError
from splitbit_kit.compute import Compute, choose

HARDWARE = Hardware(threads=4, cores=2, memory_bytes=1 << 30, tier="light")


class Registry:
    """A registry with the backends named, each with a precision that it takes for "auto"."""

    def __init__(self, **automatic: str) -> None:
        self.automatic = automatic
        self.built: list[tuple[str, str, int]] = []

    def probe(self) -> Hardware:
        return HARDWARE

    def build(self, kind: str, name: str, hardware: Any, precision: str, threads: int) -> Backend:
        assert (kind, hardware) == ("backend", HARDWARE)
        if name not in self.automatic:
            raise SplitbitError(f"backend {name}: not installed; pip install it")
        self.built.append((name, precision, threads))
        chosen = self.automatic[name] if precision == "auto" else precision
        return Backend({}, {}, chosen, own_threads=name == "busy")


def chosen(registry: Any, *args: Any, **options: Any) -> Compute:
    return choose(registry, *args, **options)


def test_numpy_closes_every_chain_in_the_first_ones_dtype() -> None:
    registry = Registry(a="bf16", b="bf16", numpy="fp32")
    compute = chosen(registry, "a, b", threads=3)
    assert registry.built == [("a", "auto", 3), ("b", "fp32", 3), ("numpy", "fp32", 3)]
    assert [name for name, _ in compute.chain] == ["a", "b", "numpy"]
    assert (compute.name, compute.precision, compute.dtype) == ("a,b", "bf16", np.float32)


def test_behind_a_backend_with_threads_of_its_own_nothing_else_spins() -> None:
    registry = Registry(busy="fp32", numpy="fp32")
    chosen(registry, "busy", threads=3)
    assert registry.built == [("busy", "auto", 3), ("numpy", "fp32", 1)]


def test_fp64_is_asked_of_every_backend() -> None:
    registry = Registry(a="bf16", numpy="fp32")
    compute = chosen(registry, "a", "fp64")
    assert {precision for _, precision, _ in registry.built} == {"fp64"}
    assert compute.dtype == compute.table(train=True).dtype == compute.context().dtype == np.float64


def test_numpy_alone_is_built_once_with_the_physical_cores() -> None:
    registry = Registry(numpy="fp32")
    compute = chosen(registry, "numpy")
    assert registry.built == [("numpy", "auto", HARDWARE.cores)]
    assert (compute.name, compute.threads) == ("numpy", HARDWARE.cores)


def test_auto_falls_back_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute_module, "AUTO", ("numba", "numpy"))
    said: list[str] = []
    assert chosen(Registry(numpy="fp32"), notify=said.append).name == "numpy"
    assert said == ["backend: numpy (backend numba: not installed)"]
    said.clear()
    assert chosen(Registry(numba="bf16", numpy="fp32"), notify=said.append).name == "numba"
    assert not said


def test_what_is_asked_for_by_name_fails_loudly() -> None:
    with pytest.raises(SplitbitError, match="backend numba: not installed; pip install it"):
        chosen(Registry(numpy="fp32"), "numba")
    with pytest.raises(SplitbitError, match="no backend can serve"):
        chosen(Registry())
    with pytest.raises(UsageError, match="--backend: a name is expected"):
        chosen(Registry(numpy="fp32"), " , ")
