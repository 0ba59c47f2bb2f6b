"""Optimizers, one module each. Their loops over the buffers are the backend's (`FlatOps`)."""

from __future__ import annotations

from collections.abc import Sequence

from splitbit_kit.api import OptimizerOffer, hookimpl
from splitbit_kit.bundled.optimizers.adafactor import Adafactor
from splitbit_kit.bundled.optimizers.adamw import AdamW
from splitbit_kit.bundled.optimizers.lion import Lion
from splitbit_kit.bundled.optimizers.muon import Muon
from splitbit_kit.bundled.optimizers.sgd import SGD

__all__ = ["SGD", "Adafactor", "AdamW", "Lion", "Muon", "optimizers"]


@hookimpl
def optimizers() -> Sequence[OptimizerOffer]:
    """Offer all. How the learning rates compare was measured: docs/optimizers.md."""
    return [
        OptimizerOffer("adamw", "Adam with decoupled weight decay (the default)", AdamW),
        OptimizerOffer(
            "lion", "moves by the sign of a momentum, half of adamw's state", Lion, lr_scale=0.1
        ),
        OptimizerOffer(
            "muon", "hidden matrices by orthogonal steps, the rest by adamw", Muon, lr_scale=2.0
        ),
        OptimizerOffer(
            "adafactor", "adamw without momentum, almost without state", Adafactor, lr_scale=10.0
        ),
        OptimizerOffer("sgd", "gradient descent with momentum", SGD, lr_scale=30.0),
    ]
