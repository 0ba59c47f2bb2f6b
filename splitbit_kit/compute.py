"""What does the arithmetic: backends by name, in order, with their precision and threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from splitbit_kit.api import Backend, Context, PackedTensor, Quantizer, SplitbitError, UsageError
from splitbit_kit.engine.optable import OpTable
from splitbit_kit.engine.workspace import BufferPool
from splitbit_kit.registry import Registry, say

LAST = "numpy"  # closes every chain
AUTO = ("numba", LAST)  # what `auto` tries, in this order

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Compute:
    """A chain of built backends and the memory they share."""

    chain: tuple[tuple[str, Backend], ...]
    precision: str
    threads: int
    unpack: Callable[[PackedTensor, int, int], Array]
    workspace: BufferPool = field(default_factory=BufferPool)

    @property
    def name(self) -> str:
        """The backends that were chosen, as `--backend` takes them."""
        names = [name for name, _ in self.chain]
        return ",".join(names[:-1] if names[-1] == LAST and len(names) > 1 else names)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of arrays between ops: float64 for fp64, else float32."""
        return np.dtype(np.float64 if self.precision == "fp64" else np.float32)

    def table(self, *, train: bool, fuse: bool = True) -> OpTable:
        """Return a new op table over the chain."""
        return OpTable(self.chain, train=train, fuse=fuse)

    def context(self, *, grad: bool = False, seed: int = 0) -> Context:
        """Return a new context for ops."""
        return Context(
            self.workspace,
            dtype=self.dtype,
            threads=self.threads,
            grad=grad,
            seed=seed,
            unpack=self.unpack,
        )


def unheard(line: str) -> None:
    """Tell nobody."""


def choose(
    registry: Registry,
    backend: str = "auto",
    precision: str = "auto",
    threads: int = 0,
    notify: Callable[[str], None] = unheard,
) -> Compute:
    """Return the backends asked for, built. `auto` says through `notify` what it did not get.

    backend: "auto", a name, or several separated by commas, the preferred first; NumPy closes the
    chain. threads 0 means the usable physical cores. What was asked for by name fails loudly.
    """
    hardware = registry.probe()
    threads = threads or hardware.cores

    def build(name: str, precision: str, threads: int = threads) -> Backend:
        built: Backend = registry.build("backend", name, hardware, precision, threads)
        if built.notes:
            notify(f"backend {name}: {built.notes}")
        if built.hear and notify is not unheard:
            built.hear(notify)
        return built

    if backend == "auto":
        names, first = _first_that_works(build, precision, notify)
    else:
        names = [name.strip() for name in backend.split(",") if name.strip()]
        if not names:
            raise UsageError("--backend: a name is expected, such as numpy")
        first = build(names[0], precision)
    rest = "fp64" if first.precision == "fp64" else "fp32"
    chain = [(names[0], first)]
    for name in [*names[1:], LAST]:
        if name not in dict(chain):
            # two sets of threads that wait for work take it from each other
            chain.append((name, build(name, rest, 1 if first.own_threads else threads)))
    return Compute(tuple(chain), first.precision, threads, _unpacker(registry))


def _first_that_works(
    build: Callable[[str, str], Backend], precision: str, notify: Callable[[str], None]
) -> tuple[list[str], Backend]:
    missed = []
    for name in AUTO:
        try:
            backend = build(name, precision)
        except SplitbitError as error:
            missed.append(str(error).split(";")[0])
            continue
        if missed:
            notify(f"backend: {name} ({'; '.join(missed)})")
        return [name], backend
    raise SplitbitError(f"no backend can serve: {'; '.join(missed)}")


def _unpacker(registry: Registry) -> Callable[[PackedTensor, int, int], Array]:
    built: dict[str, Quantizer] = {}

    def unpack(packed: PackedTensor, start: int, stop: int) -> Array:
        if packed.format not in built:
            built[packed.format] = registry.build("quantizer", packed.format)
        try:
            rows = built[packed.format].unpack(packed, rows=slice(start, stop))
        except Exception as error:
            raise SplitbitError(
                f"quantizer {packed.format}: unpack failed: {say(error)}"
            ) from error
        expected = (stop - start, *packed.shape[1:])
        if rows.shape != expected or rows.dtype != np.float32:
            raise SplitbitError(
                f"quantizer {packed.format}: unpack returned {rows.dtype} {rows.shape}; "
                f"float32 {expected} is expected"
            )
        return rows

    return unpack
