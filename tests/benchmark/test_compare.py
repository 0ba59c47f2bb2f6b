"""Promises that bench/ measures and that do not depend on a machine's speed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.full
def test_a_step_touches_no_new_pages_and_the_report_keeps_its_keys():
    command = [sys.executable, str(BENCH / "train.py"), "C1", "--backend", "numpy", "--json"]
    command += ["--torch-python", sys.executable]  # no torch in it: the peer is listed as failed
    command += ["--rounds", "2"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=BENCH)
    report = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 1
    keys = {"ratio", "ours_ms", "peer_ms", "peer_mode", "modes", "rounds", "threads", "cpu"}
    assert keys <= report.keys()
    assert report["ratio"] is None
    assert all("error" in mode for mode in report["modes"].values())
    assert report["page_faults_per_step"] <= 0.01 * report["page_faults_first_step"]
