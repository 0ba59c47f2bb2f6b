"""The memory that a plan foretells, beside the peak of a training in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.full
def test_a_plan_foretells_what_a_training_takes(tmp_path, monkeypatch):
    monkeypatch.setenv("SPLITBIT_CACHE", str(tmp_path))
    command = [sys.executable, str(BENCH / "plan_memory.py"), "nanogpt-laptop", "--json"]
    done = subprocess.run([*command, "--backend", "numpy"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout.splitlines()[-1])["presets"]
    assert row["ratio"] == pytest.approx(1, abs=0.15)
