"""Crashes after every single operation of a save: a killed process, and a power cut.

The real calls are recorded, then replayed up to each operation on a model of a disk, which knows
what an fsync has made sure of; what a power cut may leave is written out and read back.
"""

import os
import random
import re
from pathlib import Path

import numpy as np
import pytest

from splitbit_kit.formats import checkpoint, jsonl, safetensors
from splitbit_kit.formats.safetensors import Tensors

if os.name == "nt":
    pytest.skip("descriptors of folders are recorded", allow_module_level=True)


class Recording:
    """The system's calls, done for real and noted as (operation, paths or bytes)."""

    def __init__(self, root, monkeypatch):
        self.root, self.log, self.paths = root, [], {}
        self.real = {name: getattr(os, name) for name in
                     ("open", "close", "write", "fsync", "mkdir", "rename", "replace", "unlink",
                      "rmdir")}  # fmt: skip
        for name in self.real:
            monkeypatch.setattr(os, name, getattr(self, name))

    def path(self, path, dir_fd=None):
        return (self.paths[dir_fd] if dir_fd is not None else Path()) / path

    def note(self, operation, *details):
        inside = [str(d.relative_to(self.root)) if isinstance(d, Path) else d for d in details]
        self.log.append((operation, *inside))

    def open(self, path, flags, mode=0o777, *, dir_fd=None):
        descriptor = self.real["open"](path, flags, mode, dir_fd=dir_fd)
        self.paths[descriptor] = self.path(path, dir_fd)
        if flags & os.O_CREAT:
            self.note("create", self.paths[descriptor])
        return descriptor

    def close(self, descriptor):
        self.real["close"](descriptor)

    def write(self, descriptor, data):
        part = bytes(data[:150])  # short writes, so that a crash can fall between them
        self.note("write", self.paths[descriptor], part)
        return self.real["write"](descriptor, part)

    def fsync(self, descriptor):
        self.note("fsync", self.paths[descriptor])

    def mkdir(self, path, mode=0o777):
        self.real["mkdir"](path, mode)
        self.note("mkdir", Path(path))

    def rename(self, old, new):
        self.real["rename"](old, new)
        self.note("rename", Path(old), Path(new))

    def replace(self, old, new):
        self.real["replace"](old, new)
        self.note("rename", Path(old), Path(new))

    def unlink(self, path, *, dir_fd=None):
        self.real["unlink"](path, dir_fd=dir_fd)
        self.note("remove", self.path(path, dir_fd))

    def rmdir(self, path, *, dir_fd=None):
        self.real["rmdir"](path, dir_fd=dir_fd)
        self.note("remove", self.path(path, dir_fd))


class File:
    def __init__(self):
        self.data, self.durable = b"", 0


class Folder:
    def __init__(self):
        self.names, self.durable, self.pending = {}, {}, []

    def change(self, names):
        """Set these names at once; None removes one."""
        self.pending.append(names)
        apply(self.names, [names])


def apply(names, changes):
    for change in changes:
        for name, node in change.items():
            names.pop(name, None)
            if node is not None:
                names[name] = node


class Disk:
    """What a file system holds, and how much of it is certain."""

    def __init__(self, log):
        self.root = Folder()
        for operation in log:
            self.do(*operation)

    def find(self, path):
        node = self.root
        for part in Path(path).parts:
            node = node.names[part]
        return node

    def do(self, operation, path, detail=None):
        folder, name = self.find(Path(path).parent), Path(path).name
        match operation:
            case "create":
                folder.change({name: File()})
            case "mkdir":
                folder.change({name: Folder()})
            case "remove":
                folder.change({name: None})
            case "write":
                self.find(path).data += detail
            case "rename":
                assert Path(path).parent == Path(detail).parent  # which makes it atomic
                folder.change({name: None, Path(detail).name: folder.names[name]})
            case "fsync":
                node = self.find(path)
                if isinstance(node, File):
                    node.durable = len(node.data)
                else:
                    node.durable, node.pending = dict(node.names), []

    def write_out(self, target, names, size, folder=None):
        """Make the folder that is left; `names` and `size` choose what of the uncertain is kept."""
        target.mkdir()
        for name, node in names(folder or self.root).items():
            if isinstance(node, File):
                (target / name).write_bytes(node.data[: size(node)])
            else:
                self.write_out(target / name, names, size, node)


def outcomes(seeds):
    """Yield what may be left of names and data: (name, names of a folder, size of a file)."""
    yield "killed", lambda folder: folder.names, lambda file: len(file.data)
    yield "all lost", lambda folder: folder.durable, lambda file: file.durable
    yield "data lost", lambda folder: folder.names, lambda file: file.durable
    for seed in range(seeds):
        chance = random.Random(seed)

        def some_names(folder, chance=chance):
            names = dict(folder.durable)
            apply(names, [change for change in folder.pending if chance.random() < 0.5])
            return names

        def some_bytes(file, chance=chance):
            return chance.randint(file.durable, len(file.data))

        yield f"seed {seed}", some_names, some_bytes


def save(parent, step, value):
    tensors = {"model": Tensors({"w": np.full(3, value, np.float32)}, {})}
    return checkpoint.save(parent, tensors, {"step": step, "value": value})


def newest(parent):
    found, _ = checkpoint.newest_valid(parent)
    if found is None:
        return None
    assert found.tensors["model"].arrays["w"].tolist() == [found.state["value"]] * 3
    return found.state["value"]


def survey(log, folder, allowed, scratch, seeds, start=0):
    """Crash after every operation of the log from `start` on, and check what the folder gives."""
    for at in range(start, len(log) + 1):
        for number, (outcome, names, size) in enumerate(outcomes(seeds)):
            left = scratch / f"{at}-{number}"
            Disk(log[:at]).write_out(left, names, size)
            value = newest(left / folder)
            assert value in allowed(at), (outcome, at, log[at - 1 : at + 1])
            for named in (left / folder).glob("step-*"):
                checkpoint.load(named)  # none has its name without being whole
            yield at, outcome, left


@pytest.fixture
def record(monkeypatch):
    def run(root, work):
        with monkeypatch.context() as patch:
            recording = Recording(root, patch)
            work(recording.log)
        return recording.log

    return run


def test_a_crash_after_any_operation_leaves_the_old_or_the_new(tmp_path, record):
    marks = []  # (operations done, value that is promised from here on)

    def work(log):
        def saved(step, value):
            save(root / "run" / "c", step, value)
            marks.append((len(log), value))

        for step in (1, 2, 3):
            saved(step, float(step))
        saved(3, 3.5)  # replaces
        saved(3, 3.5)  # stays
        checkpoint.prune(root / "run" / "c", keep=2)
        saved(4, 4.0)

    root = tmp_path / "real"
    root.mkdir()
    log = record(root, work)

    def allowed(at):
        before = [value for end, value in marks if end <= at]
        after = [value for end, value in marks if end > at]
        return {before[-1] if before else None, *after[:1]}

    scratch = tmp_path / "left"
    scratch.mkdir()
    for at, outcome, left in survey(log, "run/c", allowed, scratch, seeds=2):
        if outcome in ("killed", "seed 0"):
            save(left / "run" / "c", 9, 9.0)
            assert newest(left / "run" / "c") == 9.0
            after = [path.name for path in (left / "run" / "c").iterdir()]
            assert all(re.fullmatch("step-[0-9]+", name) for name in after), (at, after)


def test_a_crash_while_mending_an_earlier_crash_loses_nothing(tmp_path, record):
    root = tmp_path / "real"
    root.mkdir()
    start = []

    def work(log):
        save(root / "c", 1, 1.0)
        start.append(len(log))
        save(root / "c", 1, 1.5)

    first = record(root, work)
    renames = [at + 1 for at, entry in enumerate(first) if entry[0] == "rename"]
    for at in (end for end in renames if end > start[0]):
        again = tmp_path / f"again-{at}"
        _, names, size = next(iter(outcomes(0)))
        Disk(first[:at]).write_out(again, names, size)
        before = newest(again / "c")
        second = record(again, lambda log, again=again: save(again / "c", 2, 2.0))
        scratch = tmp_path / f"left-{at}"
        scratch.mkdir()
        for _ in survey(
            first[:at] + second, "c", lambda _: {1.0, 1.5, 2.0}, scratch, seeds=6, start=at
        ):
            pass
        assert before in (1.0, 1.5)


def test_a_crash_while_replacing_one_file_leaves_the_old_or_the_new(tmp_path, record):
    root = tmp_path / "real"
    root.mkdir()
    ends = []

    def work(log):
        for value in (1.0, 2.0):
            checkpoint.replace_model(root / "best", Tensors({"w": np.full(3, value)}, {}))
            ends.append(len(log))

    log = record(root, work)
    for at in range(ends[0], len(log) + 1):
        for number, (_, names, size) in enumerate(outcomes(3)):
            left = tmp_path / f"{at}-{number}"
            Disk(log[:at]).write_out(left, names, size)
            value = safetensors.read(left / "best" / "model.safetensors").arrays["w"][0]
            assert value in ({2.0} if at == len(log) else {1.0, 2.0})


def test_after_a_crash_no_copy_stands_beside_another_model(tmp_path, record):
    root = tmp_path / "real"
    root.mkdir()
    ends = []

    def work(log):
        for value in (1.0, 2.0):
            tensors = Tensors({"w": np.full(3, value)}, {})
            checkpoint.replace_model(root / "best", tensors)
            safetensors.write(root / "best" / "model-q8_0.safetensors", *tensors)
            ends.append(len(log))

    log = record(root, work)
    seen = set()
    for at in range(ends[0], len(log) + 1):
        for number, (_, names, size) in enumerate(outcomes(3)):
            left = tmp_path / f"{at}-{number}"
            Disk(log[:at]).write_out(left, names, size)
            model, copy = (left / "best" / f"{n}.safetensors" for n in ("model", "model-q8_0"))
            value = safetensors.read(model).arrays["w"][0]
            if copy.exists():
                assert safetensors.read(copy).arrays["w"][0] == value
            seen.add((value, copy.exists()))
    assert seen == {(1.0, True), (1.0, False), (2.0, False), (2.0, True)}


def test_a_crash_while_cutting_back_leaves_the_whole_or_the_cut_file(tmp_path, record):
    root = tmp_path / "real"
    root.mkdir()
    path = root / "metrics.jsonl"

    for step in (1, 2, 3):
        jsonl.append(path, {"step": step})
    stands = [("create", path.name), ("write", path.name, path.read_bytes()),
              ("fsync", path.name), ("fsync", ".")]  # fmt: skip
    log = stands + record(root, lambda log: jsonl.cut_back(path, 2))
    for at in range(len(stands), len(log) + 1):
        for number, (_, names, size) in enumerate(outcomes(3)):
            left = tmp_path / f"{at}-{number}"
            Disk(log[:at]).write_out(left, names, size)
            steps = [row["step"] for row in jsonl.read(left / path.name)]
            assert steps in ([[1, 2]] if at == len(log) else [[1, 2, 3], [1, 2]])
