"""Training curves against those recorded from PyTorch: see tests/golden/record_parity.py."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from engine.chains import DTYPES, chain
from golden import parity

from splitbit_kit.api import Context
from splitbit_kit.bundled.optimizers import AdamW
from splitbit_kit.engine.optable import OpTable
from splitbit_kit.engine.workspace import BufferPool
from splitbit_kit.models.decoder import Decoder
from splitbit_kit.text.batches import Batch
from splitbit_kit.training.learner import Learner

RUNS = [
    # backend, precision, relative tolerance of losses and of gradient norms; beside each what was
    # seen at worst
    ("numpy", "fp64", 1e-9, 1e-9),  # 1.3e-15, 1.1e-13
    # 2.5e-6, 1.8e-4: that is PyTorch's own distance from its float64 norms (1.9e-4; ours is 1.8e-5)
    ("numpy", "fp32", 1e-4, 5e-4),
    ("numba", "fp32", 1e-4, 5e-4),
]


@pytest.fixture(scope="module")
def text() -> parity.Text:
    return parity.Text()


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(parity.RECORDED.read_text("utf-8"))
    return recorded


@pytest.mark.parametrize(("backend", "precision", "loss_tolerance", "norm_tolerance"), RUNS)
@pytest.mark.parametrize("case", parity.CASES, ids=lambda case: case.name)
def test_the_curve_is_pytorchs(
    case: parity.Case,
    backend: str,
    precision: str,
    loss_tolerance: float,
    norm_tolerance: float,
    text: parity.Text,
    record: dict[str, Any],
) -> None:
    dtype = DTYPES[precision]
    expected = record["cases"][case.name][dtype.name]
    losses, norms = curve(case, backend, precision, text)
    np.testing.assert_allclose(losses, expected["losses"], rtol=loss_tolerance)
    np.testing.assert_allclose(norms, expected["norms"], rtol=norm_tolerance)
    if case.steps >= 100:
        assert losses[0] - losses[-1] >= 1.0


def test_the_text_is_the_recorded_one(text: parity.Text, record: dict[str, Any]) -> None:
    assert text.sha256 == record["recorded"]["text_sha256"], "record again: LICENSE has changed"


@pytest.mark.parametrize("case", parity.CASES, ids=lambda case: case.name)
def test_the_starting_weights_are_the_recorded_ones(
    case: parity.Case, record: dict[str, Any]
) -> None:
    found = parity.fingerprint(parity.starting_weights(case, np.float64))
    expected = record["cases"][case.name]["starting_weights"]
    np.testing.assert_allclose(found, expected, rtol=1e-9, err_msg="record again: other weights")


def curve(
    case: parity.Case, backend: str, precision: str, text: parity.Text
) -> tuple[list[float], list[float]]:
    """Train a case and return the loss and the gradient norm of every step."""
    beta1, beta2 = parity.BETAS
    learner = Learner(
        Decoder(case.config, parity.starting_weights(case, DTYPES[precision])),
        OpTable(chain(backend, precision), train=True),
        Context(BufferPool(), seed=parity.DROPOUT_SEED),
        AdamW(beta1=beta1, beta2=beta2, eps=parity.EPS, weight_decay=parity.WEIGHT_DECAY),
        parity.schedule,
        grad_clip=parity.GRAD_CLIP,
    )
    outcomes = [learner.step(step, batches(case, step, text)) for step in range(case.steps)]
    return [o.loss for o in outcomes], [o.grad_norm for o in outcomes]


def batches(case: parity.Case, step: int, text: parity.Text) -> list[Batch]:
    """Return a step's micro-batches as the model takes them."""
    made = []
    for ids, targets in text.batches(case, step):
        rows, context = ids.shape
        positions = np.tile(np.arange(context, dtype=np.int32), rows)
        starts = np.arange(rows + 1, dtype=np.int32) * np.int32(context)
        made.append(Batch(ids.ravel(), targets.ravel(), positions, starts))
    return made
