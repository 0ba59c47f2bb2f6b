"""The disk cache of compiled kernels: a folder that only this user can write.

Numba offers NUMBA_CACHE_DIR, a setting of the whole process that would move other packages' kernels
too, and unpickles the index that it finds there before any check: who can write the folder can run
code. It also knows a kernel by the file that defines it alone, and would go on using one whose
callees in other files have changed. So the functions of this package (`cache=True` as ever) get a
cache of our own, through the one method in which Numba makes a function's cache. NUMBA_CACHE_DIR,
safe or not, serves other packages and never us.

A kernel is one file: a SHA-256 and what it is the sum of. A file that is damaged, or not ours, is
compiled anew and replaced. Kernels are kept apart by all that they depend on: the versions of the
kit, Python, Numba and llvmlite, the processor, the settings (in the folder's name), the function,
its signature and the sources that its module imports from this package (in the file's name). So a
global that a kernel reads must follow from these.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import importlib.metadata
import os
import pickle
import re
import shutil
import stat
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding
import numba
from numba.core import caching, ccallback, compiler, dispatcher
from numba.core.serialize import dumps

from splitbit_numba_backend.compiler import unit
from splitbit_numba_backend.simd.features import PATH

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_PACKAGE = __name__.partition(".")[0]
_KEPT = 4  # folders of this and other versions that are kept, by last use
_OUTDATED_SECONDS = 86_400
_CLAIM = ".claim"  # of a file that stands for a kernel which a process compiles
_LOOK_SECONDS = 0.02  # between two looks at whether another process has done it
_IMPORTS = re.compile(
    rf"^\s*(?:from|import)\s+({_PACKAGE}[\w.]*)(?:\s+import\s+([\w*, ]+|\([^)]*\)))?", re.MULTILINE
)
_UNRELATED = {
    "NUMBA_CACHE_DIR",
    "NUMBA_CACHE_LOCATOR_CLASSES",
    "NUMBA_DEBUG_CACHE",
    "NUMBA_NUM_THREADS",
    "SPLITBIT_CACHE",
    "SPLITBIT_PLUGINS",
}
"""settings that do not change what a kernel is compiled to; every other is part of the key"""


class _UnsafeError(Exception):
    """Kernels must not be kept here; the message says why."""


@functools.cache
def use_safe_cache() -> str | None:
    """Cache this package's kernels in our own folder; return None, or in a line why it can not be.

    To be called before a module with kernels is imported; calling it again changes nothing. Where
    the folder is not safe or can not be written, kernels are compiled in each process.
    """
    try:
        folder: Path | None = _safe_folder()
        reason = None
    except (_UnsafeError, OSError, RuntimeError) as error:  # RuntimeError: there is no home
        folder = None
        reason = f"compiled kernels are not kept: {error}; set SPLITBIT_CACHE to a folder of yours"
    numba_cache = caching.FunctionCache

    def cache_of(function: Any) -> Any:
        if str(function.__module__).partition(".")[0] != _PACKAGE:
            return numba_cache(function)
        return caching.NullCache() if folder is None else KernelCache(function, folder)

    # both look the class up in their module whenever a function asks for its cache
    for module in (ccallback, dispatcher):
        module.FunctionCache = cache_of
    return reason


class KernelCache(caching._Cache):
    """The compiled forms of one function, a file each: what Numba's dispatchers ask and tell."""

    def __init__(self, function: Any, folder: Path) -> None:
        """Raise TypeError for a function made inside another: such misses in every process."""
        if function.__closure__:
            raise TypeError(f"{function.__qualname__}: cache=True needs a function of a module")
        code = function.__code__
        self._stem = f"{function.__module__}.{function.__qualname__}"
        # not the code's own file: that of a function made by exec is no file
        source = getattr(sys.modules.get(function.__module__), "__file__", None) or code.co_filename
        self._sources = _digest(*map(_hash_of, _sources(Path(source))))
        self._code = (code.co_firstlineno, code.co_code, code.co_names, repr(code.co_consts))
        self._folder = folder
        self._enabled = True

    @property
    def cache_path(self) -> str:
        return str(self._folder)

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False

    def flush(self) -> None:
        for path in self._folder.glob(f"{self._stem}-*.kernel"):
            path.unlink(missing_ok=True)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled form for a signature, None where there is no whole one.

        None means that the caller compiles it, and that others may wait for it.
        """
        if not self._enabled:
            return None
        target_context.refresh()
        path = self._path(sig, target_context.codegen())
        claimed = False
        while True:
            found = self._load(path, target_context)
            if found is not None:
                _give_back(path)
            if found is not None or claimed:
                return found
            claimed = _claim(path)  # then look again: it may have been made meanwhile
            if not claimed:
                time.sleep(_LOOK_SECONDS)

    def _load(self, path: Path, target_context: Any) -> Any:
        try:
            with _opened(path) as file:
                digest, content = file.read(32), file.read()
            if hashlib.sha256(content).digest() != digest:
                return None
            needs, parts = pickle.loads(content)
            for need in needs:
                unit(*need)
            return compiler.CompileResult._rebuild(target_context, *parts)
        except (_UnsafeError, OSError):
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled form, if there is room and it does not depend on this process."""
        path = self._path(sig, data.codegen)
        try:
            if self._enabled and not data.lifted and not data.library.has_dynamic_globals:
                needs = tuple(getattr(data.library, "needs", ()))
                self._keep(path, dumps((needs, data._reduce())))
        finally:
            _give_back(path)

    def _keep(self, path: Path, content: bytes) -> None:
        with suppress(OSError):  # a full disk or a folder removed meanwhile: compiled next time
            number, name = tempfile.mkstemp(".part", f"{self._stem}-", self._folder)
            try:
                with os.fdopen(number, "wb") as file:
                    file.write(hashlib.sha256(content).digest() + content)
                Path(name).replace(path)
                self._remove_outdated()
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise

    def _path(self, sig: Any, codegen: Any) -> Path:
        key = _digest(repr(sig), repr(codegen.magic_tuple()), *map(repr, self._code))
        return self._folder / f"{self._stem}-{self._sources}-{key}.kernel"

    def _remove_outdated(self) -> None:
        """Remove what is of other sources or was left half, if old: other checkouts are at work."""
        for path in self._folder.glob(f"{self._stem}-*"):
            current = path.name.startswith(f"{self._stem}-{self._sources}-")
            if not current and time.time() - path.lstat().st_mtime > _OUTDATED_SECONDS:
                path.unlink(missing_ok=True)


def _claim(path: Path) -> bool:
    """Return whether this process is to compile a kernel; otherwise another is at it.

    A claim is a locked file beside the kernel: the lock ends with the process, however that ends.
    """
    if path in _claims:
        return True  # made before, and then the compiler failed
    try:
        number = os.open(path.with_suffix(_CLAIM), os.O_CREAT | os.O_RDWR, 0o600)
    except OSError:
        return True  # no room: then there is none for the kernel either
    try:
        if sys.platform == "win32":
            msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(number)
        return error.errno not in (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
    _claims[path] = number
    return True


def _give_back(path: Path) -> None:
    """Let others find what has been made, or make it."""
    number = _claims.pop(path, None)
    if number is not None:
        os.close(number)
        with suppress(OSError):  # another process may have opened it
            path.with_suffix(_CLAIM).unlink()


_claims: dict[Path, int] = {}
"""the kernels that this process compiles, and the files that it holds for them"""


def cache_folder() -> Path:
    """Return the folder of the kit's caches: SPLITBIT_CACHE if it is set, else the system's place.

    Raises RuntimeError where neither that nor a home is known.
    """
    chosen = os.environ.get("SPLITBIT_CACHE")
    if chosen:
        return Path(chosen)
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        base = Path(local) if local else Path.home() / "AppData" / "Local"
        return base / "splitbit-kit" / "splitbit-kit" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "splitbit-kit"
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "splitbit-kit"


def _safe_folder() -> Path:
    """Return the folder for this version's kernels, made if need be; raise if it is not safe."""
    base = cache_folder()
    base.mkdir(parents=True, exist_ok=True)
    base = base.resolve()  # a link to our folder is the user's affair, one inside it is not
    parent = base / "kernels"
    folder = parent / _version_key()
    for path in base.parents:
        _check(path, path.lstat(), inside=False)
    for path in (base, parent, folder):
        path.mkdir(mode=0o700, exist_ok=True)
        _check(path, path.lstat(), inside=True)
    tempfile.TemporaryFile(dir=folder).close()  # can it be written?
    os.utime(folder)
    _prune(parent)
    return folder


def _check(path: Path, found: os.stat_result, inside: bool) -> None:
    """Raise _UnsafeError if another user could change what is in, or stands at, `path`."""
    if inside and stat.S_ISLNK(found.st_mode):
        raise _UnsafeError(f"{path} is a symbolic link")
    if os.name != "posix":
        return  # a user's profile is closed to others by its access list
    me = os.geteuid()
    if found.st_uid != me and (inside or found.st_uid != 0):
        raise _UnsafeError(f"{path} belongs to another user")
    others = found.st_mode & stat.S_IWOTH
    if found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid):
        others = True
    # in a sticky folder, as /tmp, others can add files but not replace ours
    if others and (inside or not found.st_mode & stat.S_ISVTX):
        raise _UnsafeError(f"{path} can be written by other users")


def _is_private(group: int) -> bool:
    """Return whether a group is its user's own, as made by systems with a umask of 002."""
    import grp
    import pwd

    try:
        mine, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return entry.gr_gid == mine.pw_gid and entry.gr_name == mine.pw_name and not entry.gr_mem


def _opened(path: Path) -> Any:
    """Open a kernel's file for reading; raise if it is a link or another user can write it."""
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    file = os.fdopen(number, "rb")
    try:
        _check(path, os.fstat(number), inside=True)
    except BaseException:
        file.close()
        raise
    return file


def _prune(parent: Path) -> None:
    """Remove the folders that were not used for longest, beyond the number that is kept."""
    with suppress(OSError):  # another process may be at it
        folders = sorted(parent.iterdir(), key=lambda path: path.lstat().st_mtime)
        for path in folders[:-_KEPT]:
            shutil.rmtree(path, ignore_errors=True)


def _version_key() -> str:
    try:
        kit = importlib.metadata.version("splitbit-kit")
    except importlib.metadata.PackageNotFoundError:
        kit = "0"
    python = ".".join(map(str, sys.version_info[:2])) + getattr(sys, "abiflags", "")
    versions = f"{kit}-py{python}-numba{numba.__version__}-llvmlite{llvmlite.__version__}"
    settings = sorted(
        f"{name}={value}"
        for name, value in os.environ.items()
        if name.startswith(("NUMBA_", "SPLITBIT_")) and name not in _UNRELATED
    )
    return f"{versions}-" + _digest(
        sys.implementation.cache_tag or "",
        llvmlite.binding.get_process_triple(),
        llvmlite.binding.get_host_cpu_name(),
        repr(sorted(llvmlite.binding.get_host_cpu_features().items())),
        PATH,  # the system may refuse what the processor has
        *settings,
    )


@functools.cache
def _sources(path: Path) -> tuple[Path, ...]:
    """Return a source file and those of this package that it imports, directly or through others.

    Absolute imports count by name; one that is relative, or by import_module, stands for its whole
    folder.
    """
    root = Path(__file__).parent
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():
            continue
        found.add(path)
        waiting += _imported(path, root)
    return tuple(sorted(found))


@functools.cache
def _imported(path: Path, root: Path) -> tuple[Path, ...]:
    """Return where what a source file imports from this package may lie, found in its text."""
    text = path.read_text(encoding="utf-8")
    found: list[Path] = []
    if re.search(r"import_module|^\s*from \.", text, re.MULTILINE):
        found += path.parent.glob("*.py")
    for module, names in _IMPORTS.findall(text):
        for name in ["", *re.findall(r"\w+", names)]:
            place = root.joinpath(*module.split(".")[1:], *name.split())
            found += [place.with_suffix(".py"), place / "__init__.py"]
    return tuple(found)


@functools.cache
def _hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]
