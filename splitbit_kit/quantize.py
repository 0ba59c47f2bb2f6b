"""Weights into a packed format: which of them, and how."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from splitbit_kit.api import Layout, PackedTensor, Quantizer, SplitbitError
from splitbit_kit.formats.packed import Packing, Weights
from splitbit_kit.formats.safetensors import Tensors
from splitbit_kit.registry import Registry, say

Array = np.ndarray[Any, np.dtype[Any]]

POSITIONS = "pos.weight"


@dataclass(frozen=True)
class Format:
    """A packed format, ready to use."""

    name: str  # as `--quantizer` takes it
    quantizer: Quantizer
    plugin: str  # the distribution that brings it
    options: Mapping[str, Any]


def packed_format(
    registry: Registry, name: str, options: Mapping[str, Any] | None = None
) -> Format:
    """Return a format by name, its quantizer built. Raises SplitbitError as the registry does."""
    options = dict(options or {})
    quantizer = registry.build("quantizer", name, **options)
    return Format(name, quantizer, registry.distribution("quantizer", name), options)


def reason_kept(name: str, shape: tuple[int, ...], form: Format) -> str | None:
    """Return why a weight is not packed, or None if it is.

    The rule: matrices are, the position embedding aside, whose few rows are added to every token's.
    A matrix that the format has no room for stays as it is.
    """
    if len(shape) != 2:
        return "not a matrix"
    if name == POSITIONS:
        return "position embedding"
    try:
        with guarded(form.name, form.plugin):
            form.quantizer.layout(shape)
    except ValueError as error:
        return str(error)
    return None


def pack(model: Tensors, form: Format) -> Weights:
    """Return a model's weights, packed where the rule says so; the others are the same arrays.

    Raises SplitbitError naming the weight, and the block, that is not finite.
    """
    weights: dict[str, Array | PackedTensor] = {}
    kept = {}
    for name, array in model.arrays.items():
        reason = reason_kept(name, array.shape, form)
        if reason is None:
            weights[name] = _packed(name, array, form)
        else:
            weights[name], kept[name] = array, reason
    packing = Packing(form.name, form.options, {form.name: form.plugin}, kept)
    return Weights(weights, model.metadata, packing)


def _packed(name: str, array: Array, form: Format) -> PackedTensor:
    try:
        with guarded(form.name, form.plugin):
            packed = form.quantizer.pack(np.asarray(array, np.float32))
    except ValueError as error:
        raise SplitbitError(f"{name}: cannot be packed as {form.name}: {error}") from error
    where = f"{name}: packed as {form.name} by {form.plugin}"
    if tuple(packed.shape) != array.shape:
        raise SplitbitError(f"{where}: shape {packed.shape}; {array.shape} is expected")
    check_arrays(packed, form.quantizer, where)
    # the name that was asked for: where two plugins have one, it says whose it is
    return replace(packed, format=form.name)


def check_arrays(packed: PackedTensor, quantizer: Quantizer, where: str) -> None:
    """Raise SplitbitError unless the arrays are those that the format makes of the shape."""
    rows, length = packed.shape
    try:
        with guarded(packed.format):
            expected = quantizer.layout((rows, length))
    except ValueError as error:
        raise SplitbitError(f"{where}: {error}") from error
    found: Layout = {name: (a.dtype, a.shape) for name, a in packed.arrays.items()}
    for name in (*expected, *found):
        if name not in found or name not in expected:
            raise SplitbitError(f"{where}: arrays {_listed(found)}; {_listed(expected)} expected")
        dtype, shape = expected[name]
        if found[name] != (np.dtype(dtype), tuple(shape)):
            what = " ".join(map(str, found[name]))
            raise SplitbitError(
                f"{where}: array {name} is {what}; {np.dtype(dtype)} {tuple(shape)} is expected"
            )


@contextmanager
def guarded(name: str, plugin: str = "") -> Iterator[None]:
    """Turn what a quantizer should not raise into a SplitbitError that names it."""
    try:
        yield
    except (SplitbitError, ValueError):
        raise
    except Exception as error:
        owner = f" of {plugin}" if plugin else ""
        raise SplitbitError(f"quantizer {name}{owner} failed: {say(error)}") from error


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
