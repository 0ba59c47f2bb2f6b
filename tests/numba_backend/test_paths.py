"""The same tests on every way to multiply that this machine has, and with checks in the kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

features = pytest.importorskip("splitbit_numba_backend.simd.features")

HERE = Path(__file__).parent
OPS = [
    f"test_{name}.py"
    for name in ("numba_primitives", "numba_training", "block_shapes", "precision")
]
KERNELS = ["test_matmul.py", "test_attention_kernels.py", "test_decode.py", "test_pointwise.py"]
SETTINGS = {
    **{f"SPLITBIT_SIMD={path}": [*OPS, *KERNELS] for path in features.supported()[:-1]},
    "SPLITBIT_DEBUG=1": OPS,  # kernels that are run without a `Runtime` have no arrays to tell
}


@pytest.mark.full
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_tests_pass(setting: str) -> None:
    name, _, value = setting.partition("=")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
        + [str(HERE / file) for file in SETTINGS[setting]],
        env=dict(os.environ, **{name: value}),
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
