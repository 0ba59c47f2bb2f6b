"""The cache of compiled kernels: used by the next process, private, and never a reason to fail."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numba.core import sigutils
from numba.core.ccallback import CFunc

from splitbit_numba_backend import cache as module
from splitbit_numba_backend.cache import cache_folder

# Functions of our package that live outside it
KERNEL = """
from numba import cfunc, njit

@njit(cache=True)
def helper(x):
    return x + 10

@cfunc("intp(intp)", cache=True)
def kernel(x):
    return helper(x)
"""
PROGRAM = """
import importlib.util, json, sys
from pathlib import Path
from splitbit_numba_backend.cache import use_safe_cache

said = use_safe_cache()
here = Path(sys.argv[1])
spec = importlib.util.spec_from_file_location("splitbit_numba_backend.probe", here / "probe.py")
probe = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = probe
spec.loader.exec_module(probe)
print(json.dumps({
    "said": said,
    "value": probe.kernel.ctypes(1),
    "hits": probe.kernel.cache_hits,
    "path": str(probe.kernel._cache.cache_path),
}))
"""


class Probe:
    """A small kernel, run in a process of its own with a cache in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.sources = folder / "sources"
        self.sources.mkdir()
        self.cache = folder / "cache"
        self.environment = dict(os.environ, SPLITBIT_CACHE=str(self.cache), HOME=str(folder))
        (self.sources / "probe.py").write_text(KERNEL)

    def run(self, **environment: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(self.sources)],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.returncode, done.stderr) == (0, "")
        result: dict[str, Any] = json.loads(done.stdout)
        assert result["value"] == 11
        return result

    def kernels(self) -> list[Path]:
        return sorted(self.cache.glob("kernels/*/*.probe.*.kernel"))


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    return Probe(tmp_path)


def test_a_second_process_compiles_nothing(probe: Probe, tmp_path: Path) -> None:
    other = tmp_path / "numba"
    assert probe.run(NUMBA_CACHE_DIR=str(other))["hits"] == 0
    assert probe.run(NUMBA_NUM_THREADS="1")["hits"] == 1
    assert len(probe.kernels()) == 2  # the kernel and its helper
    folder = probe.kernels()[0].parent
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent)] == [0o700] * 2
    assert stat.S_IMODE(probe.kernels()[0].stat().st_mode) == 0o600
    assert not list(probe.sources.rglob("*.nb?"))  # nothing beside the sources,
    assert not other.exists()  # nor where Numba was told


def test_a_setting_that_may_change_code_has_kernels_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = [module._version_key()]
    monkeypatch.setenv("NUMBA_NUM_THREADS", "1")
    keys.append(module._version_key())
    monkeypatch.setenv("SPLITBIT_DEBUG", "1")
    keys.append(module._version_key())
    monkeypatch.setenv("NUMBA_OPT", "1")
    keys.append(module._version_key())
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def plus_ten(x: int) -> int:
    return x + 10


def compiled(folder: Path) -> int:
    """Compile `plus_ten` or take it from the folder; return the number of hits."""
    kernel = CFunc(plus_ten, sigutils.normalize_signature("intp(intp)"), {}, {})
    kernel._cache = module.KernelCache(plus_ten, folder)
    kernel.compile()
    assert kernel.ctypes(1) == 11
    return int(kernel.cache_hits)


@pytest.mark.parametrize("damage", ["cut", "garbage", "empty", "a bit", "a pickle"])
def test_a_damaged_file_is_made_anew(tmp_path: Path, damage: str) -> None:
    assert [compiled(tmp_path) for _ in range(2)] == [0, 1]
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    path.write_bytes(
        {
            "cut": content[:-100],
            "garbage": bytes(range(256)) * 20,
            "empty": b"",
            "a bit": content[:-900] + bytes([content[-900] ^ 1]) + content[-899:],
            "a pickle": content[32:],  # whole, but without its sum
        }[damage]
    )
    assert [compiled(tmp_path) for _ in range(2)] == [0, 1]
    assert list(tmp_path.iterdir()) == [path]


def test_other_sources_are_other_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(tmp_path)
    (before,) = tmp_path.iterdir()
    monkeypatch.setattr(module, "_hash_of", lambda path: "changed")
    assert [compiled(tmp_path) for _ in range(2)] == [0, 1]
    assert len(list(tmp_path.iterdir())) == 2
    os.utime(before, (10**9, 10**9))
    monkeypatch.setattr(module, "_hash_of", lambda path: "changed again")
    compiled(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert not before.exists()  # long out of date


def test_a_full_disk_means_compiled_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "fdopen", full)
    assert [compiled(tmp_path) for _ in range(2)] == [0, 0]
    assert not list(tmp_path.iterdir())


def test_no_folder_means_uncached_and_said(probe: Probe) -> None:
    probe.cache.write_text("a file where the folder should be")
    result = probe.run()
    assert result["path"] == "None"
    assert result["said"].startswith("compiled kernels are not kept: ")
    assert "SPLITBIT_CACHE" in result["said"]
    assert "\n" not in result["said"]
    assert not list(probe.sources.rglob("*.nb?"))


posix = pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX's")


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPLITBIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_folder_is_made_once(base: Path) -> None:
    folder = module._safe_folder()
    assert folder.parent == base.resolve() / "kernels"
    assert module._safe_folder() == folder


@posix
@pytest.mark.parametrize("place", ["base", "parent", "folder"])
def test_a_folder_others_can_write_is_refused(base: Path, place: str) -> None:
    folder = module._safe_folder()
    path = {"base": base, "parent": folder.parent, "folder": folder}[place]
    path.chmod(0o777)
    with pytest.raises(module._UnsafeError, match=r"can be written by other users"):
        module._safe_folder()
    path.chmod(0o1777)  # sticky: others could still add files
    with pytest.raises(module._UnsafeError, match=r"can be written by other users"):
        module._safe_folder()


@posix
def test_a_folder_on_the_way_that_others_can_write_is_refused(base: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(module._UnsafeError, match=r"can be written by other users"):
        module._safe_folder()
    tmp_path.chmod(0o1777)  # as /tmp: nobody else can replace what is ours
    module._safe_folder()


@posix
def test_a_folder_for_a_group_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module._safe_folder()
    base.chmod(0o775)
    monkeypatch.setattr(module, "_is_private", lambda group: True)
    module._safe_folder()
    monkeypatch.setattr(module, "_is_private", lambda group: False)
    with pytest.raises(module._UnsafeError, match=r"can be written by other users"):
        module._safe_folder()


@posix
def test_a_foreign_folder_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module._safe_folder()
    someone = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: someone)
    with pytest.raises(module._UnsafeError, match=r"belongs to another user"):
        module._safe_folder()


@posix
def test_a_link_inside_our_folder_is_refused(base: Path, tmp_path: Path) -> None:
    folder = module._safe_folder()
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(module._UnsafeError, match=r"is a symbolic link"):
        module._safe_folder()


@posix
def test_a_file_that_is_a_link_or_open_to_others_is_not_read(base: Path) -> None:
    folder = module._safe_folder()
    file = folder / "a.kernel"
    file.write_bytes(b"x")
    module._opened(file).close()
    (folder / "b.kernel").symlink_to(file)
    with pytest.raises(OSError):
        module._opened(folder / "b.kernel")
    file.chmod(0o666)
    with pytest.raises(module._UnsafeError):
        module._opened(file)


def test_a_folder_that_cannot_be_written_means_uncached_and_said(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**options: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    module._safe_folder()
    monkeypatch.setattr(module.tempfile, "TemporaryFile", refuse)
    for each in (module.ccallback, module.dispatcher):  # to be put back afterwards
        monkeypatch.setattr(each, "FunctionCache", each.FunctionCache)
    said = module.use_safe_cache.__wrapped__()
    assert said.startswith("compiled kernels are not kept: ")
    assert "Read-only file system; set SPLITBIT_CACHE" in said
    made = module.ccallback.FunctionCache(cache_folder)  # any function of ours
    assert isinstance(made, module.caching.NullCache)


def test_few_folders_are_kept(base: Path) -> None:
    folder = module._safe_folder()
    for age in range(1, 9):
        old = folder.parent / f"old{age}"
        old.mkdir()
        os.utime(old, (10**9 - age, 10**9 - age))
    module._safe_folder()
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, "old1", "old2", "old3"}


def test_imports_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "splitbit_numba_backend"
    (package / "simd").mkdir(parents=True)
    texts = {
        "cache.py": "",
        "kernel.py": "from splitbit_numba_backend.simd import (\n    vector,\n    names,\n)\n",
        "simd/__init__.py": "",
        "simd/vector.py": "import splitbit_numba_backend.words\n",
        "simd/unused.py": "",
        "words.py": "",
        "chosen.py": "import_module(name)\n",
    }
    for name, text in texts.items():
        (package / name).write_text(text)
    monkeypatch.setattr(module, "__file__", str(package / "cache.py"))

    def names(start: str) -> list[str]:
        return [str(path.relative_to(package)) for path in module._sources(package / start)]

    assert names("kernel.py") == ["kernel.py", "simd/__init__.py", "simd/vector.py", "words.py"]
    assert names("words.py") == ["words.py"]
    assert names("chosen.py") == ["cache.py", "chosen.py", *names("kernel.py")]


def test_a_function_inside_another_is_refused() -> None:
    number = 1

    def inner(x: int) -> int:
        return x + number

    with pytest.raises(TypeError, match="needs a function of a module"):
        module.KernelCache(inner, Path())


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="elsewhere the place is another")
def test_the_place_without_a_wish(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPLITBIT_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == tmp_path / ".cache" / "splitbit-kit"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x" / "splitbit-kit"
