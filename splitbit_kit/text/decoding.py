"""Bytes to text: a file in pieces of about a megabyte, decoded by its byte order mark or as told.

Nothing is guessed and nothing is normalised: bytes that do not decode are an error that names the
file and the byte, line endings stay as they are, and NUL is a character like any other. Memory is
bounded by the piece, whatever the length of a line.
"""

import codecs
import gzip
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from splitbit_kit.api.errors import SplitbitError, UsageError

READ_BYTES = 1 << 20
LONGEST_ROW = 1 << 26  # characters: a JSON row has to be in memory whole, so it needs a limit
KINDS = (".txt", ".jsonl", ".parquet")
ZIPPED = (".txt", ".jsonl")  # those that may be in gzip
EXPECTED = "expected .txt, .jsonl, .gz of either, or .parquet"

# The marks of UTF-32 come first: the little-endian one starts with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class NotTextError(SplitbitError):
    """A file that is not text as far as we can see; `reason` is the message without the path."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.reason = reason


class Encoding(NamedTuple):
    """The encoding of a file by Python's name, and whether a byte order mark says so."""

    name: str
    marked: bool


def kind(path: str) -> str | None:
    """Return one of KINDS by the file's name, a last ".gz" aside; None for any other name."""
    name = path.lower()
    plain = name.removesuffix(".gz")
    suffix = Path(plain).suffix
    return suffix if suffix in (KINDS if plain == name else ZIPPED) else None


def checked_encoding(encoding: str) -> str:
    """Return Python's name of a text encoding. Raises UsageError if there is none such."""
    try:
        b" ".decode(encoding, "replace")  # refuses the codecs that are not text, such as base64
        return codecs.lookup(encoding).name
    except (LookupError, ValueError):
        raise UsageError(
            f"encoding {encoding!r} is not known; expected a name like utf-8, utf-16-le or cp1252"
        ) from None


def detect(path: str, encoding: str | None = None) -> Encoding:
    """Return the encoding of a file: that of its byte order mark, else as told, else UTF-8.

    Raises NotTextError if `path` is not a regular file (a pipe can not be read twice) or a broken
    gzip file, and SplitbitError if it can not be read.
    """
    with readable(path), _open(path) as (stream, _):
        start = stream.read(4)
    marked = (Encoding(name, True) for mark, name in _MARKS if start.startswith(mark))
    return next(marked, Encoding(encoding or "utf-8", False))


def pieces(
    path: str, encoding: str, moved: Callable[[float], None] = lambda share: None
) -> Iterator[str]:
    """Yield a file's text in pieces of at most READ_BYTES bytes, without the byte order mark.

    `encoding` is the name that `detect` returned. `moved` is told the share of the file that is
    done. Raises NotTextError at bytes that do not decode, with their offset (in a gzip file, the
    offset after decompression), and at text dense in NULs.
    """
    decoder = codecs.getincrementaldecoder(encoding)()
    offset = 0
    begun = False
    with readable(path), _open(path) as (stream, raw):
        size = os.fstat(raw.fileno()).st_size or 1
        while True:
            block = stream.read(READ_BYTES)
            pending = len(decoder.getstate()[0])
            try:
                text = decoder.decode(block, final=not block)
                text.encode()  # some codecs, such as utf-7, let lone surrogates through
            except UnicodeError as error:
                at = offset - pending + getattr(error, "start", 0)
                raise NotTextError(path, _undecodable(encoding, at)) from None
            if text and not begun:
                begun = True
                text = text.removeprefix("\ufeff")
                _refuse_binary(path, text)
            if text:
                yield text
            moved(raw.tell() / size)
            if not block:
                return
            offset += len(block)


def rows(path: str, pieces: Iterable[str], column: str = "text") -> Iterator[str]:
    """Yield the field `column` of each JSON row; blank lines are passed over.

    Raises SplitbitError naming file and line at a row that is not an object with a string there.
    """
    for number, line in enumerate(_lines(path, pieces), start=1):
        if not line or line.isspace():
            continue
        try:
            row = json.loads(line)
            row[column].encode()
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
            raise SplitbitError(f"{path}, line {number}: {_bad_row(error, column)}") from None
        yield row[column]


def _lines(path: str, pieces: Iterable[str]) -> Iterator[str]:
    """Yield lines ended by LF alone: a JSON string may hold other line ends, such as U+2028."""
    parts: list[str] = []
    size = 0
    for piece in pieces:
        *ended, rest = piece.split("\n")
        for line in ended:
            yield "".join((*parts, line))
            parts.clear()
            size = 0
        parts.append(rest)
        size += len(rest)
        if size > LONGEST_ROW:
            raise SplitbitError(
                f"{path}: a row of more than {LONGEST_ROW:,} characters; split it into several rows"
            )
    yield "".join(parts)


def _bad_row(error: Exception, column: str) -> str:
    if isinstance(error, UnicodeEncodeError):
        return f"a lone surrogate at character {error.start} of the text, which is no text"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON ({error.msg} at column {error.colno}); expected one object in each line"
    return f'expected a JSON object with a string in the field "{column}" (--text-column NAME)'


def _undecodable(encoding: str, offset: int) -> str:
    other = "cp1252" if encoding == "utf-8" else "utf-8"
    return (
        f"byte {offset} is not valid {encoding}; if the file is in another encoding, name it, "
        f"for example --encoding {other}"
    )


def _refuse_binary(path: str, text: str) -> None:
    # Plain text in UTF-16 without its mark is half NULs; real text with a few of them is kept.
    nuls = text.count("\0")
    if nuls * 3 > len(text):
        raise NotTextError(
            path,
            f"binary: {nuls / len(text):.0%} of it is NUL; UTF-16 without a byte order mark needs "
            "--encoding utf-16-le",
        )


@contextmanager
def _open(path: str) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Give the bytes of a file, unzipped if need be, and the file as it lies on the disk."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 (a pipe would block in open)
        raise NotTextError(path, f"not a regular file; {EXPECTED}")
    with Path(path).open("rb") as raw:
        if path.lower().endswith(".gz"):
            with gzip.GzipFile(fileobj=raw, mode="rb") as unzipped:
                yield cast(BinaryIO, unzipped), raw
        else:
            yield raw, raw


@contextmanager
def readable(path: str) -> Iterator[None]:
    """Turn the errors of reading `path` into ours, one line each."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise NotTextError(path, f"damaged gzip file ({error})") from None
    except FileNotFoundError:
        raise NotTextError(path, "no such file, or a link to none") from None
    except OSError as error:
        raise SplitbitError(f"{error.filename or path}: {error.strerror or error}") from None
