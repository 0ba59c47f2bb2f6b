"""Files to documents: which files are the corpus, what they hold, and their text in pieces.

`scan` reads everything once, so that bad files are known before any work starts, and returns a
`Corpus`: the report of what was read and what was skipped, and the hash of the text. `documents`
reads it again, as often as wanted. A document is an iterator of pieces of text (a file, or a row of
a .jsonl file), so that a huge one is never in memory; read each before you ask for the next.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from splitbit_kit.api.errors import SplitbitError, UsageError
from splitbit_kit.text import decoding
from splitbit_kit.text.decoding import NotTextError

BUILTIN = "builtin"
_EXPECTED = "expected .txt, .jsonl, or .gz of either"

Document = Iterator[str]
Identity = tuple[int, int] | str  # device and number of a file or folder; the built-in corpus


@dataclass(frozen=True)
class TextFile:
    """One file that was read, `size` in bytes as it lies on the disk.

    `encoding` is the one used, `marked` whether the file's byte order mark chose it.
    """

    path: str
    encoding: str
    marked: bool
    size: int
    documents: int
    characters: int


@dataclass(frozen=True)
class Skipped:
    """One member of a folder that was left out, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Corpus:
    """What was read, what was skipped, and `sha256`, the hash of the documents' text."""

    files: tuple[TextFile, ...]
    skipped: tuple[Skipped, ...]
    sha256: str


class ContentHash:
    """The hash of a sequence of documents, whatever their pieces and the files that hold them."""

    def __init__(self) -> None:
        self._documents = hashlib.sha256()

    def through(self, document: Iterable[str]) -> Document:
        """Yield the pieces of a document; it counts once its last piece was taken."""
        text = hashlib.sha256()
        for piece in document:
            text.update(piece.encode())
            yield piece
        # A digest for each document keeps ("ab", "c") apart from ("a", "bc").
        self._documents.update(text.digest())

    def copy(self) -> "ContentHash":
        """Return an independent hash that has seen the same documents."""
        other = ContentHash()
        other._documents = self._documents.copy()
        return other

    def hexdigest(self) -> str:
        """Return the SHA-256 of the documents so far, as 64 hexadecimal digits."""
        return self._documents.hexdigest()


def scan(
    paths: Sequence[str | os.PathLike[str]],
    encoding: str | None = None,
    strict: bool = False,
    held_out: Corpus | None = None,
) -> Corpus:
    """Return the corpus in files and folders, every real file read once, folders in sorted order.

    The path "builtin" stands for the built-in corpus (a folder of that name is "./builtin").
    A byte order mark decides a file's encoding, else `encoding`, else UTF-8. Members of folders
    that are not text are skipped with a reason; `strict` makes them errors. The files of `held_out`
    are skipped under whichever name they come. Raises UsageError for a path that is missing or of
    another kind, NotTextError for a named file that is not text, and SplitbitError for a bad row or
    when there is nothing to read.
    """
    encoding = decoding.checked_encoding(encoding) if encoding else None
    content = ContentHash()
    files: list[TextFile] = []
    skipped: list[Skipped] = []
    apart = {_identity(file.path) for file in held_out.files} if held_out else set()
    for path, in_folder in _paths([os.fspath(path) for path in paths]):
        if _is_among(path, apart):
            skipped.append(Skipped(path, "it is held out for validation"))
            continue
        trial = content.copy()  # a file that turns out not to be text leaves no trace in the hash
        try:
            files.append(_read(path, encoding, trial))
            content = trial
        except NotTextError as error:
            if strict or not in_folder:
                raise
            skipped.append(Skipped(path, error.reason))
    if not files:
        why = (
            f" ({len(skipped)} skipped; {skipped[0].path}: {skipped[0].reason})" if skipped else ""
        )
        named = ", ".join(map(str, paths)) or "no path was given"
        raise SplitbitError(f"{named}: no text found; {_EXPECTED}{why}")
    return Corpus(tuple(files), tuple(skipped), content.hexdigest())


def absolute(path: str | os.PathLike[str]) -> str:
    """Return a path as it may be kept: absolute, links resolved; "builtin" stays what it is."""
    return BUILTIN if os.fspath(path) == BUILTIN else str(Path(path).resolve())


def documents(corpus: Corpus) -> Iterator[Document]:
    """Yield the documents of a corpus, in its order, each an iterator of pieces of text."""
    for file in corpus.files:
        yield from _documents(file.path, file.encoding)


def builtin_documents() -> Iterator[Document]:
    """Yield the topics of Python's own help, sorted by name: about 465,000 characters of English.

    The text is that of the running Python's `pydoc_data.topics`, so it differs between versions.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise SplitbitError(
            "builtin: this Python comes without pydoc_data.topics; name a text file instead"
        ) from None
    for name in sorted(topics):
        yield iter((topics[name],))


def _documents(path: str, encoding: str) -> Iterator[Document]:
    if path == BUILTIN:
        yield from builtin_documents()
        return
    pieces = decoding.pieces(path, encoding)
    if decoding.kind(path) == ".jsonl":
        for text in decoding.rows(path, pieces):
            yield iter((text,))
    else:
        yield pieces


def _read(path: str, encoding: str | None, content: ContentHash) -> TextFile:
    found = decoding.Encoding("utf-8", False)
    if path != BUILTIN:
        if decoding.kind(path) is None:
            raise NotTextError(path, f"unknown kind of file; {_EXPECTED}")
        found = decoding.detect(path, encoding)
    count = characters = size = 0
    for document in _documents(path, found.name):
        count += 1
        for piece in content.through(document):
            characters += len(piece)
            size += len(piece.encode()) if path == BUILTIN else 0
    return TextFile(path, *found, size or Path(path).stat().st_size, count, characters)


def _paths(paths: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield (path, in a folder) for every file to read, each real file once."""
    seen: set[Identity] = set()
    for name in dict.fromkeys(paths):
        path = Path(name)
        with decoding.readable(name):
            if name == BUILTIN:
                yield name, False
            elif not path.exists():
                raise UsageError(
                    f"{name}: no such file or folder; give text files, folders or {BUILTIN!r}"
                )
            elif path.is_dir():
                if _is_new(path, seen):
                    yield from ((str(member), True) for member in _members(path, seen))
            elif decoding.kind(name) is None:
                raise UsageError(f"{name}: unknown kind of file; {_EXPECTED}")
            elif _is_new(path, seen):
                yield name, False


def _members(folder: Path, seen: set[Identity]) -> Iterator[Path]:
    """Yield the files below a folder in sorted order, hidden ones left out, each real one once."""
    with decoding.readable(str(folder)):
        for path in sorted(folder.iterdir()):
            if path.name.startswith("."):
                continue
            if not path.is_dir():
                if not path.exists() or _is_new(path, seen):
                    yield path
            # A link to a folder above is a loop; following it would also read what lies beside us.
            elif not folder.resolve().is_relative_to(path.resolve()) and _is_new(path, seen):
                yield from _members(path, seen)


def _identity(path: str | Path) -> Identity:
    """Return what is the same for all names of a file or folder."""
    if path == BUILTIN:
        return BUILTIN
    entry = Path(path).stat()
    return entry.st_dev, entry.st_ino


def _is_among(path: str, identities: set[Identity]) -> bool:
    with suppress(OSError):  # a link to nothing is among none
        return _identity(path) in identities
    return False


def _is_new(path: Path, seen: set[Identity]) -> bool:
    """Return whether a file or folder is met for the first time, under whichever name."""
    identity = _identity(path)
    new = identity not in seen
    seen.add(identity)
    return new
