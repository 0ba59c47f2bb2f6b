"""Metrics as JSON lines: one object a line, appended as training goes.

The lines are strict JSON, so a value that is not finite stands as the text "nan", "inf" or "-inf";
`float(value)` turns it back. Lines are not fsynced one by one: a power cut may cost the last of
them, which a resumed run writes again.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from splitbit_kit.api.errors import SplitbitError
from splitbit_kit.formats import durable, strict_json
from splitbit_kit.formats.untrusted import opened


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Return when the row is one more line of the file, visible to other readers.

    NumPy scalars stand as plain numbers. Raises SplitbitError, with no part of the line left.
    """
    line = strict_json.dump(_plain(row), str(path)) + b"\n"
    with durable.explained(path, "append to it"), path.open("ab", buffering=0) as file:
        start = os.fstat(file.fileno()).st_size
        try:
            durable.write_whole(file.fileno(), memoryview(line))
        except BaseException:
            with suppress(OSError):
                file.truncate(start)
            raise


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows; a last line that was cut off by a crash is left out.

    Raises SplitbitError naming the number of any other line that is no JSON object.
    """
    return list(rows(path))


def rows(
    path: Path, damaged: Callable[[SplitbitError], None] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows one by one, so that a file of any length can be read; as `read` otherwise.

    damaged: told of a line that is no JSON object, which is then passed over instead of raised.
    """
    for number, line in enumerate(_whole_lines(path), start=1):
        try:
            row = strict_json.parse(line, where := f"{path}: line {number}")
            if not isinstance(row, dict):
                raise SplitbitError(f"{where}: an object is expected")
        except SplitbitError as error:
            if damaged is None:
                raise
            damaged(error)
        else:
            yield row


def cut_back(path: Path, step: int, kinds: Mapping[str, int] | None = None) -> int:
    """Return how many lines were dropped so that a run resumed at `step` can append.

    Dropped are lines of later steps, and lines that a crash left unreadable. `kinds` gives the last
    step for lines of a kind by itself: what was not yet done at `step` comes again. The file is
    replaced in one step. A missing file stays missing.
    """
    if not path.exists():
        return 0
    with opened(path) as (file, _):
        lines = list(file)
    kept = [line for line in lines if _belongs(line, step, kinds or {}, path)]
    if len(kept) < len(lines):
        durable.replace_file(path, kept)
    return len(lines) - len(kept)


def _whole_lines(path: Path) -> Iterator[bytes]:
    with opened(path) as (file, _):
        yield from (line for line in file if line.endswith(b"\n"))


def _belongs(line: bytes, step: int, kinds: Mapping[str, int], path: Path) -> bool:
    try:
        row = strict_json.parse(line, str(path))
    except SplitbitError:
        return False
    if not line.endswith(b"\n") or not isinstance(row, dict):
        return False
    at = row.get("step", 0)
    kind = row.get("kind")
    last = kinds.get(kind, step) if isinstance(kind, str) else step
    return not isinstance(at, int | float) or at <= last


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
