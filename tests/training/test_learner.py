"""One optimizer step: what it promises to backends and to optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from splitbit_kit.api import Backend, Context, Hardware, Op, OpOffer
from splitbit_kit.engine.optable import OpTable
from splitbit_kit.engine.params import ParameterStore
from splitbit_kit.engine.workspace import BufferPool
from splitbit_kit.models.config import ModelConfig
from splitbit_kit.models.decoder import Decoder, parameter_specs
from splitbit_kit.text.batches import Batch
from splitbit_kit.training.learner import Learner
from splitbit_numpy_backend.table import build

CONFIG = ModelConfig("gpt2", layers=1, heads=2, width=8, hidden=8, context=8)
IDS = np.arange(6, dtype=np.int32)
BATCH = Batch(IDS, IDS[::-1].copy(), IDS, np.array([0, 6], np.int32))


class Recorder:
    """An optimizer that changes nothing and notes what it is given."""

    def __init__(self) -> None:
        self.given: list[dict[str, Any]] = []

    def init(self, params: Any) -> dict[str, Any]:
        return {}

    def update(self, params: Any, grads: Any, state: Any, **given: Any) -> None:
        self.given.append({**given, "version": params.version})


def learner(optimizer: Any, *ahead: tuple[str, Backend], grad_clip: float = 1.0) -> Learner:
    """Return a small model on a chain that NumPy closes."""
    specs = parameter_specs(CONFIG, 7)
    params = ParameterStore(specs)
    params.initialise(specs, seed=1)
    hardware = Hardware(threads=1, cores=1, memory_bytes=1 << 30, tier="minimal")
    table = OpTable([*ahead, ("numpy", build(hardware, "fp32", 1))], train=True)
    decoder, ctx = Decoder(CONFIG, params), Context(BufferPool())
    return Learner(
        decoder, table, ctx, optimizer, lambda step: 0.5 / (step + 1), grad_clip=grad_clip
    )


def test_each_step_raises_every_version_by_one_after_the_update() -> None:
    # a backend that keeps converted copies has nothing else to go by
    model = learner(seen := Recorder())
    before = model.params.version
    for step in range(3):
        model.step(step, [BATCH])
    assert [given["version"] for given in seen.given] == [before, before + 1, before + 2]
    assert {param.version for param in model.params} == {model.params.version} == {before + 3}


@pytest.mark.parametrize("share", [0.25, 4.0])
def test_the_gradient_is_scaled_down_to_the_clip_and_never_up(share: float) -> None:
    norm = learner(Recorder(), grad_clip=0).step(0, [BATCH]).grad_norm
    model = learner(seen := Recorder(), grad_clip=share * norm)
    assert model.step(0, [BATCH]).grad_norm == norm  # before clipping
    assert seen.given[0]["grad_scale"] == pytest.approx(min(1.0, share))
    assert seen.given[0]["lr"] == 0.5


def test_without_a_clip_nothing_is_scaled() -> None:
    model = learner(seen := Recorder(), grad_clip=0)
    model.step(0, [BATCH])
    assert seen.given[0]["grad_scale"] == 1.0


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda ctx, x, y: (x.astype(np.float64), None), "add of careless returned an array of"),
        (lambda ctx, x, y: (x, None), "add of careless returned one of its operands"),
    ],
)
def test_the_first_step_checks_what_ops_return(forward: Callable[..., Any], message: str) -> None:
    careless = Backend({"add": OpOffer(Op(forward, forward))}, {}, "fp32")
    with pytest.raises(TypeError, match=message):
        learner(Recorder(), ("careless", careless)).step(0, [BATCH])
