"""Packed weights in a safetensors file; docs/formats/packed.md tells others how to read one.

The arrays of a packed weight stand under `NAME:ARRAY`, such as `tok.weight:blocks`; the metadata
`packed` says which belong together, in which format, and why other weights are not packed. A file
without it holds plain weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from splitbit_kit.api import PackedTensor, SplitbitError
from splitbit_kit.formats import strict_json
from splitbit_kit.formats.dtypes import DTYPES, code_of
from splitbit_kit.formats.safetensors import Tensors
from splitbit_kit.formats.untrusted import shown

Array = np.ndarray[Any, np.dtype[Any]]

KEY = "packed"
VERSION = 1
MOST = (
    2**48
)  # rows, and weights in one: an index stays far below 2^63 whatever a format makes of it

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+:-]{0,99}")  # a format, perhaps with its distribution


@dataclass(frozen=True)
class Packing:
    """How a file's weights were packed."""

    format: str  # as it was asked for
    options: Mapping[str, Any] = field(default_factory=dict)  # of the format
    plugins: Mapping[str, str] = field(default_factory=dict)  # format -> distribution that has it
    kept: Mapping[str, str] = field(default_factory=dict)  # weight -> why it is not packed


class Weights(NamedTuple):
    """Named weights with the text metadata of their file; packing is None if none is packed."""

    arrays: Mapping[str, Array | PackedTensor]
    metadata: Mapping[str, str]
    packing: Packing | None = None


def encode(weights: Weights, where: str) -> Tensors:
    """Return what goes to the file; nothing is copied.

    Raises SplitbitError for what a file cannot hold; `where` begins the line.
    """
    assert weights.packing is not None
    arrays: dict[str, Array] = {}
    entries = {}
    for name, value in weights.arrays.items():
        if not isinstance(value, PackedTensor):
            arrays[name] = value
            continue
        entries[name] = {
            "format": value.format,
            "shape": list(value.shape),
            "arrays": sorted(value.arrays),
            "metadata": dict(value.metadata),
        }
        for array_name, array in value.arrays.items():
            if code_of(array.dtype) is None:
                raise SplitbitError(
                    f"{where}: {name}: array {array_name} is {array.dtype}, which the file cannot "
                    f"hold; one of {', '.join(DTYPES)} is expected"
                )
            arrays[f"{name}:{array_name}"] = array
    note = {"version": VERSION, "tensors": entries, **vars(weights.packing)}
    text = strict_json.dump(note, f"{where}: {KEY}").decode()
    return Tensors(arrays, {**weights.metadata, KEY: text})


def decode(file: Tensors, origin: str) -> Weights:
    """Return the weights of a file, its arrays still mapped.

    What the metadata says is checked against the file's arrays; whether those are what the format
    makes of the shape, only its quantizer knows. Raises SplitbitError naming the weight.
    """
    if KEY not in file.metadata:
        return Weights(file.arrays, file.metadata)
    where = f"{origin}: metadata {KEY}"
    note = strict_json.parse(file.metadata[KEY].encode(), where)
    if not isinstance(note, dict) or note.get("version") != VERSION:
        raise SplitbitError(f"{where}: version {VERSION} is expected")
    tensors = _object(note, "tensors", where)
    arrays: dict[str, Array | PackedTensor] = dict(file.arrays)
    for name, entry in tensors.items():
        if name in file.arrays:
            raise SplitbitError(f"{where}: {shown(name)} stands in the file both packed and plain")
        arrays[name] = _tensor(name, entry, arrays, where)
    return Weights(arrays, file.metadata, _packing(note, where))


def _tensor(
    name: str, entry: Any, arrays: dict[str, Array | PackedTensor], where: str
) -> PackedTensor:
    """Return a packed weight, whose arrays are taken out of those given."""
    where = f"{where}: {shown(name)}"
    if not isinstance(entry, dict):
        raise SplitbitError(f"{where}: an object with format, shape, arrays, metadata is expected")
    shape, names = entry.get("shape"), entry.get("arrays")
    if not (
        isinstance(shape, list)
        and len(shape) == 2
        and all(type(size) is int and 0 < size <= MOST for size in shape)
    ):
        raise SplitbitError(f"{where}: shape {shown(shape)}; [rows, weights in one] is expected")
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise SplitbitError(f"{where}: arrays {shown(names)}; a list of names is expected")
    metadata = _object(entry, "metadata", where)
    if not all(type(value) in (str, int, float) for value in metadata.values()):
        raise SplitbitError(f"{where}: metadata: texts and numbers are expected")
    found: dict[str, Array] = {}
    for each in names:
        array = arrays.pop(f"{name}:{each}", None)
        if not isinstance(array, np.ndarray):
            raise SplitbitError(f"{where}: tensor {shown(f'{name}:{each}')} is missing")
        found[each] = array
    return PackedTensor(_format(entry.get("format"), where), tuple(shape), found, metadata)


def _packing(note: dict[str, Any], where: str) -> Packing:
    plugins, kept = _object(note, "plugins", where), _object(note, "kept", where)
    if not all(isinstance(text, str) for text in (*plugins.values(), *kept.values())):
        raise SplitbitError(f"{where}: plugins and kept: texts are expected")
    options = _object(note, "options", where)
    return Packing(_format(note.get("format"), where), options, plugins, kept)


def _object(holder: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    value = holder.get(key)
    if not isinstance(value, dict):
        raise SplitbitError(f"{where}: {key}: an object is expected")
    return value


def _format(value: Any, where: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise SplitbitError(f"{where}: format {shown(value)}; the name of a format is expected")
    return value
