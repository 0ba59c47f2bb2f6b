"""Time a training step beside the machine's limit and beside PyTorch: `splitbit-kit bench`.

    python bench/train.py C1 --backend numpy --vs torch
    python bench/train.py C2 --backend numba --vs torch --precision fp32 --json
    python bench/train.py C1 --backend numba --torch-python ~/torch/bin/python

The peer is always there: its interpreter is this one unless another is named.
"""

from __future__ import annotations

import sys

from splitbit_kit.__main__ import main

if __name__ == "__main__":
    arguments = sys.argv[1:]
    if "--vs" not in arguments:
        arguments += ["--vs", "torch"]
    sys.exit(main(["bench", *arguments]))
