"""What both sides of the PyTorch comparison share: the cases, the text, and the starting weights.

`record_parity.py` trains each case in PyTorch and writes the numbers down; `tests/test_parity.py`
trains it here and compares. This file needs no PyTorch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from splitbit_kit.engine.params import ParameterStore
from splitbit_kit.models.config import ModelConfig
from splitbit_kit.models.decoder import parameter_specs

Array = np.ndarray[Any, np.dtype[Any]]

RECORDED = Path(__file__).with_name("parity.json")
AUTOCAST = Path(__file__).with_name("autocast.json")
PEAK_LR, WARMUP_STEPS = 1e-3, 10
BETAS, EPS, WEIGHT_DECAY, GRAD_CLIP = (0.9, 0.99), 1e-8, 0.1, 1.0
VOCABULARY = 65
WEIGHTS_SEED, DROPOUT_SEED = 1, (7 << 32) + 11  # a dropout seed that needs both words of the key


@dataclass(frozen=True)
class Case:
    """A model, and how it is trained."""

    name: str
    config: ModelConfig
    batch: int  # sequences in all micro-batches of a step
    steps: int
    micro_batches: int = 1


_SMALL = {"layers": 2, "heads": 4, "width": 64, "context": 32}

CASES = (
    Case("c1", ModelConfig("gpt2", layers=4, heads=4, width=128, context=64), 12, 100),
    Case(
        "llama",
        ModelConfig("llama", layers=2, heads=4, kv_heads=2, width=128, hidden=384, context=64),
        12,
        100,
    ),
    Case("gpt2-bias", ModelConfig("gpt2", **_SMALL, bias=True), 8, 10),
    Case("gpt2-untied", ModelConfig("gpt2", **_SMALL, tied=False), 8, 10),
    Case(
        "gpt2-dropout",
        ModelConfig("gpt2", **_SMALL, bias=True, dropout=0.2),
        8,
        10,
        micro_batches=2,
    ),
    Case(
        "llama-untied-dropout",
        ModelConfig("llama", **_SMALL, kv_heads=1, tied=False, dropout=0.1),
        8,
        10,
    ),
)


def schedule(step: int) -> float:
    """Return the learning rate of a step (the first is 0): a linear warm-up, then constant."""
    return PEAK_LR * min(1.0, (step + 1) / WARMUP_STEPS)


class Text:
    """The licence at the root of this repository as ids: a real text that never changes.

    The 64 commonest characters have an id each, in sorted order; all others share the last one.
    """

    def __init__(self) -> None:
        raw = Path(__file__).parents[2].joinpath("LICENSE").read_bytes()
        raw = raw.replace(b"\r\n", b"\n")  # a Windows checkout may have them
        self.sha256 = sha256(raw).hexdigest()
        text = raw.decode("ascii")
        common = sorted(c for c, _ in Counter(text).most_common(VOCABULARY - 1))
        ids = {c: i for i, c in enumerate(common)}
        self.ids = np.array([ids.get(c, VOCABULARY - 1) for c in text], np.int32)

    def batches(self, case: Case, step: int) -> list[tuple[Array, Array]]:  # (B, T), (B, T)
        """Return ids and targets of each micro-batch; the windows' places are plain arithmetic."""
        context = case.config.context
        windows = step * case.batch + np.arange(case.batch)
        first = windows * 7919 % (self.ids.size - context)
        rows = self.ids[first[:, None] + np.arange(context + 1)]
        parts = np.split(rows, case.micro_batches)
        return [(part[:, :-1], part[:, 1:]) for part in parts]


def starting_weights(case: Case, dtype: Any) -> ParameterStore:
    """Return the weights that both sides begin with."""
    specs = parameter_specs(case.config, VOCABULARY)
    params = ParameterStore(specs, dtype)
    params.initialise(specs, WEIGHTS_SEED)
    return params


def fingerprint(params: ParameterStore) -> list[float]:
    """Return sum, sum of squares, and a sum that depends on the order, of all parameters."""
    flat = np.concatenate([p.array.ravel() for p in params]).astype(np.float64)
    return [float(flat.sum()), float(flat @ flat), float(flat @ np.cos(np.arange(flat.size)))]
