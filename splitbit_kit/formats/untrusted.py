"""Opening what others wrote: ordinary files only, every fault a SplitbitError of one line."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from splitbit_kit.api.errors import SplitbitError
from splitbit_kit.formats.durable import explained

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_SHOWN = 60  # characters of a name from a file that may stand in an error line


@contextmanager
def opened(path: Path) -> Iterator[tuple[BufferedReader, int]]:
    """Give an ordinary file, open for reading, and its size in bytes.

    Raises SplitbitError for a missing file, a folder, a pipe or a device (none of which is
    opened), and for a git-lfs pointer in place of the file.
    """
    with explained(path, "read it"):
        # ask before opening: to open a pipe waits for its writer, to open a device may act
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or device"
            raise SplitbitError(f"{path}: is {kind}; an ordinary file is expected")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
                raise SplitbitError(
                    f"{path}: is a git-lfs pointer, not the file itself; `git lfs pull` fetches it"
                )
            file.seek(0)
            yield file, size


def read_small(path: Path, cap: int) -> bytes:
    """Return the content of a file of at most `cap` bytes. Raises SplitbitError above that."""
    with opened(path) as (file, size):
        if size > cap:
            raise SplitbitError(f"{path}: {size} bytes, at most {cap} are expected")
        return file.read(cap)


def shown(name: object) -> str:
    """Return a name from a file as it may stand in an error: quoted, on one line, not too long."""
    text = ascii(name)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
