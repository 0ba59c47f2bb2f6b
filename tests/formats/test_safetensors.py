import json
import os
import struct
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import deserialize
from safetensors.numpy import load_file, save_file

from splitbit_kit.api.errors import SplitbitError
from splitbit_kit.formats import safetensors
from splitbit_kit.formats.dtypes import DTYPES

OFFICIAL_NUMPY = ["F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"]


def some(code, shape=(3, 5)):
    count = int(np.prod(shape))
    return (np.arange(count) % 7).reshape(shape).astype(DTYPES[code])


def write_raw(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def refused(path):
    with pytest.raises(SplitbitError) as caught:
        safetensors.read(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert len(message) < len(str(path)) + 500
    return message.removeprefix(str(path))  # whose name has the name of the test in it


def assert_same(found, expected):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("code", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (3, 5), (2, 1, 2, 1, 2)])
def test_every_dtype_and_shape_comes_back(tmp_path, code, shape):
    path = tmp_path / "a.safetensors"
    safetensors.write(path, {"x": some(code, shape)}, {"format": "pt", "ключ": "ü"})
    arrays, metadata = safetensors.read(path)
    assert_same(arrays["x"], some(code, shape))
    assert metadata == {"format": "pt", "ключ": "ü"}


def test_the_official_package_reads_what_we_write(tmp_path):
    path = tmp_path / "a.safetensors"
    ours = {f"{code} {shape}": some(code, shape) for code in DTYPES
            for shape in [(), (0,), (3, 5), (16, 8)]}  # fmt: skip
    safetensors.write(path, ours, {})
    theirs = dict(deserialize(path.read_bytes()))
    assert set(theirs) == set(ours)
    for name, array in ours.items():
        assert theirs[name]["dtype"] == name.split()[0]
        assert theirs[name]["shape"] == list(array.shape)
        assert bytes(theirs[name]["data"]) == array.tobytes()
    plain = {name: array for name, array in ours.items() if name.split()[0] in OFFICIAL_NUMPY}
    safetensors.write(path, plain, {"a": "b"})
    for name, array in load_file(path).items():
        assert_same(array, plain[name])


def test_we_read_what_the_official_package_writes(tmp_path):
    path = tmp_path / "a.safetensors"
    theirs = {f"{code} {shape}": some(code, shape) for code in OFFICIAL_NUMPY
              for shape in [(), (0,), (3, 5)]}  # fmt: skip
    save_file(theirs, path, {"format": "np"})
    arrays, metadata = safetensors.read(path)
    assert metadata == {"format": "np"}
    assert set(arrays) == set(theirs)
    for name, array in theirs.items():
        assert_same(arrays[name], array)


def test_bf16_widens_exactly(tmp_path):
    bits = np.arange(2**16, dtype=np.uint16)
    path = write_raw(
        tmp_path / "a", {"x": entry("BF16", [2**16], [0, 2**17])}, bits.astype("<u2").tobytes()
    )
    found = safetensors.read(path).arrays["x"].astype(np.float32)
    expected = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(found, expected)


def test_memory_order_and_byte_order_do_not_matter(tmp_path):
    path = tmp_path / "a.safetensors"
    plain = np.arange(24, dtype=np.float32).reshape(4, 6)
    given_arrays = {
        "fortran": np.asfortranarray(plain),
        "strided": np.arange(48, dtype=np.float32)[::2].reshape(4, 6) / 2,
        "transposed": np.ascontiguousarray(plain.T).T,
        "big": plain.astype(">f4"),
    }
    safetensors.write(path, given_arrays, {})
    for array in safetensors.read(path).arrays.values():
        assert_same(array, plain)


def test_arrays_are_read_only_views_of_the_file(tmp_path):
    path = tmp_path / "a.safetensors"
    safetensors.write(path, {"x": np.zeros((1024, 1024), np.float32)}, {})
    tracemalloc.start()
    array = safetensors.read(path).arrays["x"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**19  # of 4 MB
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True


def test_writing_makes_no_second_copy(tmp_path):
    arrays = {"x": np.ones((1024, 1024), np.float32), "y": np.ones((1024, 512), ml_dtypes.bfloat16)}
    tracemalloc.start()
    safetensors.write(tmp_path / "a.safetensors", arrays, {})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**19


def test_data_is_aligned(tmp_path):
    path = tmp_path / "a.safetensors"
    arrays = {"a": some("U8", (3,)), "b": some("F32", (5,)), "c": some("F32", (16, 2)),
              "d": some("U8", (64,)), "e": some("F64", (3,)), "f": some("BF16", (7,))}  # fmt: skip
    safetensors.write(path, arrays, {})
    for array in safetensors.read(path).arrays.values():
        assert array.ctypes.data % (64 if array.nbytes % 64 == 0 else array.itemsize) == 0


def test_the_same_content_gives_the_same_bytes(tmp_path):
    one, two = tmp_path / "1", tmp_path / "2"
    a, b = some("F32"), some("F32", (4,))
    first = safetensors.write(one, {"a": a, "b": b}, {"k": "1", "j": "2"})
    second = safetensors.write(two, {"b": b, "a": a}, {"j": "2", "k": "1"})
    assert one.read_bytes() == two.read_bytes()
    assert first == second
    assert first.size == one.stat().st_size


def test_a_file_can_be_rewritten_from_its_own_arrays(tmp_path):
    path = tmp_path / "a.safetensors"
    safetensors.write(path, {"x": some("F32")}, {})
    arrays, metadata = safetensors.read(path)
    safetensors.write(path, arrays, metadata)
    assert_same(safetensors.read(path).arrays["x"], some("F32"))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("arrays", "metadata", "told"),
    [
        ({"x": np.array(["a"])}, {}, "tensor 'x' is <U1"),
        ({"x": np.zeros(2, np.complex128)}, {}, "complex128"),
        ({"x": np.array([None])}, {}, "object"),
        ({"__metadata__": np.zeros(2)}, {}, "cannot be the name"),
        ({1: np.zeros(2)}, {}, "cannot be the name"),
        ({"\ud800": np.zeros(2)}, {}, "surrogate"),
        ({}, {"step": 1}, "metadata 'step'"),
    ],
)
def test_what_cannot_be_written_is_named(tmp_path, arrays, metadata, told):
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"before")
    with pytest.raises(SplitbitError, match=told):
        safetensors.write(path, arrays, metadata)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


FAULTS = {
    "empty": (b"", "0 bytes"),
    "seven bytes": (b"\0" * 7, "7 bytes"),
    "header of 2^64-1": (b"\xff" * 8 + b"{}", "18446744073709551615"),
    "header one past the end": (struct.pack("<Q", 3) + b"{}", "header length 3"),
    "no object": (struct.pack("<Q", 2) + b"[]", "does not begin with {"),
    "leading space": (struct.pack("<Q", 3) + b" {}", "does not begin with {"),
    "bad UTF-8": (struct.pack("<Q", 4) + b'{"\xff"', "byte 10 is not UTF-8"),
    "bad JSON": (struct.pack("<Q", 5) + b'{"a"}', "not JSON at byte 12"),
    "bytes after": (struct.pack("<Q", 2) + b"{}x", "1 bytes at byte 10 belong to no tensor"),
    "deep": (struct.pack("<Q", 100_005) + b'{"a":' + b"[" * 100_000, "nested too deeply"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bytes_that_are_no_safetensors_file(tmp_path, fault):
    path = tmp_path / "a.safetensors"
    data, told = FAULTS[fault]
    path.write_bytes(data)
    assert told in refused(path)


HEADERS = {
    "key twice": (b'{"a":1,"a":2}', "'a' stands twice"),
    "key twice in a tensor": (b'{"a":{"dtype":"F32","dtype":"F32"}}', "'dtype' stands twice"),
    "NaN": (b'{"a":NaN}', "NaN"),
    "surrogate": (b'{"\\ud800":1}', "lone surrogate"),
    "huge number": (b'{"a":' + b"9" * 5000 + b"}", "not strict JSON"),
    "entry no object": ({"a": [1]}, "tensor 'a'"),
    "metadata no object": ({"__metadata__": [1]}, "__metadata__"),
    "metadata no text": ({"__metadata__": {"a": 1}}, "__metadata__"),
    "no dtype": ({"a": {"shape": [2], "data_offsets": [0, 8]}}, "dtype None"),
    "unknown dtype": ({"a": entry("F4")}, "dtype 'F4'"),
    "dtype no text": ({"a": entry(["F32"])}, "dtype"),
    "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, "shape None"),
    "negative size": ({"a": entry(shape=[-1, -2])}, "shape [-1, -2]"),
    "bool size": ({"a": entry(shape=[True, 2])}, "shape [True, 2]"),
    "float size": ({"a": entry(shape=[2.0])}, "shape [2.0]"),
    "text size": ({"a": entry(shape=["2"])}, "shape ['2']"),
    "65 sizes": ({"a": entry(shape=[1] * 64 + [2])}, "at most 64 sizes"),
    "product that wraps to 0": ({"a": entry(shape=[2**22] * 3, offsets=[0, 0])}, "memory"),
    "product that wraps to 8": ({"a": entry("U8", [2**63 + 4, 2])}, "memory"),
    "size hidden by a 0": ({"a": entry(shape=[2**70, 0], offsets=[0, 0])}, "memory"),
    "offsets reversed": ({"a": entry(offsets=[8, 0])}, "data_offsets [8, 0]"),
    "offset negative": ({"a": entry(offsets=[-8, 0])}, "data_offsets"),
    "offset bool": ({"a": entry("U8", [1], [False, True])}, "data_offsets"),
    "three offsets": ({"a": entry(offsets=[0, 8, 8])}, "data_offsets"),
    "too short for the shape": ({"a": entry(shape=[1])}, "8 bytes"),
    "past the end": ({"a": entry("U8", [9], [0, 9])}, "past the end"),
    "offset of 2^64": ({"a": entry(offsets=[2**64, 2**64 + 8])}, "past the end"),
    "overlap": ({"a": entry(), "b": entry("U8", [4], [4, 8])}, "overlaps"),
    "same place": ({"a": entry(), "b": entry()}, "overlaps"),
    "empty inside another": ({"a": entry(), "b": entry(shape=[0], offsets=[4, 4])}, "overlaps"),
    "gap": ({"a": entry("U8", [2], [0, 2]), "b": entry("U8", [4], [4, 8])}, "gap"),
    "gap at the start": ({"a": entry("U8", [4], [4, 8])}, "gap"),
    "end not reached": ({"a": entry("U8", [4], [0, 4])}, "belong to no tensor"),
    "long name": ({"a\n" * 10_000: entry("F4")}, "dtype 'F4'"),
}


@pytest.mark.parametrize("fault", HEADERS)
def test_headers_that_lie(tmp_path, fault):
    header, told = HEADERS[fault]
    assert told in refused(write_raw(tmp_path / "a.safetensors", header, b"\0" * 8))


def test_a_header_over_its_cap_is_not_read(tmp_path):
    path = tmp_path / "a.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", safetensors.HEADER_CAP + 1) + b"{")
        file.truncate(2**30)
    assert "header length" in refused(path)


def test_legal_but_unusual_files_load(tmp_path):
    """Entries in any order, unaligned, unknown keys, no metadata, spaces after the header."""
    header = {
        "c": {**entry("F32", [1], [3, 7]), "note": "?"},
        "a": entry("U8", [3], [0, 3]),
        "../../x": entry("F64", [0, 4], [7, 7]),
    }
    text = json.dumps(header).encode() + b"   "
    path = write_raw(tmp_path / "a.safetensors", text, b"\1\2\3" + np.float32(0.5).tobytes())
    arrays = safetensors.read(path).arrays
    assert list(arrays) == ["a", "c", "../../x"]
    assert arrays["a"].tolist() == [1, 2, 3]
    assert arrays["c"].tolist() == [0.5]
    assert arrays["../../x"].shape == (0, 4)


def test_a_sparse_file_of_a_terabyte_costs_nothing(tmp_path):
    path = write_raw(tmp_path / "a.safetensors", {"a": entry("F32", [2**38], [0, 2**40])})
    os.truncate(path, path.stat().st_size + 2**40)
    tracemalloc.start()
    array = safetensors.read(path).arrays["a"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert array.shape == (2**38,)
    assert array[-1] == 0
    assert peak < 2**20


def test_what_is_no_ordinary_file_is_named(tmp_path):
    assert "is a folder" in refused(tmp_path)
    assert "No such file" in refused(tmp_path / "missing")
    pointer = tmp_path / "model.safetensors"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
    assert "git-lfs pointer" in refused(pointer)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "is a pipe or device" in refused(tmp_path / "pipe")


def tiny_file(path):
    safetensors.write(path, {"a": some("F32", (2, 2)), "b": some("BOOL", (3,))}, {"k": "v"})
    return path.read_bytes()


def test_truncated_at_every_byte(tmp_path):
    path = tmp_path / "a.safetensors"
    whole = tiny_file(path)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        refused(path)


def test_every_byte_flipped(tmp_path):
    path = tmp_path / "a.safetensors"
    whole = tiny_file(path)
    for at in range(len(whole)):
        for flip in (0x01, 0x10, 0x80, 0xFF):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
            load_or_refuse(path)


NUMBERS = st.one_of(st.integers(-2, 9), st.sampled_from([2**31, 2**63, 2**64 - 1, True, 0.5, None]))
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*DTYPES, "F4", "", None]),
        "shape": st.lists(NUMBERS, max_size=3),
        "data_offsets": st.lists(NUMBERS, min_size=1, max_size=3),
    }
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(max_size=3), ENTRIES, max_size=3), st.binary(max_size=9))
def test_any_header_loads_or_is_refused(tmp_path_factory, header, data):
    load_or_refuse(write_raw(tmp_path_factory.mktemp("h") / "a.safetensors", header, data))


def load_or_refuse(path):
    try:
        arrays, metadata = safetensors.read(path)
    except SplitbitError as error:
        assert "\n" not in str(error)
        return
    assert all(isinstance(text, str) for pair in metadata.items() for text in pair)
    assert sum(len(array.tobytes()) for array in arrays.values()) <= path.stat().st_size
