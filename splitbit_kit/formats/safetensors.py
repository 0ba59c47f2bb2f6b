"""Tensors on disk in the safetensors format, https://github.com/huggingface/safetensors.

    8 bytes    length of the header, little-endian
    header     JSON: {name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}}
    data       the tensors back to back, offsets counted from here

The reader is our own because the package's NumPy reader knows neither BF16 nor F8; the writer,
because the package serialises through a second copy of the data, and a model of 124 million
parameters with its moments is 1.5 GB. The package stays the witness in the tests.
"""

import json
import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from splitbit_kit.api.errors import SplitbitError
from splitbit_kit.formats import strict_json
from splitbit_kit.formats.dtypes import DTYPES, code_of
from splitbit_kit.formats.durable import Written, replace_file
from splitbit_kit.formats.untrusted import opened, shown

Array = NDArray[Any]

HEADER_CAP = 100_000_000  # bytes; the official reader's
MOST_DIMENSIONS = 64  # NumPy's
_MOST_BYTES = 2**63 - 1
_ALIGNMENT = 64  # a cache line, and the widest vector register


class Tensors(NamedTuple):
    """Named arrays with the text metadata of their file."""

    arrays: Mapping[str, Array]
    metadata: Mapping[str, str]


def write(path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> Written:
    """Return the size and hash of the file that now durably stands at path, replacing any before.

    Raises SplitbitError, with what stood there before untouched.
    """
    return replace_file(path, encode(arrays, metadata, where=str(path)))


def encode(
    arrays: Mapping[str, Array], metadata: Mapping[str, str], where: str
) -> Iterator[bytes | memoryview]:
    """Yield the file piece by piece: the header, then each array's own memory.

    Only an array that is not C-contiguous and little-endian is copied, one at a time. The same
    arrays and metadata always give the same bytes. `where` begins an error line.
    """
    header: dict[str, Any] = {"__metadata__": _checked_metadata(metadata, where)}
    order = sorted(arrays, key=lambda name: _place(name, arrays[name]))
    begin = 0
    for name in order:
        array = arrays[name]
        if not isinstance(name, str) or name == "__metadata__":
            raise SplitbitError(f"{where}: {shown(name)} cannot be the name of a tensor")
        code = code_of(array.dtype)
        if code is None:
            raise SplitbitError(
                f"{where}: tensor {shown(name)} is {array.dtype}; one of {', '.join(DTYPES)} "
                "is expected"
            )
        end = begin + array.nbytes
        header[name] = {"dtype": code, "shape": array.shape, "data_offsets": (begin, end)}
        begin = end
    yield _header_bytes(header, where)
    for name in order:
        array = arrays[name]
        plain = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
        yield plain.reshape(-1).view(np.uint8).data


def _place(name: str, array: Array) -> tuple[bool, int, str]:
    # The format forbids gaps, so alignment must come from the order: whole cache lines first, and
    # the rest by falling item size. Each tensor then starts at a multiple of its item size.
    return (array.nbytes % _ALIGNMENT != 0, -array.itemsize, name)


def _checked_metadata(metadata: Mapping[str, str], where: str) -> dict[str, str]:
    for key, value in metadata.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise SplitbitError(f"{where}: metadata {shown(key)}: text to text is expected")
    return dict(sorted(metadata.items()))


def _header_bytes(header: dict[str, Any], where: str) -> bytes:
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False)
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise SplitbitError(f"{where}: a name with a lone surrogate cannot be stored") from error
    data += b" " * (-(8 + len(data)) % _ALIGNMENT)
    if len(data) > HEADER_CAP:
        raise SplitbitError(f"{where}: header of {len(data)} bytes, at most {HEADER_CAP} may stand")
    return struct.pack("<Q", len(data)) + data


def read(path: Path) -> Tensors:
    """Return the file's arrays, mapped read-only and in file order, and its metadata.

    Nothing is copied or allocated by a declared size. A file whose offsets are not multiples of
    the item size is legal; its arrays come unaligned (`np.require(a, requirements="A")` copies).
    Raises SplitbitError naming the file, the tensor and the offset.
    """
    with opened(path) as (file, size):
        header, start = _read_header(file, size, path)
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(
            isinstance(value, str) for value in metadata.values()
        ):
            raise SplitbitError(f"{path}: __metadata__: an object of texts is expected")
        entries = [_entry(name, entry, path) for name, entry in header.items()]
        entries.sort(key=lambda entry: (entry.begin, entry.end))
        _check_layout(entries, size - start, path, start)
        try:
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise SplitbitError(f"{path}: became shorter while it was read") from error
    arrays = {
        entry.name: np.ndarray(entry.shape, entry.dtype, buffer=mapped, offset=start + entry.begin)
        for entry in entries
    }
    return Tensors(arrays, metadata)


class _Entry(NamedTuple):
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int  # within the data
    end: int


def _read_header(file: BinaryIO, size: int, path: Path) -> tuple[dict[str, Any], int]:
    if size < 8:
        raise SplitbitError(f"{path}: {size} bytes, too short for a safetensors header (8)")
    (length,) = struct.unpack("<Q", file.read(8))
    if length > min(size - 8, HEADER_CAP):
        raise SplitbitError(
            f"{path}: header length {length} at byte 0: at most {min(size - 8, HEADER_CAP)} "
            "is possible; the file is cut short or no safetensors file"
        )
    data = file.read(length)
    if not data.startswith(b"{"):
        raise SplitbitError(f"{path}: the header at byte 8 does not begin with {{")
    header = strict_json.parse(data, f"{path}: header", offset=8)
    if not isinstance(header, dict):
        raise SplitbitError(f"{path}: the header at byte 8 is not an object")
    return header, 8 + length


def _entry(name: str, entry: Any, path: Path) -> _Entry:
    where = f"{path}: tensor {shown(name)}"
    if not isinstance(entry, dict):
        raise SplitbitError(f"{where}: an object with dtype, shape and data_offsets is expected")
    code, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    dtype = DTYPES.get(code) if isinstance(code, str) else None
    if dtype is None:
        raise SplitbitError(f"{where}: dtype {shown(code)}; one of {', '.join(DTYPES)} is expected")
    if not _is_counts(shape) or len(shape) > MOST_DIMENSIONS:
        raise SplitbitError(
            f"{where}: shape {shown(shape)}; at most {MOST_DIMENSIONS} sizes, each a whole number "
            "of 0 or more, are expected"
        )
    if not _is_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise SplitbitError(f"{where}: data_offsets {shown(offsets)}; [begin, end] is expected")
    begin, end = offsets
    # Python integers, which do not wrap; a size of 0 must not hide sizes that NumPy cannot hold
    if math.prod(size or 1 for size in shape) * dtype.itemsize > _MOST_BYTES:
        raise SplitbitError(f"{where}: shape {shown(shape)} is more than memory can ever hold")
    expected = math.prod(shape) * dtype.itemsize
    if end - begin != expected:
        raise SplitbitError(
            f"{where}: data_offsets {shown(offsets)} hold {end - begin} bytes, "
            f"but {code} {shown(shape)} needs {expected}"
        )
    return _Entry(name, dtype, tuple(shape), begin, end)


def _is_counts(value: Any) -> TypeGuard[list[int]]:
    # type() and not isinstance(): true is an int to Python
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_layout(entries: list[_Entry], available: int, path: Path, start: int) -> None:
    """Raise SplitbitError unless the sorted entries fill the data exactly."""
    reached = 0
    for entry in entries:
        where = f"{path}: tensor {shown(entry.name)} at byte {start + entry.begin}"
        if entry.end > available:
            raise SplitbitError(
                f"{where} ends at byte {start + entry.end}, past the end of the file "
                f"({start + available}); it is cut short, copy or download it again"
            )
        if entry.begin < reached:
            raise SplitbitError(f"{where} overlaps the one before, up to byte {start + reached}")
        if entry.begin > reached:
            raise SplitbitError(f"{where} leaves a gap after byte {start + reached}")
        reached = entry.end
    if reached != available:
        raise SplitbitError(
            f"{path}: {available - reached} bytes at byte {start + reached} belong to no tensor"
        )
