"""AdamW, and SGD with momentum. The loops over the buffers are the backend's (`FlatOps`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from splitbit_kit.api import FlatOps, OptimizerOffer, Parameters, State, hookimpl
from splitbit_kit.api.learning import Array


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay: Loshchilov and Hutter 2019, arXiv:1711.05101.

    beta2 is lower than the paper's 0.999, as small batches need. Raises ValueError for options
    outside their range.
    """

    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        _check_share("beta1", self.beta1)
        _check_share("beta2", self.beta2)
        if not (isfinite(self.eps) and self.eps > 0):
            raise ValueError(f"eps: {self.eps} is not a positive number; 1e-8 is usual")
        _check_decay(self.weight_decay)

    def init(self, params: Parameters) -> State:
        """Return both moments (P,), zero, and the count of steps made (1,)."""
        return {
            "step": np.zeros(1, np.int64),
            "m": np.zeros_like(params.values),
            "v": np.zeros_like(params.values),
        }

    def update(
        self,
        params: Parameters,
        grads: Array,  # (P,)
        state: State,
        *,
        lr: float,
        grad_scale: float,
        ops: FlatOps,
    ) -> None:
        """Make one step, in place."""
        state["step"] += 1
        ops["adamw"](
            params,
            grads,
            state["m"],
            state["v"],
            step=int(state["step"][0]),
            lr=lr,
            beta1=self.beta1,
            beta2=self.beta2,
            eps=self.eps,
            weight_decay=self.weight_decay,
            grad_scale=grad_scale,
        )


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Gradient descent with heavy-ball momentum and decoupled weight decay.

    Sutskever et al. 2013, without Nesterov's correction. The decay is not mixed into the momentum,
    which differs from `torch.optim.SGD`. Raises ValueError for options outside their range.
    """

    momentum: float = 0.9
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_share("momentum", self.momentum)
        _check_decay(self.weight_decay)

    def init(self, params: Parameters) -> State:
        """Return the momentum (P,), zero, if there is any, and the count of steps made (1,)."""
        state: State = {"step": np.zeros(1, np.int64)}
        if self.momentum:
            state["m"] = np.zeros_like(params.values)
        return state

    def update(
        self,
        params: Parameters,
        grads: Array,  # (P,)
        state: State,
        *,
        lr: float,
        grad_scale: float,
        ops: FlatOps,
    ) -> None:
        """Make one step, in place."""
        state["step"] += 1
        ops["sgd"](
            params,
            grads,
            state.get("m"),
            lr=lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            grad_scale=grad_scale,
        )


def _check_share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name}: {value} does not lie in 0 .. 1 (1 excluded)")


def _check_decay(value: float) -> None:
    if not (isfinite(value) and value >= 0):
        raise ValueError(f"weight_decay: {value} is not a number from 0 up; 0 turns decay off")


@hookimpl
def optimizers() -> Sequence[OptimizerOffer]:
    """Offer both."""
    return [
        OptimizerOffer("adamw", "Adam with decoupled weight decay (the default)", AdamW),
        OptimizerOffer("sgd", "gradient descent with momentum", SGD),
    ]
