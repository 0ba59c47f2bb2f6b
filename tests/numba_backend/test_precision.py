"""How far gradients are from float64's: fp32 next to nothing, bf16 no more than PyTorch's autocast.

The models, their weights and their text are those of `golden.parity`; NumPy's float64 gradients are
the reference, which `test_gradients` checks against finite differences and `test_parity` against
PyTorch. `golden/record_autocast.py` measured PyTorch's own error.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from engine import chains
from golden import parity
from test_parity import batches

from splitbit_kit.api import Context, Hardware
from splitbit_kit.bundled.optimizers import AdamW
from splitbit_kit.engine.optable import OpTable
from splitbit_kit.engine.workspace import BufferPool
from splitbit_kit.models.decoder import Decoder
from splitbit_kit.training.learner import Learner

table = pytest.importorskip("splitbit_numba_backend.table")

Array = np.ndarray[Any, np.dtype[Any]]
CASES = pytest.mark.parametrize("case", parity.CASES, ids=lambda case: case.name)


@cache
def gradients(case: parity.Case, precision: str) -> dict[str, Array]:
    """Return the first step's gradients by name, in float64; precision fp64 is NumPy's."""
    chain = chains.chain("numpy", "fp64" if precision == "fp64" else "fp32")
    dtype = np.float64 if precision == "fp64" else np.float32
    if precision != "fp64":
        chain.insert(0, ("numba", table.build(Hardware(2, 2, 1 << 34, "light"), precision, 2)))
    learner = Learner(
        Decoder(case.config, parity.starting_weights(case, dtype)),
        OpTable(chain, train=True),
        Context(BufferPool(), np.dtype(dtype), seed=parity.DROPOUT_SEED),
        AdamW(),
        parity.schedule,
    )
    learner.gradients(0, batches(case, 0, parity.Text()))
    return {p.name: learner.grads[p.name].astype(np.float64) for p in learner.params}


def errors(case: parity.Case, precision: str) -> tuple[float, dict[str, float]]:
    """Return the relative error over all parameters and of each, as the record has them."""
    exact, found = gradients(case, "fp64"), gradients(case, precision)
    difference = {name: float(np.linalg.norm(found[name] - exact[name])) for name in exact}
    size = {name: float(np.linalg.norm(exact[name])) for name in exact}
    whole = float(np.linalg.norm([*difference.values()]) / np.linalg.norm([*size.values()]))
    # a key bias moves all scores alike, so that its gradient is 0
    each = {n: difference[n] / size[n] for n in exact if not n.endswith("k.bias")}
    return whole, each


@CASES
def test_fp32_is_within_1e_5(case: parity.Case) -> None:
    whole, each = errors(case, "fp32")
    assert whole < 1e-6
    assert max(each.values()) < 1e-5


@CASES
def test_bf16_is_no_worse_than_autocast(case: parity.Case) -> None:
    recorded = json.loads(parity.AUTOCAST.read_text("utf-8"))["cases"][case.name]
    whole, each = errors(case, "bf16")
    assert 1e-4 < whole <= recorded["all"]
    assert each.keys() == recorded["each"].keys()
    assert max(each.values()) <= max(recorded["each"].values())
