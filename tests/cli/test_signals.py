"""Ctrl-C and SIGTERM: the first saves and leaves, the second leaves at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commandline import TINY, Run, clean_environment

from splitbit_kit.formats.checkpoint import newest_valid

LONG = ["train", "text.txt", *TINY, "--steps", "100000", "--eval-every", "10", "--out", "r"]

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX systems")


def started(*argv: str) -> subprocess.Popen[str]:
    """Start a command line and return when its run has a checkpoint after a step."""
    process = subprocess.Popen(
        [sys.executable, "-m", "splitbit_kit", *argv],
        env=clean_environment() | {"SPLITBIT_CACHE": str(Path("cache").resolve())},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    give_up = time.monotonic() + 60
    while not list(Path("r/checkpoints").glob("step-*[1-9]*")):
        assert process.poll() is None and time.monotonic() < give_up, process.communicate()
        time.sleep(0.02)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_signal_saves_and_leaves_with_130(number: signal.Signals, run: Run) -> None:
    process = started(*LONG, "--json")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "stopping after this step" in err
    assert err.splitlines()[-1].endswith("go on with: splitbit-kit train --resume r")
    stopped = json.loads(out)
    assert stopped["reason"] == "interrupted"
    saved, damaged = newest_valid(Path("r/checkpoints"))
    assert not damaged
    assert saved is not None and saved.state["step"] == stopped["total_steps"]
    steps = stopped["total_steps"] + 2
    done = run("train", "--resume", "r", "--steps", steps, "--json")
    assert (done.code, done.last["total_steps"]) == (0, steps)


def test_a_second_signal_leaves_at_once_and_checkpoints_stay_whole() -> None:
    seconds_a_step = ["--grad-accum", "500", "--save-every", "1"]
    process = started(*LONG, *seconds_a_step)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert out.splitlines()[-1].endswith("once more to leave at once")
    saved, _ = newest_valid(Path("r/checkpoints"))
    assert saved is not None and saved.state["step"] == 1


def test_ctrl_c_before_training_begins_leaves_with_130(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("splitbit_kit.training.run.train", interrupted)
    stopped = run("train")
    assert (stopped.code, stopped.out, stopped.err) == (130, "", "interrupted\n")
