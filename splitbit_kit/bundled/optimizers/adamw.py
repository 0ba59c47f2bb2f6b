"""AdamW."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from splitbit_kit.api import Array, FlatOps, Parameters, State
from splitbit_kit.bundled.optimizers.checks import check_decay, check_positive, check_share


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
        check_share("beta1", self.beta1)
        check_share("beta2", self.beta2)
        check_positive("eps", self.eps, "1e-8")
        check_decay(self.weight_decay)

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
