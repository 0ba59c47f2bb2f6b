"""Which files lie under the paths that were named: each real one once, folders in sorted order."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from splitbit_kit.api.errors import UsageError
from splitbit_kit.text import decoding

BUILTIN = "builtin"
"""The path that stands for the built-in corpus; a folder of that name is "./builtin"."""

Identity = tuple[int, int] | str  # device and number of a file or folder; the built-in corpus
Seen = dict[Identity, str | None]
"""identity -> the name that it was met under first; None for what is held out"""


@dataclass(frozen=True)
class Found:
    """A file that is to be read, `size` in bytes as it lies on the disk."""

    path: str
    in_folder: bool
    size: int


@dataclass(frozen=True)
class Skipped:
    """What was left out, and why; `harmless` if no text is lost by it, as with a second name."""

    path: str
    reason: str
    harmless: bool = False


def below(name: str, seen: Seen) -> Iterator[Found | Skipped]:
    """Yield what there is under a path that was named, and has not been seen; it is seen then.

    Hidden members of folders are passed over. Raises UsageError for a path that is missing or of
    another kind, SplitbitError for a folder that can not be read.
    """
    path = Path(name)
    with decoding.readable(name):
        if name == BUILTIN:
            yield _repeated(name, seen) or Found(name, False, 0)
        elif not path.exists():
            raise UsageError(
                f"{name}: no such file or folder; give text files, folders or {BUILTIN!r}"
            )
        elif path.is_dir():
            if again := _repeated(name, seen):
                yield again
            else:
                yield from _members(path, seen)
        elif decoding.kind(name) is None:
            raise UsageError(f"{name}: unknown kind of file; {decoding.EXPECTED}")
        else:
            yield _repeated(name, seen) or Found(name, False, path.stat().st_size)


def identity(path: str) -> Identity:
    """Return what is the same for all names of a file or folder."""
    if path == BUILTIN:
        return BUILTIN
    entry = Path(path).stat()
    return entry.st_dev, entry.st_ino


def _members(folder: Path, seen: Seen) -> Iterator[Found | Skipped]:
    with decoding.readable(str(folder)):
        for path in sorted(folder.iterdir()):
            name = str(path)
            if path.name.startswith("."):
                continue
            if not path.exists():
                yield Skipped(name, "a link to nothing")
            elif not path.is_dir():
                yield _repeated(name, seen) or Found(name, True, path.stat().st_size)
            # A link to a folder above is a loop; following it would also read what lies beside us.
            elif folder.resolve().is_relative_to(path.resolve()):
                yield Skipped(name, "a link to a folder that it is in", harmless=True)
            elif again := _repeated(name, seen):
                yield again
            else:
                yield from _members(path, seen)


def _repeated(name: str, seen: Seen) -> Skipped | None:
    """Return why this is not read now, if it was met before, under whichever name."""
    own = identity(name)
    if own not in seen:
        seen[own] = name
        return None
    first = seen[own]
    why = "it is held out for validation" if first is None else f"the same as {first}"
    return Skipped(name, why, harmless=True)
