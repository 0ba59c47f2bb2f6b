"""Text to a file of ids, made once and memory-mapped ever after.

A token file holds the ids of a corpus, with end-of-text after each document that is not empty. It
lies in the user's cache (SPLITBIT_CACHE, or the system's place for caches) under a name made of the
hashes of text and tokenizer, so that a changed text or tokenizer gets a file of its own. Nothing in
there is needed: to clear it, delete the folder `tokens` that `cache_folder()` names.

The file is one line of JSON padded to HEADER_BYTES, then the ids in little-endian, two bytes each
up to a vocabulary of 65,536 and four above. It is verified whole each time that it is opened.
"""

import hashlib
import json
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_path

from splitbit_kit.api.errors import SplitbitError, UsageError
from splitbit_kit.text.corpus import ContentHash, Corpus, documents
from splitbit_kit.text.progress import Progress, unheard
from splitbit_kit.text.tokenizer import Tokenizer

FORMAT = "splitbit-kit tokens 1"  # counts up whenever the same text would give other ids
HEADER_BYTES = 512
_CHUNK = 1 << 20  # ids looked at in one go

Ids = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class TokenFile:
    """The ids of a corpus (N,), read-only and memory-mapped.

    `sha256` names the content (text and tokenizer): a run keeps it and refuses other data by it.
    `path` is None for a temporary file; `notice` says in a line what the user should know, if
    anything.
    """

    ids: Ids
    sha256: str
    path: Path | None = None
    notice: str | None = None

    @property
    def count(self) -> int:
        """Return the number of ids N."""
        return len(self.ids)


class _DamagedError(Exception):
    """A cached file that is not what its name promises; it is made anew."""


def cache_folder() -> Path:
    """Return the folder of our caches: SPLITBIT_CACHE if it is set, else the system's place."""
    chosen = os.environ.get("SPLITBIT_CACHE")
    return Path(chosen) if chosen else user_cache_path("splitbit-kit")


def token_file(
    corpus: Corpus,
    tokenizer: Tokenizer,
    folder: Path | None = None,
    progress: Progress = unheard,
) -> TokenFile:
    """Return the ids of a corpus, from the cache `folder` if they are there, else made and kept.

    Where the folder can not be written, the ids go to a temporary file that vanishes with them, and
    `notice` says so. Raises SplitbitError if the text changes meanwhile or no place can hold it.
    """
    folder = cache_folder() / "tokens" if folder is None else folder
    key = hashlib.sha256(f"{FORMAT}\n{corpus.sha256}\n{tokenizer.sha256}".encode()).hexdigest()
    path = folder / f"{key[:40]}.tokens"
    notice = None
    try:
        return TokenFile(_opened(path, key, tokenizer.vocab_size), key, path)
    except FileNotFoundError:
        pass
    except (_DamagedError, OSError) as error:
        notice = f"token cache: {path.name} is made anew ({error})"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _replacing(path) as file:
            _write(file, key, corpus, tokenizer, progress)
        return TokenFile(_opened(path, key, tokenizer.vocab_size), key, path, notice)
    except (_DamagedError, OSError) as error:
        notice = f"token cache: no use of {folder} ({error}); the tokens are in a temporary file"
    try:
        with tempfile.TemporaryFile() as unnamed:
            file = cast(BinaryIO, unnamed)
            _write(file, key, corpus, tokenizer, progress)
            return TokenFile(_mapped(file, key, tokenizer.vocab_size), key, None, notice)
    except (_DamagedError, OSError) as error:
        raise SplitbitError(
            f"the tokens can not be written: not to {folder}, nor to {tempfile.gettempdir()} "
            f"({error}); set SPLITBIT_CACHE to a folder with room"
        ) from None


def split(ids: Ids, validation: float = 0.1) -> tuple[Ids, Ids]:
    """Return (training ids, validation ids): views, the last share `validation` being the latter.

    Raises UsageError unless 0 <= validation < 1.
    """
    if not 0 <= validation < 1:
        raise UsageError(f"validation share {validation}: expected at least 0 and less than 1")
    cut = int(len(ids) * (1 - validation))
    return ids[:cut], ids[cut:]


def seen_ids(ids: Ids, vocab_size: int) -> NDArray[np.bool_]:
    """Return which ids of the vocabulary (V,) occur in `ids` (N,): only they can be learnt."""
    seen = np.zeros(vocab_size, np.bool_)
    for start in range(0, len(ids), _CHUNK):
        seen[ids[start : start + _CHUNK]] = True
        _let_go(ids)
    return seen


def _write(
    file: BinaryIO, key: str, corpus: Corpus, tokenizer: Tokenizer, progress: Progress
) -> None:
    """Write header and ids, and flush them to the disk. Memory: a piece of text and its ids."""
    dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")
    end_of_text = np.array([tokenizer.end_of_text])
    checksum = hashlib.sha256()
    count = 0

    def append(ids: Ids) -> None:
        nonlocal count
        data = ids.astype(dtype).tobytes()
        file.write(data)
        checksum.update(data)
        count += len(ids)

    text = ContentHash()
    file.write(bytes(HEADER_BYTES))
    for document in documents(corpus, partial(progress, "tokenising")):
        before = count
        for ids in tokenizer.encode_pieces(text.through(document)):
            append(ids)
        if count > before:
            append(end_of_text)
    if text.hexdigest() != corpus.sha256:
        raise SplitbitError("the text changed while it was read; run again when it stands still")
    header = {
        "format": FORMAT,
        "key": key,
        "dtype": dtype.str,
        "count": count,
        "sha256": checksum.hexdigest(),
    }
    file.seek(0)
    file.write(json.dumps(header).encode().ljust(HEADER_BYTES))
    file.flush()
    os.fsync(file.fileno())


def _opened(path: Path, key: str, vocab_size: int) -> Ids:
    with path.open("rb") as file:
        return _mapped(file, key, vocab_size)


def _mapped(file: BinaryIO, key: str, vocab_size: int) -> Ids:
    """Return the verified ids of an open token file. Raises _DamagedError, naming what is wrong."""
    size = os.fstat(file.fileno()).st_size - HEADER_BYTES
    file.seek(0)
    try:
        header = json.loads(file.read(HEADER_BYTES))
    except (ValueError, RecursionError):
        raise _DamagedError("its header is damaged") from None
    dtype = np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
    count = size // dtype.itemsize
    promised = {"format": FORMAT, "key": key, "dtype": dtype.str, "count": count}
    if not isinstance(header, dict) or {**header, **promised} != header or size % dtype.itemsize:
        raise _DamagedError("its header does not fit its name and size")
    if count == 0:  # an empty file can not be mapped
        return np.empty(0, dtype)
    checksum = hashlib.sha256()
    file.seek(HEADER_BYTES)
    while part := file.read(_CHUNK * dtype.itemsize):  # read, since a map would count as memory
        checksum.update(part)
        if np.frombuffer(part, dtype).max() >= vocab_size:
            raise _DamagedError("it holds an id that is not in the vocabulary")
    if checksum.hexdigest() != header.get("sha256"):
        raise _DamagedError("its checksum does not hold")
    return np.memmap(file, dtype, mode="r", offset=HEADER_BYTES, shape=(count,))


def _let_go(ids: Ids) -> None:
    """Give the memory back that a mapped file's pages take; they come again when they are read."""
    mapping = getattr(ids, "_mmap", None)
    if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):  # POSIX only
        mapping.madvise(mmap.MADV_DONTNEED)


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a new file that takes the place of `path` when complete, and leaves no trace otherwise.

    Two processes that make the same file at once write one each, of equal content; the last stays.
    The folder is not synced: a file lost to a power cut is only made anew.
    """
    handle, name = tempfile.mkstemp(".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb+") as file:
            yield file
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
