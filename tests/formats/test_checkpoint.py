import errno
import json
import math
import os

import ml_dtypes
import numpy as np
import pytest

from splitbit_kit.api.errors import SplitbitError
from splitbit_kit.formats import checkpoint, safetensors
from splitbit_kit.formats.safetensors import Tensors


def content(step, value=1.0):
    model = Tensors({"w": np.full((4, 3), value, np.float32)}, {"family": "llama"})
    optimizer = Tensors({"m": np.full(12, value, ml_dtypes.bfloat16), "v": np.zeros(0)}, {})
    state = {"step": step, "best_loss": 0.1 + 0.2, "best_step": None, "cursor": {"epoch": 2**60}}
    return {"model": model, "optimizer": optimizer}, state


def save(parent, step, value=1.0):
    return checkpoint.save(parent, *content(step, value))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def assert_holds(found, step, value=1.0):
    tensors, state = content(step, value)
    assert found.state == state
    assert set(found.tensors) == set(tensors)
    for name, (arrays, metadata) in tensors.items():
        assert found.tensors[name].metadata == metadata
        assert set(found.tensors[name].arrays) == set(arrays)
        for key, array in arrays.items():
            np.testing.assert_array_equal(found.tensors[name].arrays[key], array)
            assert found.tensors[name].arrays[key].dtype == array.dtype


def test_what_is_saved_comes_back(tmp_path, monkeypatch):
    monkeypatch.undo()  # the real fsync, once
    path = save(tmp_path / "run" / "checkpoints", 500)
    assert path == tmp_path / "run" / "checkpoints" / "step-000500"
    assert names(path) == [
        "manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"
    ]  # fmt: skip
    assert names(path.parent) == ["step-000500"]
    assert_holds(checkpoint.load(path), 500)


def test_a_step_folder_may_be_moved(tmp_path):
    save(tmp_path / "a", 5).rename(tmp_path / "copied")
    assert_holds(checkpoint.load(tmp_path / "copied"), 5)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"step": -1}, "step is -1"),
        ({"step": None}, "step is None"),
        ({"step": True}, "step is True"),
        ({"best_loss": math.nan}, "cannot be stored as JSON"),
        ({"best_loss": np.float32(1)}, "cannot be stored as JSON"),
        ({"pair": (1, 2)}, "lists for tuples"),
        ({"map": {1: 2}}, "text for keys"),
    ],
)
def test_state_that_would_not_come_back_equal_is_refused(tmp_path, change, told):
    tensors, state = content(1)
    with pytest.raises(SplitbitError, match=told):
        checkpoint.save(tmp_path / "c", tensors, state | change)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("name", ["../x", "", "a/b", "a\\b", ".hidden", "a:b"])
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path, name):
    with pytest.raises(SplitbitError, match="cannot be the name of a file"):
        checkpoint.save(tmp_path / "c", {name: Tensors({}, {})}, {"step": 1})


def test_the_newest_valid_is_by_number_and_says_what_it_skipped(tmp_path):
    for step in (999_999, 1_000_000, 2_000_000, 3_000_000):
        save(tmp_path, step)
    (tmp_path / "step-4000000").mkdir()
    (tmp_path / "step-3000000" / "model.safetensors").unlink()
    file = tmp_path / "step-2000000" / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    found, skipped = checkpoint.newest_valid(tmp_path)
    assert_holds(found, 1_000_000)
    assert len(skipped) == 3
    assert "step-4000000/manifest.json" in skipped[0].replace(os.sep, "/")
    assert "model.safetensors" in skipped[1]
    assert "the manifest has" in skipped[2]


def test_nothing_to_find_is_no_error(tmp_path):
    assert checkpoint.newest_valid(tmp_path / "missing") == (None, [])
    (tmp_path / "notes").mkdir()
    assert checkpoint.newest_valid(tmp_path) == (None, [])


def test_a_byte_changed_anywhere_is_noticed(tmp_path):
    path = save(tmp_path, 1)
    for file in path.iterdir():
        whole = file.read_bytes()
        for at in range(0, len(whole), 3):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x04]) + whole[at + 1 :])
            # white space in the manifest may change harmlessly; nothing else may
            try:
                found = checkpoint.load(path)
            except SplitbitError as error:
                assert "\n" not in str(error)
                assert str(path) in str(error)
            else:
                assert file.name == "manifest.json"
                assert_holds(found, 1)
        file.write_bytes(whole)
    assert_holds(checkpoint.load(path), 1)


@pytest.mark.parametrize(
    ("manifest", "told"),
    [
        ([], "format"),
        ({"format": "splitbit-kit checkpoint 2"}, "'splitbit-kit checkpoint 1' is expected"),
        ({"files": {}}, "state.json"),
        ({"files": {"state.json": 1}}, "'state.json': a plain name"),
        ({"files": {"state.json": {"size": True, "sha256": "0" * 64}}}, "a plain name"),
        ({"files": {"state.json": {"size": 1, "sha256": "0"}}}, "a plain name"),
        ({"../state.json": {"size": 1, "sha256": "0" * 64}}, "'../state.json': a plain name"),
    ],
)
def test_manifests_that_lie(tmp_path, manifest, told):
    path = save(tmp_path, 1)
    right = json.loads((path / "manifest.json").read_text())
    if isinstance(manifest, dict) and not {"format", "files"} & set(manifest):
        manifest = {"files": {**right["files"], **manifest}}
    changed = right | manifest if isinstance(manifest, dict) else manifest
    (path / "manifest.json").write_text(json.dumps(changed))
    with pytest.raises(SplitbitError, match=r"manifest\.json") as caught:
        checkpoint.load(path)
    assert told in str(caught.value)


def test_what_a_killed_process_left_goes_at_the_next_save(tmp_path):
    (tmp_path / ".tmp-dead").mkdir()
    (tmp_path / ".tmp-dead" / "model.safetensors").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    save(tmp_path, 1)
    assert names(tmp_path) == ["notes.txt", "step-000001"]


def test_the_same_step_again_stays_when_equal_and_is_replaced_when_not(tmp_path):
    path = save(tmp_path, 1)
    before = path.stat().st_ino
    save(tmp_path, 1)
    assert path.stat().st_ino == before
    save(tmp_path, 1, value=2.0)
    assert_holds(checkpoint.load(path), 1, value=2.0)
    assert names(tmp_path) == ["step-000001"]


def test_the_same_step_again_mends_a_damaged_one(tmp_path):
    path = save(tmp_path, 1)
    (path / "model.safetensors").write_bytes(b"")
    save(tmp_path, 1)
    assert_holds(checkpoint.load(path), 1)


def test_the_replaced_one_counts_until_its_successor_stands(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2).rename(tmp_path / "step-000002.old")
    assert_holds(checkpoint.newest_valid(tmp_path)[0], 2)
    save(tmp_path, 3)
    assert names(tmp_path) == ["step-000001", "step-000002", "step-000003"]


def test_prune_keeps_the_newest_and_the_protected(tmp_path):
    for step in range(1, 7):
        save(tmp_path, step)
    (tmp_path / "step-notes").mkdir()
    deleted = checkpoint.prune(tmp_path, keep=3, protected={1})
    assert sorted(path.name for path in deleted) == ["step-000002", "step-000003"]
    assert names(tmp_path) == [
        "step-000001", "step-000004", "step-000005", "step-000006", "step-notes"
    ]  # fmt: skip


def test_prune_never_goes_below_two_whole_ones(tmp_path):
    for step in range(1, 6):
        save(tmp_path, step)
    (tmp_path / "step-000004" / "state.json").unlink()
    (tmp_path / "step-000002" / "state.json").write_text("{}")
    checkpoint.prune(tmp_path, keep=0)
    assert names(tmp_path) == ["step-000003", "step-000004", "step-000005"]
    assert checkpoint.prune(tmp_path, keep=1) == []


def test_the_model_of_best_is_replaced_in_one_step(tmp_path):
    folder = tmp_path / "best"
    for value in (1.0, 2.0):
        path = checkpoint.replace_model(folder, content(1, value)[0]["model"])
        assert path == folder / "model.safetensors"
        assert safetensors.read(path).arrays["w"][0, 0] == value
        assert names(folder) == ["model.safetensors"]
        (folder / ".tmp-dead").write_bytes(b"half of a killed one")


class Faults:
    """The system's calls, of which the n-th fails."""

    def __init__(self, monkeypatch, call, code, at):
        self.count, self.at = 0, at
        self.real, self.error = getattr(os, call), OSError(code, os.strerror(code))
        monkeypatch.setattr(os, call, self)

    def __call__(self, *arguments, **options):
        self.count += 1
        if self.count == self.at:
            raise self.error
        return self.real(*arguments, **options)


@pytest.mark.parametrize(
    ("call", "code"),
    [("fsync", errno.EIO), ("write", errno.ENOSPC), ("write", errno.EIO), ("open", errno.EMFILE),
     ("mkdir", errno.ENOSPC), ("rename", errno.EIO), ("close", errno.EIO)],
)  # fmt: skip
def test_a_failing_system_call_leaves_the_earlier_checkpoint_and_no_half(
    tmp_path, call, code, monkeypatch
):
    for at in range(1, 100):
        parent = tmp_path / str(at)
        save(parent, 1)
        save(parent, 2)
        with monkeypatch.context() as patch:
            faults = Faults(patch, call, code, at)
            try:
                save(parent, 2, value=2.0)
            except SplitbitError as error:
                assert "\n" not in str(error)
                assert os.strerror(code) in str(error)
                assert ("free some space" in str(error)) == (code == errno.ENOSPC)
        found, skipped = checkpoint.newest_valid(parent)
        assert skipped == []
        assert_holds(found, 2, value=found.tensors["model"].arrays["w"][0, 0])
        assert_holds(checkpoint.load(parent / "step-000001"), 1)
        if faults.count < at:
            break
        if call not in ("open", "close"):  # which removing needs too; the next save does it
            left = [path for path in parent.iterdir() if path.name.startswith(".tmp-")]
            assert all((path / "manifest.json").exists() for path in left)  # on its way out
        save(parent, 3)
        assert names(parent) == ["step-000001", "step-000002", "step-000003"]
    assert at > 1


def test_a_failed_fsync_is_not_tried_again(tmp_path, monkeypatch):
    synced = []

    def failing(descriptor):
        synced.append(os.fstat(descriptor).st_ino)
        if len(synced) == 4:
            raise OSError(errno.EIO, "Input/output error")

    (tmp_path / "c").mkdir()
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(SplitbitError, match=r"step-000001.*Input/output error"):
        save(tmp_path / "c", 1)
    assert len(synced) == 4
    assert names(tmp_path / "c") == []


def test_short_writes_are_carried_on(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
    path = save(tmp_path, 1)
    monkeypatch.undo()
    assert_holds(checkpoint.load(path), 1)


def test_a_write_that_never_advances_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "write", lambda descriptor, data: 0)
    with pytest.raises(SplitbitError, match="no more bytes"):
        save(tmp_path, 1)


def test_a_failed_replacement_of_best_leaves_the_old_model(tmp_path, monkeypatch):
    old, new = (content(1, value)[0]["model"] for value in (1.0, 2.0))
    for call in ("fsync", "write", "replace"):
        path = checkpoint.replace_model(tmp_path, old)
        with monkeypatch.context() as patch:
            Faults(patch, call, errno.EIO, 1)
            with pytest.raises(SplitbitError, match=r"model\.safetensors.*Input/output"):
                checkpoint.replace_model(tmp_path, new)
        assert safetensors.read(path).arrays["w"][0, 0] == 1.0
        assert names(tmp_path) == ["model.safetensors"]
