"""Gradient descent with momentum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from splitbit_kit.api import Array, FlatOps, Parameters, State
from splitbit_kit.bundled.optimizers.checks import check_decay, check_share


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Gradient descent with heavy-ball momentum and decoupled weight decay.

    Sutskever et al. 2013, without Nesterov's correction. The decay is not mixed into the momentum,
    which differs from `torch.optim.SGD`. Raises ValueError for options outside their range.
    """

    momentum: float = 0.9
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_share("momentum", self.momentum)
        check_decay(self.weight_decay)

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
