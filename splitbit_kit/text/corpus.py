"""Files to documents: which files are the corpus, what they hold, and their text in pieces.

`survey` reads everything once and says of each file what it is, so that bad files are known before
any work starts; `scan` makes a `Corpus` of that, with the hash of the text, or raises. `documents`
reads it again, as often as wanted. A document is an iterator of pieces of text (a file, or a row of
a .jsonl or .parquet file), so that a huge one is never in memory; read each before you ask for the
next.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from splitbit_kit.api.errors import SplitbitError
from splitbit_kit.text import decoding, files, parquet
from splitbit_kit.text.decoding import EXPECTED, NotTextError
from splitbit_kit.text.files import BUILTIN, Found, Skipped
from splitbit_kit.text.progress import Progress, unheard

COLUMN = "text"  # of a row, unless another is named

Document = Iterator[str]


@dataclass(frozen=True)
class TextFile:
    """One file that was read, `size` in bytes as it lies on the disk.

    `encoding` is the one used, `marked` whether the file's byte order mark chose it. `nuls` and
    `returns` count the characters NUL and CR; `sha256` is the hash of this file's documents.
    """

    path: str
    encoding: str
    marked: bool
    size: int
    documents: int
    characters: int
    nuls: int
    returns: int
    sha256: str


@dataclass(frozen=True)
class Refused:
    """What nobody can go on with: a named file that is not text, a bad row, a missing path."""

    path: str
    error: SplitbitError


@dataclass(frozen=True)
class Corpus:
    """What was read, what was skipped, and `sha256`, the hash of the documents' text.

    `column` is the field of a row that holds its text.
    """

    files: tuple[TextFile, ...]
    skipped: tuple[Skipped, ...]
    sha256: str
    column: str = COLUMN

    @property
    def characters(self) -> int:
        """Return how many characters all files hold."""
        return sum(file.characters for file in self.files)


class ContentHash:
    """The hash of a sequence of documents, whatever their pieces and the files that hold them."""

    def __init__(self) -> None:
        self._documents = hashlib.sha256()

    def through(self, document: Iterable[str], *also: "ContentHash") -> Document:
        """Yield the pieces of a document; it counts, in the others too, once the last was taken."""
        text = hashlib.sha256()
        for piece in document:
            text.update(piece.encode())
            yield piece
        # A digest for each document keeps ("ab", "c") apart from ("a", "bc").
        for each in (self, *also):
            each._documents.update(text.digest())

    def copy(self) -> "ContentHash":
        """Return an independent hash that has seen the same documents."""
        other = ContentHash()
        other.become(self)
        return other

    def become(self, other: "ContentHash") -> None:
        """Have seen what the other has, and nothing else."""
        self._documents = other._documents.copy()

    def hexdigest(self) -> str:
        """Return the SHA-256 of the documents so far, as 64 hexadecimal digits."""
        return self._documents.hexdigest()


def scan(
    paths: Sequence[str | os.PathLike[str]],
    encoding: str | None = None,
    strict: bool = False,
    held_out: Corpus | None = None,
    column: str = COLUMN,
    progress: Progress = unheard,
) -> Corpus:
    """Return the corpus in files and folders, every real file read once, folders in sorted order.

    What is read, and how, says `survey`. Members of folders that are not text are skipped with a
    reason; `strict` makes them errors. Raises UsageError for a path that is missing or of another
    kind, NotTextError for a named file that is not text, and SplitbitError for a bad row or when
    there is nothing to read.
    """
    content = ContentHash()
    read: list[TextFile] = []
    skipped: list[Skipped] = []
    for entry in survey(paths, encoding, held_out, column, content, progress):
        if isinstance(entry, Refused):
            raise entry.error
        if isinstance(entry, TextFile):
            read.append(entry)
        elif strict and not entry.harmless:
            raise NotTextError(entry.path, entry.reason)
        else:
            skipped.append(entry)
    return Corpus(tuple(read), tuple(skipped), content.hexdigest(), column)


def survey(
    paths: Sequence[str | os.PathLike[str]],
    encoding: str | None = None,
    held_out: Corpus | None = None,
    column: str = COLUMN,
    content: ContentHash | None = None,
    progress: Progress = unheard,
) -> Iterator[TextFile | Skipped | Refused]:
    """Yield what every file under the paths is, each read once; wrong paths first.

    The path "builtin" stands for the built-in corpus (a folder of that name is "./builtin").
    A byte order mark decides a file's encoding, else `encoding`, else UTF-8; `column` is the field
    of a row that holds its text. The files of `held_out` are skipped under whichever name they
    come. `content` takes in the documents that are read. Raises UsageError for an unknown encoding.
    """
    encoding = decoding.checked_encoding(encoding) if encoding else None
    content = ContentHash() if content is None else content
    seen: files.Seen = {files.identity(f.path): None for f in held_out.files} if held_out else {}
    found: list[Found | Skipped | Refused] = []
    for name in dict.fromkeys(os.fspath(path) for path in paths):
        try:
            found.extend(files.below(name, seen))
        except SplitbitError as error:
            found.append(Refused(name, error))
    found.sort(key=lambda each: not isinstance(each, Refused))  # the others stay in order
    total = sum(each.size for each in found if isinstance(each, Found)) or 1
    before = 0
    skipped: list[Skipped] = []
    for each in found:
        if isinstance(each, Found):
            start, size = before / total, each.size / total
            before += each.size
            moved = _part(progress, start, size)
            entry = _examined(each, encoding, column, content, moved)
        else:
            entry = each
        if isinstance(entry, Skipped):
            skipped.append(entry)
        yield entry
    if len(skipped) == len(found):
        yield _nothing([os.fspath(path) for path in paths], skipped)


def absolute(path: str | os.PathLike[str]) -> str:
    """Return a path as it may be kept: absolute, links resolved; "builtin" stays what it is."""
    return BUILTIN if os.fspath(path) == BUILTIN else str(Path(path).resolve())


def documents(
    corpus: Corpus, moved: Callable[[float], None] = lambda share: None
) -> Iterator[Document]:
    """Yield the documents of a corpus, in its order, each an iterator of pieces of text.

    `moved` is told which share of the text has been taken.
    """
    total, taken = corpus.characters or 1, 0

    def counted(document: Document) -> Document:
        nonlocal taken
        for piece in document:
            yield piece
            taken += len(piece)
            moved(taken / total)

    for file in corpus.files:
        yield from map(counted, _documents(file.path, file.encoding, corpus.column))


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


def _documents(
    path: str, encoding: str, column: str, moved: Callable[[float], None] = lambda share: None
) -> Iterator[Document]:
    if path == BUILTIN:
        yield from builtin_documents()
        return
    kind = decoding.kind(path)
    if kind == ".parquet":
        texts = parquet.rows(path, column, moved)
    elif kind == ".jsonl":
        texts = decoding.rows(path, decoding.pieces(path, encoding, moved), column)
    else:
        yield decoding.pieces(path, encoding, moved)
        return
    for text in texts:
        yield iter((text,))


# ---- one file


def _examined(
    found: Found,
    encoding: str | None,
    column: str,
    content: ContentHash,
    moved: Callable[[float], None],
) -> TextFile | Skipped | Refused:
    trial = content.copy()  # a file that turns out not to be text leaves no trace in the hash
    try:
        file = _read(found.path, encoding, column, trial, moved)
    except NotTextError as error:
        if found.in_folder:
            return Skipped(found.path, error.reason)
        return Refused(found.path, error)
    except SplitbitError as error:
        return Refused(found.path, error)
    content.become(trial)
    return file


def _read(
    path: str,
    encoding: str | None,
    column: str,
    content: ContentHash,
    moved: Callable[[float], None],
) -> TextFile:
    used = decoding.Encoding("utf-8", False)
    if path != BUILTIN:
        kind = decoding.kind(path)
        if kind is None:
            raise NotTextError(path, f"unknown kind of file; {EXPECTED}")
        used = decoding.detect(path, None if kind == ".parquet" else encoding)
    own = ContentHash()
    count = characters = nuls = returns = size = 0
    for document in _documents(path, used.name, column, moved):
        count += 1
        for piece in content.through(document, own):
            characters += len(piece)
            nuls += piece.count("\0")
            returns += piece.count("\r")
            size += len(piece.encode()) if path == BUILTIN else 0
    size = size or Path(path).stat().st_size
    return TextFile(path, *used, size, count, characters, nuls, returns, own.hexdigest())


def _part(progress: Progress, start: float, size: float) -> Callable[[float], None]:
    """Return what turns the share of one file into the share of all."""
    return lambda share: progress("reading text", start + share * size)


def _nothing(paths: Sequence[str], skipped: Sequence[Skipped]) -> Refused:
    why = f" ({len(skipped)} skipped; {skipped[0].path}: {skipped[0].reason})" if skipped else ""
    named = ", ".join(paths) or "no path was given"
    return Refused(named, SplitbitError(f"{named}: no text found; {EXPECTED}{why}"))
