"""Files that survive a crash: what stands on the disk is the old content or the new, never a half.

The order is always the same: write a temporary beside the target, fsync it, rename it over the
target, fsync the folder. An fsync that failed is never tried again, since the kernel may have
dropped the pages it could not write and report success the second time; the file is abandoned.
"""

import errno
import hashlib
import os
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from splitbit_kit.api.errors import SplitbitError

TEMPORARY = ".tmp-"
PIECE = 16 * 2**20  # one write() moves at most 2 GB on Linux and fails above that on macOS


class Written(NamedTuple):
    """What went to the disk: size in bytes, SHA-256 in hexadecimal."""

    size: int
    sha256: str


@contextmanager
def explained(path: Path, deed: str) -> Iterator[None]:
    """Turn any OSError inside into a SplitbitError of one line: `path: cannot <deed> (reason)`."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = "; free some space or choose another folder" if full else ""
        raise SplitbitError(f"{path}: cannot {deed} ({error.strerror or error}){fix}") from error


def temporary_name() -> str:
    """Return a fresh hidden name for a file or folder that may be left behind by a killed process.

    It leaves out the target's name, which may already be as long as the file system allows.
    """
    return f"{TEMPORARY}{secrets.token_hex(8)}"


def write_file(path: Path, pieces: Iterable[bytes | memoryview], target: Path) -> Written:
    """Return the size and hash of a new file, on the disk when this returns.

    Its name must be free; `target` is the name that errors give, of what it will become. Raises
    SplitbitError; what was written until then is the caller's to remove.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    digest, size = hashlib.sha256(), 0
    with explained(target, "write it"):
        descriptor = os.open(path, flags, 0o666)
        try:
            for piece in pieces:
                view = memoryview(piece).cast("B")
                for start in range(0, len(view), PIECE):
                    part = view[start : start + PIECE]
                    digest.update(part)
                    write_whole(descriptor, part)
                size += len(view)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return Written(size, digest.hexdigest())


def write_whole(descriptor: int, view: memoryview) -> None:
    """Return when every byte is handed to the system. Raises OSError."""
    while len(view):
        written = os.write(descriptor, view)  # may be short: a signal, a disk almost full
        if written == 0:
            raise OSError(errno.EIO, "the system writes no more bytes")
        view = view[written:]


def replace_file(path: Path, pieces: Iterable[bytes | memoryview]) -> Written:
    """Return the size and hash of the file that now stands at path, whether or not one stood there.

    Raises SplitbitError, with what stood there before untouched.
    """
    temporary = path.with_name(temporary_name())
    try:
        written = write_file(temporary, pieces, path)
        with explained(path, "replace it"):
            temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    fsync_folder(path.parent)
    return written


def fsync_folder(path: Path) -> None:
    """Return when the names inside this folder are on the disk, where the system can promise it."""
    if sys.platform == "win32":  # a folder cannot be opened there
        return
    with explained(path, "write the folder to the disk; the newest change may not survive a crash"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems
                raise
        finally:
            os.close(descriptor)


def make_folder(path: Path) -> None:
    """Return when the folder exists, with every missing parent made and on the disk too."""
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent)
    with explained(path, "make the folder"):
        path.mkdir(exist_ok=True)
    fsync_folder(path.parent)


def rename_folder(old: Path, new: Path) -> None:
    """Return when the folder has its new name, on the disk. The new name must be free."""
    with explained(old, f"rename it to {new.name}"):
        old.rename(new)
    fsync_folder(new.parent)


def remove_folder(path: Path) -> None:
    """Return when the folder is gone; killed on the way, it leaves no half under its own name."""
    doomed = path.with_name(temporary_name())
    rename_folder(path, doomed)
    with explained(path, "remove it"):
        shutil.rmtree(doomed)


def remove_temporaries(folder: Path) -> None:
    """Return when nothing is left in the folder of writers that were killed.

    Only for a folder that has one writer at a time, kept so by a lock.
    """
    with explained(folder, "remove what a killed process left"):
        for leftover in folder.glob(f"{TEMPORARY}*"):
            if leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()
