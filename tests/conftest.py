"""For all tests: one thread for NumPy's matrix library, so that tests may run side by side."""

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # read when NumPy is first imported
