"""For all tests: one thread for NumPy's matrix library, so that tests may run side by side."""

import os

import pytest

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # read when NumPy is first imported


@pytest.fixture(autouse=True)
def auto_is_numpy(monkeypatch):
    """Let `auto` mean NumPy: a compiled backend takes half a minute to be made."""
    from splitbit_kit import compute

    monkeypatch.setattr(compute, "AUTO", (compute.LAST,))
