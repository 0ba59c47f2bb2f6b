"""q8_0 against ggml's own bytes, ternary against BitNet's own codes, and both at their limits."""

from __future__ import annotations

import json
import tracemalloc
import warnings
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden.quantizer_cases import cases

from splitbit_kit.api import PackedTensor
from splitbit_kit.bundled import quantizers as bundled
from splitbit_kit.bundled.quantizers.q8_0 import Q8_0
from splitbit_kit.bundled.quantizers.ternary import Ternary

Array = np.ndarray[Any, np.dtype[Any]]

RECORDED = json.loads(
    (Path(__file__).parents[1] / "golden/quantizers.json").read_text(encoding="utf-8")
)
WEIGHTS = cases()
BOTH = [Q8_0(), Ternary()]


def named(value: Any) -> str:
    return type(value).__name__


def codes(packed: PackedTensor) -> Array:
    """Return ternary codes as -1, 0, 1, read one by one as the format's page says."""
    length = packed.shape[1]
    found = np.zeros(packed.shape, np.int8)
    for j in range(length):
        byte, shift = j % (length // 4), 2 * (j // (length // 4))
        found[:, j] = (packed.arrays["codes"][:, byte] >> shift & 3).astype(np.int8) - 1
    return found


# ---- what others make of the same weights


@pytest.mark.parametrize("name", sorted(RECORDED["gguf"]))
def test_q8_0_has_ggmls_bytes(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        packed = Q8_0().pack(WEIGHTS[name])
    assert sha256(packed.arrays["blocks"].tobytes()).hexdigest() == RECORDED["gguf"][name]


@pytest.mark.parametrize("name", sorted(RECORDED["torch"]))
def test_ternary_has_bitnets_codes(name: str) -> None:
    packed, expected = Ternary().pack(WEIGHTS[name]), RECORDED["torch"][name]
    assert packed.arrays["scale"][0] == pytest.approx(expected["scale"], rel=1e-6)
    assert sha256(codes(packed).tobytes()).hexdigest() == expected["codes"]


def test_every_case_is_recorded() -> None:
    assert set(RECORDED["gguf"]) == set(WEIGHTS)


def test_halves_go_away_from_zero_in_q8_0() -> None:
    first = WEIGHTS["ties"][:, :32]  # the scale is 1
    expected = np.trunc(first + np.copysign(0.5, first))
    found = Q8_0().round(first)
    assert np.array_equal(found, expected)
    assert not np.array_equal(found, np.rint(first))


# ---- how the bytes lie


def test_a_q8_0_block_by_hand() -> None:
    w = np.zeros((1, 64), np.float32)
    w[0, 32:35] = 127, -3, 0.5  # scale 1: float16 1.0 is 0x3c00
    (row,) = Q8_0().pack(w).arrays["blocks"]
    assert row.tobytes() == bytes(34) + b"\x00\x3c" + bytes([127, 253, 1]) + bytes(29)


def test_ternary_bytes_by_hand() -> None:
    w = np.array([[1, 0, -1, -1, 1, 1, 0, -1]], np.float32) * 3
    packed = Ternary().pack(w)
    # byte 0 holds weights 0, 2, 4, 6 from its low bits up: codes 2, 0, 2, 1; byte 1: 1, 0, 2, 0
    assert packed.arrays["codes"].tolist() == [[0b01100010, 0b00100001]]
    assert packed.arrays["scale"].tolist() == [2.25]
    assert np.array_equal(Ternary().unpack(packed), np.sign(w) * np.float32(2.25))


def bits(packed: PackedTensor) -> float:
    return 8 * packed.nbytes / np.prod(packed.shape)


def test_bits_a_weight() -> None:
    w = WEIGHTS["normal"]
    assert bits(Q8_0().pack(w)) == 8.5
    assert bits(Ternary().pack(w)) <= 2.07
    assert bits(Ternary().pack(w[:2, :256])) == 2.0625  # four bytes of scale a tensor


@pytest.mark.parametrize("quantizer", BOTH, ids=named)
def test_arrays_are_those_of_the_layout(quantizer: Any) -> None:
    packed = quantizer.pack(WEIGHTS["normal"])
    assert {n: (a.dtype, a.shape) for n, a in packed.arrays.items()} == quantizer.layout((64, 512))
    assert packed.shape == (64, 512)
    assert packed.format in {offer.name for offer in bundled.quantizers()}


@pytest.mark.parametrize(
    ("quantizer", "length", "said"),
    [
        (Q8_0(), 172, "rows of 172 do not divide into blocks of 32"),
        (Ternary(), 30, "rows of 30 do not divide into bytes of 4 weights"),
    ],
)
def test_a_shape_without_room_is_named_by_its_rows(quantizer: Any, length: int, said: str) -> None:
    for attempt in (
        lambda: quantizer.layout((3, length)),
        lambda: quantizer.pack(np.ones((3, length), np.float32)),
    ):
        with pytest.raises(ValueError, match=said):
            attempt()


def test_a_layout_of_sizes_from_a_file_does_not_wrap() -> None:
    assert Q8_0().layout((2**40, 2**40))["blocks"][1] == (2**40, 2**35 * 34)


# ---- values


@pytest.mark.parametrize("name", ["normal", "small", "heavy-tailed", "constant", "one outlier"])
def test_q8_0_is_within_half_a_step(name: str) -> None:
    w = WEIGHTS[name]
    blocks = w.reshape(len(w), -1, 32)
    stored = (np.abs(blocks).max(axis=2) / 127).astype(np.float16).astype(np.float64)
    # the stored scale is off by at most 2^-11 of itself, 127 times
    allowed = stored * (0.5 + 127 * 2**-11)
    error = np.abs(Q8_0().round(w).reshape(blocks.shape).astype(np.float64) - blocks)
    assert (error <= allowed[..., None]).all()


@pytest.mark.parametrize("quantizer", BOTH, ids=named)
@pytest.mark.parametrize("size", [0, 1e-30, 1e-42, 1e-8, 1e-6, 1e4])
def test_the_stored_scale_decides(quantizer: Any, size: float) -> None:
    w = np.zeros((3, 256), np.float32)
    w[1] = size * np.sign(np.arange(256) % 3 - 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        packed = quantizer.pack(w)
        found = quantizer.unpack(packed)
    assert np.isfinite(found).all()
    assert not found[[0, 2]].any()
    if isinstance(quantizer, Q8_0):
        stored = np.float32(np.float16(np.float32(size) / np.float32(127)))
        assert np.array_equal(found[1], stored * np.sign(w[1]) * 127)
    else:
        assert np.array_equal(found[1], packed.arrays["scale"] * np.sign(w[1]))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("quantizer", "place"), [(Q8_0(), "row 1290, block 3"), (Ternary(), "row 1290, column 100")]
)
def test_what_is_not_finite_is_refused_with_its_place(
    quantizer: Any, place: str, bad: float
) -> None:
    w = np.zeros((2000, 256), np.float32)  # of several blocks of rows
    w[1290, 100] = bad
    with pytest.raises(ValueError, match=f"{place}: a weight is {bad}; finite"):
        quantizer.pack(w)


def test_q8_0_refuses_a_scale_that_float16_cannot_hold() -> None:
    w = np.zeros((1, 32), np.float32)
    w[0, 5] = 65519 * 127.0
    assert np.isfinite(Q8_0().round(w)).all()
    w[0, 5] = 65521 * 127.0
    with pytest.raises(ValueError, match=r"row 0, block 0: a weight is 8.321.*e\+06; finite"):
        Q8_0().pack(w)


@pytest.mark.parametrize("quantizer", BOTH, ids=named)
def test_ternary_and_q8_0_repeat_themselves(quantizer: Any) -> None:
    w = WEIGHTS["normal"]
    assert np.array_equal(quantizer.round(w), quantizer.unpack(quantizer.pack(w)))
    with pytest.raises(ValueError, match=f"bits 3: there are {quantizer.widths[0]}"):
        quantizer.unpack(quantizer.pack(w), bits=3)


# ---- rows


@pytest.mark.parametrize("quantizer", BOTH, ids=named)
def test_rows_are_unpacked_by_themselves(quantizer: Any) -> None:
    packed = quantizer.pack(WEIGHTS["normal"])
    whole = quantizer.unpack(packed)
    assert whole.dtype == np.float32
    for rows in (slice(0, 1), slice(7, 30), slice(63, 64), slice(5, 5), slice(None)):
        assert np.array_equal(quantizer.unpack(packed, rows=rows), whole[rows])


@pytest.mark.parametrize("quantizer", BOTH, ids=named)
def test_mapped_arrays_need_not_be_aligned(quantizer: Any) -> None:
    packed = quantizer.pack(WEIGHTS["normal"])
    moved = {}
    for name, array in packed.arrays.items():
        raw = b"\0" + array.tobytes()
        moved[name] = np.ndarray(array.shape, array.dtype, buffer=raw, offset=1)
    found = quantizer.unpack(PackedTensor(packed.format, packed.shape, moved))
    assert np.array_equal(found, quantizer.unpack(packed))


@pytest.mark.parametrize("quantizer", BOTH, ids=named)
def test_packing_takes_little_more_than_the_result(quantizer: Any) -> None:
    w = np.ones((8192, 1024), np.float32)  # 32 MB
    quantizer.pack(w[:2])
    tracemalloc.start()
    packed = quantizer.pack(w)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < packed.nbytes + 8 * 2**20


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
@pytest.mark.parametrize("quantizer", BOTH, ids=named)
def test_other_floats_are_taken_as_float32(quantizer: Any, dtype: Any) -> None:
    w = WEIGHTS["normal"].astype(np.float16)
    one, other = quantizer.pack(w.astype(dtype)), quantizer.pack(w.astype(np.float32))
    assert all(np.array_equal(one.arrays[n], other.arrays[n]) for n in other.arrays)
