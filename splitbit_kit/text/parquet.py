"""Texts from a column of a Parquet file, batch by batch: memory does not grow with the file.

PyArrow, which reads it, is an extra, and is imported only when there is such a file.
"""

from collections.abc import Callable, Iterator
from typing import Any

from splitbit_kit.api.errors import SplitbitError
from splitbit_kit.text.decoding import NotTextError

_BATCH = 64  # rows held at once
_BUFFER = 1 << 20  # bytes; without a buffer PyArrow takes in a column of a row group whole


def rows(
    path: str, column: str, moved: Callable[[float], None] = lambda share: None
) -> Iterator[str]:
    """Yield the text of each row; `moved` is told the share of the rows that is done.

    Raises NotTextError for a file that is not Parquet or bytes that are not UTF-8, SplitbitError
    for a missing column, one of another type, an empty cell, or when PyArrow is not installed.
    """
    parquet, failures = _library(path)
    number = 0
    try:
        with parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False) as file:
            _check_column(path, file.schema_arrow, column)
            for batch in file.iter_batches(_BATCH, columns=[column]):
                for cell in batch.column(0):
                    number += 1
                    yield _text(path, number, column, cell.as_py())
                moved(number / file.metadata.num_rows)
    except UnicodeDecodeError as error:
        where = f"row {number}: byte {error.start} of its text is not valid utf-8"
        raise NotTextError(path, where) from None
    except failures as error:
        raise NotTextError(path, f"damaged Parquet file ({_first_line(error)})") from None


def _library(path: str) -> tuple[Any, tuple[type[Exception], ...]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise SplitbitError(
            f"{path}: PyArrow, which reads Parquet files, is not installed; "
            "pip install 'splitbit-kit[parquet]'"
        ) from None
    return pyarrow.parquet, (pyarrow.ArrowException, OSError)


def _check_column(path: str, schema: Any, column: str) -> None:
    import pyarrow.types as types

    names = list(dict.fromkeys(schema.names))
    if column not in names:
        raise SplitbitError(
            f"{path}: there is no column {column!r}; it has {', '.join(names)} (--text-column NAME)"
        )
    if schema.names.count(column) > 1:
        raise SplitbitError(f"{path}: there are several columns {column!r}; one is expected")
    kind = schema.field(column).type
    if types.is_dictionary(kind):
        kind = kind.value_type
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind)):
        raise SplitbitError(f"{path}: column {column!r} holds {kind}; text is expected")


def _text(path: str, number: int, column: str, value: Any) -> str:
    if value is None:
        raise SplitbitError(f"{path}, row {number}: no text in column {column!r}; fill or drop it")
    return value.decode() if isinstance(value, bytes) else str(value)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
