"""Lion."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from splitbit_kit.api import Array, FlatOps, Parameters, State
from splitbit_kit.bundled.optimizers.checks import check_decay, check_share


@dataclass(frozen=True, kw_only=True)
class Lion:
    """Steps of size lr in every weight, by the sign of a momentum: Chen et al. 2023.

    https://arxiv.org/abs/2302.06675. Its learning rate is 3 to 10 times lower than AdamW's and its
    weight decay as many times higher, for lr weight_decay is what a step takes off. Raises
    ValueError for options outside their range.
    """

    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 1.0

    def __post_init__(self) -> None:
        check_share("beta1", self.beta1)
        check_share("beta2", self.beta2)
        check_decay(self.weight_decay)

    def init(self, params: Parameters) -> State:
        """Return the momentum (P,), zero, and the count of steps made (1,)."""
        return {"step": np.zeros(1, np.int64), "m": np.zeros_like(params.values)}

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
        ops["lion"](
            params,
            grads,
            state["m"],
            lr=lr,
            beta1=self.beta1,
            beta2=self.beta2,
            weight_decay=self.weight_decay,
            grad_scale=grad_scale,
        )
