"""Packed weights in a file: what comes back, and lies that are refused."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from splitbit_kit.api import PackedTensor, SplitbitError
from splitbit_kit.formats import packed, safetensors
from splitbit_kit.formats.packed import Packing, Weights
from splitbit_kit.formats.safetensors import Tensors

NORM = np.ones(8, np.float32)
HALVES = np.arange(16, dtype=np.uint8).reshape(2, 8)
PACKED = PackedTensor("half", (2, 8), {"low": HALVES, "high": HALVES + 1}, {"bits": 3, "of": "x"})
PACKING = Packing("half", {"group": 4}, {"half": "splitbit-half"}, {"norm": "not a matrix"})
WEIGHTS = Weights({"tok": PACKED, "norm": NORM}, {"step": "7"}, PACKING)


def file() -> Tensors:
    return packed.encode(WEIGHTS, "here")


def test_weights_come_back_from_a_file(tmp_path: Any) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.write(path, *file())
    found = packed.decode(safetensors.read(path), str(path))
    assert found.packing == PACKING
    assert found.metadata["step"] == "7"
    assert set(found.arrays) == {"tok", "norm"}
    assert np.array_equal(found.arrays["norm"], NORM)
    tok = found.arrays["tok"]
    assert isinstance(tok, PackedTensor)
    assert (tok.format, tok.shape, tok.metadata) == ("half", (2, 8), PACKED.metadata)
    for name, array in PACKED.arrays.items():
        assert np.array_equal(tok.arrays[name], array)
        assert not tok.arrays[name].flags.owndata  # still mapped


def test_the_arrays_of_a_weight_stand_under_its_name() -> None:
    assert set(file().arrays) == {"tok:low", "tok:high", "norm"}


@pytest.mark.parametrize("dtype", [np.complex64, "int4", object])
def test_an_array_that_no_file_can_hold_is_refused_at_once(dtype: Any) -> None:
    array = np.zeros((2, 8), getattr(ml_dtypes, dtype) if isinstance(dtype, str) else dtype)
    weights = Weights({"tok": PackedTensor("half", (2, 8), {"low": array})}, {}, PACKING)
    with pytest.raises(SplitbitError, match=r"here: tok: array low is .*, which the file"):
        packed.encode(weights, "here")


@pytest.mark.parametrize("metadata", [{"a": np.float32(1)}, {"a": float("nan")}, {1: "a"}])
def test_metadata_that_would_not_come_back_is_refused_at_once(metadata: Any) -> None:
    weights = Weights({"tok": PackedTensor("half", (2, 8), {}, metadata)}, {}, PACKING)
    with pytest.raises(SplitbitError, match="here: packed: "):
        packed.encode(weights, "here")


def test_a_file_without_packed_weights_is_as_it_was() -> None:
    plain = Tensors({"norm": NORM}, {"step": "7"})
    assert packed.decode(plain, "f") == Weights(plain.arrays, plain.metadata, None)


def changed(path: str, value: Any) -> Tensors:
    """Return the file with one place of the metadata changed; ... takes it away."""
    arrays, metadata = file()
    note = json.loads(metadata["packed"])
    holder, *keys = note, *path.split("/")
    for key in keys[:-1]:
        holder = holder[key]
    if value is ...:
        del holder[keys[-1]]
    else:
        holder[keys[-1]] = value
    return Tensors(arrays, {**metadata, "packed": json.dumps(note)})


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("version", 2, "version 1 is expected"),
        ("tensors", [], "tensors: an object"),
        ("tensors/tok", 5, "'tok': an object with format"),
        ("tensors/tok/shape", [2, -8], r"shape \[2, -8\]; \[rows"),
        ("tensors/tok/shape", [True, 8], "shape"),
        ("tensors/tok/shape", [2.0, 8], "shape"),
        ("tensors/tok/shape", [0, 8], "shape"),
        ("tensors/tok/shape", [2, 8, 1], "shape"),
        ("tensors/tok/shape", [2**60, 2**60], "shape"),
        ("tensors/tok/shape", "28", "shape"),
        ("tensors/tok/arrays", "low", "a list of names"),
        ("tensors/tok/arrays", [1], "a list of names"),
        ("tensors/tok/arrays", ["low", "low"], "'tok:low' is missing"),
        ("tensors/tok/arrays", ["none"], "'tok:none' is missing"),
        ("tensors/tok/format", "../half", "name of a format"),
        ("tensors/tok/format", ["half"], "name of a format"),
        ("tensors/tok/metadata", {"a": [1]}, "texts and numbers"),
        ("tensors/tok/metadata", {"a": True}, "texts and numbers"),
        ("tensors/tok/metadata", ..., "metadata: an object"),
        ("tensors/norm", {"format": "half"}, "'norm' stands in the file both packed and plain"),
        ("format", None, "name of a format"),
        ("options", ..., "options: an object"),
        ("plugins", {"half": 7}, "texts"),
        ("kept", {"norm": None}, "texts"),
    ],
)
def test_lies_are_refused_in_a_line(path: str, value: Any, said: str) -> None:
    with pytest.raises(SplitbitError, match=said) as error:
        packed.decode(changed(path, value), "m.safetensors")
    assert str(error.value).startswith("m.safetensors: metadata packed")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "7", '{"version": 1, "version": 1}', "[" * 99_999])
def test_what_is_no_object_is_refused(text: str) -> None:
    arrays, metadata = file()
    with pytest.raises(SplitbitError, match=r"m.safetensors: metadata packed"):
        packed.decode(Tensors(arrays, {**metadata, "packed": text}), "m.safetensors")
