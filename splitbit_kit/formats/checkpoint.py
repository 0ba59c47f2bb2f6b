"""Checkpoint folders that survive a crash at any point, and say when they are damaged.

    checkpoints/step-000500/    model.safetensors  optimizer.safetensors  state.json  manifest.json

A folder gets its name only when it is whole and on the disk. The manifest, written last, keeps the
size and SHA-256 of every other file, and the loader checks them. Whatever writes here expects to
be the only writer, which `lock.run_lock` sees to.
"""

import hashlib
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splitbit_kit.api.errors import SplitbitError
from splitbit_kit.formats import durable, safetensors, strict_json
from splitbit_kit.formats.durable import Written
from splitbit_kit.formats.safetensors import Tensors
from splitbit_kit.formats.untrusted import opened, read_small, shown

LEAST_KEPT = 2  # the newest may turn out damaged

_FORMAT = "splitbit-kit checkpoint 1"
_STATE, _MANIFEST, _TENSORS = "state.json", "manifest.json", ".safetensors"
_JSON_CAP = 16 * 2**20
_OLD = ".old"  # moved aside while its successor is named; still a checkpoint until that stands
_COPIES = "model-*"  # what packed copies of a model are called, in the same folder
_FOLDER = re.compile(rf"step-([0-9]{{6,18}})({re.escape(_OLD)})?")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")  # no path out of the folder, on any system
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: its folder, its tensors by file ("model", "optimizer"), its state."""

    path: Path
    tensors: dict[str, Tensors]  # mapped read-only from the folder
    state: dict[str, Any]


def folder_name(step: int) -> str:
    """Return the name of the folder for this step, `step-000500`."""
    return f"step-{step:06d}"


def save(parent: Path, tensors: Mapping[str, Tensors], state: Mapping[str, Any]) -> Path:
    """Return the folder `parent/step-N`, durably on the disk, N being `state["step"]`.

    `tensors` holds what becomes NAME.safetensors, `state` plain JSON. A folder of this step that
    already stands stays if it holds the same, and is otherwise replaced. Raises SplitbitError; all
    earlier checkpoints are then untouched, and no half of the new one is left.
    """
    step = state.get("step")
    if type(step) is not int or step < 0:
        raise SplitbitError(f"{parent}: state: step is {step!r}; a whole number is expected")
    target = parent / folder_name(step)
    contents = {
        f"{name}{_TENSORS}": safetensors.encode(*tensors[name], where=f"{target}: {name}")
        for name in tensors
    }
    contents[_STATE] = iter([strict_json.dump(dict(state), f"{target}: state", indent=1)])
    for name in contents:
        if not _FILE.fullmatch(name):
            raise SplitbitError(f"{target}: {shown(name)} cannot be the name of a file")

    durable.make_folder(parent)
    tidy(parent)
    temporary = parent / durable.temporary_name()
    try:
        with durable.explained(target, "make the folder"):
            temporary.mkdir()
        files = {
            name: durable.write_file(temporary / name, pieces, target / name)._asdict()
            for name, pieces in contents.items()
        }
        manifest = strict_json.dump({"format": _FORMAT, "files": files}, str(target), indent=1)
        durable.write_file(temporary / _MANIFEST, [manifest], target / _MANIFEST)
        durable.fsync_folder(temporary)
        _give_name(temporary, target, manifest)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # gone already when all went well
    return target


def _give_name(temporary: Path, target: Path, manifest: bytes) -> None:
    if not target.exists():
        durable.rename_folder(temporary, target)
    elif not _holds(target, manifest):
        # no system renames over a folder that is not empty
        aside = target.with_name(target.name + _OLD)
        durable.rename_folder(target, aside)
        durable.rename_folder(temporary, target)
        durable.remove_folder(aside)


def _holds(path: Path, manifest: bytes) -> bool:
    try:
        return read_small(path / _MANIFEST, _JSON_CAP) == manifest and bool(_verify(path))
    except SplitbitError:
        return False


def tidy(parent: Path) -> None:
    """Return when nothing half-done is left in the folder by a process that was killed there."""
    durable.fsync_folder(parent)  # its renames must be on the disk before what they replaced goes
    for path in _folders(parent):
        if path.name.endswith(_OLD):
            target = path.with_name(path.name.removesuffix(_OLD))
            if target.exists():
                durable.remove_folder(path)
            else:
                durable.rename_folder(path, target)
    durable.remove_temporaries(parent)


def load(path: Path) -> Checkpoint:
    """Return the checkpoint in this folder after checking every size and hash.

    Raises SplitbitError naming the file that is missing, cut short or changed.
    """
    files = _verify(path)
    state = strict_json.parse(read_small(path / _STATE, _JSON_CAP), str(path / _STATE))
    if not isinstance(state, dict):
        raise SplitbitError(f"{path / _STATE}: an object is expected")
    tensors = {
        name.removesuffix(_TENSORS): safetensors.read(path / name)
        for name in files
        if name.endswith(_TENSORS)
    }
    return Checkpoint(path, tensors, state)


def newest_valid(parent: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest checkpoint that is whole, and a line on each newer one that is not."""
    skipped: list[str] = []
    for path in _folders(parent):
        try:
            return load(path), skipped
        except SplitbitError as error:
            skipped.append(str(error))
    return None, skipped


def prune(parent: Path, keep: int, protected: Collection[int] = ()) -> list[Path]:
    """Return the folders deleted: all but the newest `keep` and the protected steps.

    At least two are kept, and only whole ones are counted (by size; the hashes are left for the
    loader). Call it once the newest is saved.
    """
    left = max(keep, LEAST_KEPT)
    deleted = []
    for path in _folders(parent):
        if left:
            left -= _looks_whole(path)
        elif _step(path) not in protected:
            durable.remove_folder(path)
            deleted.append(path)
    return deleted


def replace_model(folder: Path, model: Tensors) -> Path:
    """Return `folder/model.safetensors`, durably replaced in one step; for `best/` and `final/`.

    Packed copies of the one before are deleted first, and durably: at no moment does one stand
    beside another model. Raises SplitbitError, with the model that stood there before untouched.
    """
    durable.make_folder(folder)
    durable.remove_temporaries(folder)
    path = folder / f"model{_TENSORS}"
    if copies := list(folder.glob(f"{_COPIES}{_TENSORS}")):
        for copy in copies:
            with durable.explained(copy, "remove it"):
                copy.unlink()
        durable.fsync_folder(folder)
    safetensors.write(path, *model)
    return path


def copy_name(form: str) -> str:
    """Return what the copy of a model in a packed format is called, `model-q8_0`."""
    return _COPIES.replace("*", form.replace(":", "-"))  # a qualified name; no colons on Windows


def _folders(parent: Path) -> list[Path]:
    """Return the checkpoint folders, newest first, a replaced one after its successor."""
    with durable.explained(parent, "list it"):
        paths = list(parent.iterdir()) if parent.exists() else []
    found = [path for path in paths if _FOLDER.fullmatch(path.name)]
    return sorted(found, key=lambda path: (-_step(path), path.name))


def _step(path: Path) -> int:
    match = _FOLDER.fullmatch(path.name)
    return int(match[1]) if match else -1


def _looks_whole(path: Path) -> bool:
    try:
        files = _read_manifest(path)
        return all((path / name).stat().st_size == files[name].size for name in files)
    except (SplitbitError, OSError):
        return False


def _verify(path: Path) -> dict[str, Written]:
    """Return the manifest's files after comparing each with its size and hash."""
    files = _read_manifest(path)
    for name, expected in files.items():
        with opened(path / name) as (file, size):
            if size != expected.size:
                raise SplitbitError(
                    f"{path / name}: {size} bytes, the manifest has {expected.size}"
                )
            if hashlib.file_digest(file, "sha256").hexdigest() != expected.sha256:
                raise SplitbitError(f"{path / name}: the content is not what was saved (SHA-256)")
    return files


def _read_manifest(path: Path) -> dict[str, Written]:
    where = path / _MANIFEST
    manifest = strict_json.parse(read_small(where, _JSON_CAP), str(where))
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise SplitbitError(f"{where}: format: {_FORMAT!r} is expected")
    files = manifest.get("files")
    if not isinstance(files, dict) or _STATE not in files:
        raise SplitbitError(f"{where}: files: an object with {_STATE} in it is expected")
    return {name: _read_entry(name, entry, where) for name, entry in files.items()}


def _read_entry(name: str, entry: Any, where: Path) -> Written:
    size, sha256 = (
        (entry.get("size"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
    )
    if not (
        _FILE.fullmatch(name)
        and type(size) is int
        and isinstance(sha256, str)
        and _SHA256.fullmatch(sha256)
    ):
        raise SplitbitError(
            f"{where}: files: {shown(name)}: a plain name with size and sha256 is expected"
        )
    return Written(size, sha256)
