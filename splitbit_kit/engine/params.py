"""The flat parameter store: one buffer of values, one of gradients, named views into both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from splitbit_kit.api import PackedTensor, Param, SplitbitError
from splitbit_kit.engine.workspace import ALIGNMENT, aligned

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class ParamSpec:
    """A parameter before it has a value: normal with deviation std, or, where std is 0, `fill`."""

    name: str
    shape: tuple[int, ...]
    std: float = 0.0
    fill: float = 0.0
    decay: bool = False
    hidden: bool = False


class Neighbours:
    """Parameters that lie side by side in one flat buffer; `splitbit_kit.api.Parameters`."""

    def __init__(
        self,
        values: Array,
        decayed: int,
        matrices: int,
        params: Mapping[str, Param],
        places: Mapping[str, tuple[int, int]],
        version: int = 0,
    ) -> None:
        self.values = values
        self.decayed = decayed
        self.matrices = matrices
        self.version = version
        self._params = params
        self._places = places  # name -> first, stop

    def __iter__(self) -> Iterator[Param]:
        """Yield the trainable parameters, in buffer order."""
        return iter(self._params.values())

    def view(self, flat: Array, param: Param) -> Array:
        """Return the part of another flat array (P,) that belongs to a parameter, in its shape."""
        start, stop = self._places[param.name]
        return flat[start:stop].reshape(param.shape)

    def parts(self, chosen: Callable[[Param], bool]) -> Sequence[tuple[slice, Neighbours]]:
        """Return the chosen parameters: each run of neighbours as (its place, it alone)."""
        runs = (list(run) for wanted, run in groupby(self, chosen) if wanted)
        return [self._part({param.name: param for param in run}) for run in runs]

    def _part(self, params: Mapping[str, Param]) -> tuple[slice, Neighbours]:
        places = {name: self._places[name] for name in params}
        start, stop = next(iter(places.values()))[0], max(stop for _, stop in places.values())
        decayed, matrices = (
            min(max(border - start, 0), stop - start) for border in (self.decayed, self.matrices)
        )
        moved = {name: (first - start, last - start) for name, (first, last) in places.items()}
        place = slice(start, stop)
        part = Neighbours(
            self.values[place], decayed, matrices, params, moved, version=self.version
        )
        return place, part


class ParameterStore(Neighbours):
    """All parameters of a model: the trainable ones in one flat buffer, frozen ones beside it.

    Decayed matrices come first, other matrices next,
    vectors last, each group in the order of the specs, each parameter at a multiple of 64 bytes.
    """

    def __init__(
        self,
        specs: Iterable[ParamSpec],
        dtype: Any = np.float32,
        frozen: Mapping[str, Param] | None = None,
    ) -> None:
        self._frozen = dict(frozen or {})
        specs = [spec for spec in specs if spec.name not in self._frozen]
        self._specs = specs
        for spec in specs:
            if spec.decay and len(spec.shape) < 2:
                raise ValueError(f"{spec.name}: only matrices decay, not shape {spec.shape}")
            if spec.hidden and len(spec.shape) != 2:
                raise ValueError(f"{spec.name}: hidden is a matrix, not shape {spec.shape}")
        specs.sort(key=lambda spec: (len(spec.shape) < 2, not spec.decay))
        self.dtype = np.dtype(dtype)
        decayed = matrices = 0
        places: dict[str, tuple[int, int]] = {}
        step = ALIGNMENT // self.dtype.itemsize
        end = 0
        for spec in specs:
            size = prod(spec.shape)
            places[spec.name] = (end, end + size)
            end += -(-size // step) * step
            if len(spec.shape) >= 2:
                matrices = end
                decayed = end if spec.decay else decayed
        values = aligned((end,), self.dtype, zero=True)
        params: dict[str, Param] = {}
        for spec in specs:
            start, stop = places[spec.name]
            value = values[start:stop].reshape(spec.shape)
            params[spec.name] = Param(spec.name, value, decay=spec.decay, hidden=spec.hidden)
        super().__init__(values, decayed, matrices, params, places)

    def __getitem__(self, name: str) -> Param:
        """Return a handle, trainable or frozen, by name."""
        return self._params[name] if name in self._params else self._frozen[name]

    def get(self, name: str) -> Param | None:
        """Return a handle by name, or None."""
        return self._params.get(name) or self._frozen.get(name)

    @property
    def count(self) -> int:
        """How many trainable numbers there are, without the gaps between parameters."""
        return sum(stop - start for start, stop in self._places.values())

    def zeros(self) -> Array:
        """Return a new flat array (P,) of zeros, for gradients or optimizer state."""
        return aligned(self.values.shape, self.dtype, zero=True)

    def updated(self) -> None:
        """Tell everyone who keeps a converted copy that the values have changed."""
        self.version += 1
        for param in self._params.values():
            param.version = self.version

    def initialise(self, specs: Iterable[ParamSpec], seed: int) -> None:
        """Fill the values: each parameter from its own stream, keyed by (seed, name)."""
        for spec in specs:
            if spec.name in self._frozen:
                continue
            value = self._params[spec.name].array
            if spec.std:
                digest = int.from_bytes(sha256(spec.name.encode()).digest()[:8], "little")
                key = np.array([seed, digest], np.uint64)
                generator = np.random.Generator(np.random.Philox(key=key))
                # in float32 whatever the dtype, so that fp64 starts from the same weights
                drawn = generator.standard_normal(spec.shape, np.float32)
                value[...] = np.float32(spec.std) * drawn
            else:
                value[...] = spec.fill
        self.updated()

    def load(self, arrays: Mapping[str, Array], origin: str) -> None:
        """Copy values in by name. Raises SplitbitError unless they are exactly those expected."""
        check_tensors(arrays, self._specs, origin)
        for name, param in self._params.items():
            param.array[...] = arrays[name]
        self.updated()


WEIGHT_DTYPES = ("float32", "float64", "float16", "bfloat16")


def check_tensors(
    arrays: Mapping[str, Array | PackedTensor], specs: Iterable[ParamSpec], origin: str
) -> None:
    """Raise SplitbitError, naming the tensor, unless the arrays are exactly those of the specs.

    Packed ones need only have the shape.
    """
    expected = {spec.name: spec.shape for spec in specs}
    for name, shape in expected.items():
        array = arrays.get(name)
        if array is None:
            raise SplitbitError(f"{origin}: tensor {name} is missing; is it of another model?")
        if array.shape != shape:
            raise SplitbitError(
                f"{origin}: tensor {name} has shape {array.shape}, the configuration says {shape}"
            )
        if isinstance(array, np.ndarray) and array.dtype.name not in WEIGHT_DTYPES:
            raise SplitbitError(
                f"{origin}: tensor {name} is {array.dtype}; "
                f"one of {', '.join(WEIGHT_DTYPES)} is expected"
            )
    # a bias that the configuration leaves out would change every result, and nobody would notice
    if more := sorted(arrays.keys() - expected.keys()):
        raise SplitbitError(f"{origin}: tensor {more[0]!r} is not of the configured model")


class GradientBuffer:
    """The flat gradient of a `ParameterStore`; implements `splitbit_kit.api.Gradients`.

    `begin` starts an optimizer step: the first contribution to a parameter then overwrites and
    later ones add, over all micro-batches; `finish` clears what nobody wrote.
    """

    def __init__(self, params: ParameterStore) -> None:
        self.flat = params.zeros()
        self._params = params
        self._views = {param.name: params.view(self.flat, param) for param in params}
        self._written: set[str] = set()

    def begin(self) -> None:
        """Forget all gradients, without touching the memory."""
        self._written.clear()

    def finish(self) -> None:
        """Clear the gradients of parameters that this step has not used."""
        for name, view in self._views.items():
            if name not in self._written:
                view[...] = 0

    def into(self, param: Param) -> tuple[Array, bool] | None:
        """Return (view, accumulate), or None where the parameter is frozen."""
        view = self._views.get(param.name)
        if view is None or self._params.get(param.name) is not param:
            return None
        accumulate = param.name in self._written
        self._written.add(param.name)
        return view, accumulate

    def add(self, param: Param, gradient: Array) -> None:
        """Add a gradient that is already computed; nothing happens where the param is frozen."""
        place = self.into(param)
        if place is None:
            return
        view, accumulate = place
        if accumulate:
            view += gradient
        else:
            view[...] = gradient

    def __getitem__(self, name: str) -> Array:
        """Return a parameter's gradient, in its shape."""
        return self._views[name]

    def first_bad(self) -> str | None:
        """Return the name of the first parameter with a gradient that is not finite."""
        for name, view in self._views.items():
            if not np.isfinite(view).all():
                return name
        return None
