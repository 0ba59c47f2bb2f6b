import os
import subprocess
import sys

import pytest

from splitbit_kit.api.errors import SplitbitError
from splitbit_kit.formats.lock import run_lock

HOLD = """
import sys
from pathlib import Path
from splitbit_kit.formats.lock import run_lock
with run_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout.readline().strip() == b"held"
        yield process
        process.kill()


def test_a_second_process_is_refused_with_folder_and_process(tmp_path, holder):
    with pytest.raises(SplitbitError) as caught, run_lock(tmp_path / "run"):
        pass
    assert str(tmp_path / "run") in str(caught.value)
    assert f"process {holder.pid}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_refused_process_does_not_free_the_holder(tmp_path, holder):
    for _ in range(2):
        with (
            pytest.raises(SplitbitError, match=f"process {holder.pid}"),
            run_lock(tmp_path / "run"),
        ):
            pass


def test_a_killed_owner_frees_the_folder(tmp_path, holder):
    holder.kill()
    holder.wait()
    with run_lock(tmp_path / "run"):
        pass


def test_an_owner_that_leaves_frees_the_folder(tmp_path, holder):
    holder.communicate()
    with run_lock(tmp_path / "run"):
        pass


def test_a_second_lock_in_one_process_is_refused_and_an_error_inside_frees(tmp_path):
    with pytest.raises(KeyError), run_lock(tmp_path):
        with pytest.raises(SplitbitError, match=f"process {os.getpid()}"), run_lock(tmp_path):
            pass
        raise KeyError
    with run_lock(tmp_path):
        pass


def test_an_unknown_holder_is_left_unnamed(tmp_path):
    with run_lock(tmp_path):
        (tmp_path / ".lock-owner").write_text("")
        with pytest.raises(SplitbitError) as caught, run_lock(tmp_path):
            pass
    assert "process" not in str(caught.value)


def test_a_folder_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SplitbitError, match="file"), run_lock(tmp_path / "file" / "run"):
        pass
