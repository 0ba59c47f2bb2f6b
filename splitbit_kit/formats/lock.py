"""One training at a time in a run folder, by a lock that the system drops with its owner."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from splitbit_kit.api.errors import SplitbitError
from splitbit_kit.formats.durable import explained, make_folder

LOCK_FILES = (".lock", ".lock-owner")  # the lock; the process id of who took it last


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold the folder, made if missing, for this process alone; freed on leaving or on its death.

    Raises SplitbitError, naming the folder and the process that holds it, instead of waiting.
    """
    make_folder(folder)
    lock_path, owner_path = (folder / name for name in LOCK_FILES)
    # thread_local: whichever thread leaves must be able to free it
    lock = FileLock(lock_path, blocking=False, thread_local=False)
    with explained(lock_path, "lock the run folder"):
        try:
            lock.acquire()
        except Timeout:
            raise SplitbitError(
                f"{folder}: another training holds this run folder{_owner(owner_path)}; "
                "wait for it, stop it, or choose another --out"
            ) from None
        except NotImplementedError as error:
            raise SplitbitError(
                f"{folder}: this file system has no locks; choose another --out"
            ) from error
    try:
        with suppress(OSError):  # it only serves the message above
            owner_path.write_text(f"{os.getpid()}\n", encoding="ascii")
        yield
    finally:
        with suppress(OSError):
            owner_path.unlink()
        lock.release()


def _owner(path: Path) -> str:
    try:
        return f" (process {int(path.read_text(encoding='ascii'))})"
    except (OSError, ValueError):
        return ""
