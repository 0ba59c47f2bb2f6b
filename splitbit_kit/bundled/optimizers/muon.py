"""Muon for the hidden matrices, AdamW for the rest."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from splitbit_kit.api import Array, FlatOps, Param, Parameters, State
from splitbit_kit.bundled.optimizers.checks import check_decay, check_positive, check_share


@dataclass(frozen=True, kw_only=True)
class Muon:
    """Orthogonal steps in the hidden matrices: Jordan et al. 2024.

    https://kellerjordan.github.io/posts/muon/, with Nesterov's momentum. A matrix (R, C) moves by
    0.2 sqrt(max(R, C)) lr times the orthogonalised momentum, whose entries are then about as large
    as those of an AdamW step (Liu et al. 2025, https://arxiv.org/abs/2502.16982): one learning rate
    and one weight decay, those of AdamW, serve both. Embeddings, the head, norms and biases are
    AdamW's, by beta1, beta2 and eps. Raises ValueError for options outside their range.
    """

    momentum: float = 0.95
    ns_steps: int = 5
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        for share in ("momentum", "beta1", "beta2"):
            check_share(share, getattr(self, share))
        if not 1 <= self.ns_steps <= 20:
            raise ValueError(f"ns_steps: {self.ns_steps} does not lie in 1 .. 20; 5 is usual")
        check_positive("eps", self.eps, "1e-8")
        check_decay(self.weight_decay)

    def init(self, params: Parameters) -> State:
        """Return the momentum or first moment (P,), and the second moments of AdamW's part."""
        rest = sum(part.values.size for _, part in params.parts(_is_not_hidden))
        return {
            "step": np.zeros(1, np.int64),
            "m": np.zeros_like(params.values),
            "v": np.zeros(rest, params.values.dtype),
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
        for place, part in params.parts(_is_hidden):
            for param in part:
                g, m = (part.view(flat[place], param) for flat in (grads, state["m"]))
                self._direct(g, m, grad_scale, ops)
            ops["sgd"](
                part,
                grads[place],
                None,
                lr=lr,
                momentum=0.0,
                weight_decay=self.weight_decay,
                grad_scale=1.0,
            )
        used = 0
        for place, part in params.parts(_is_not_hidden):
            size = part.values.size
            ops["adamw"](
                part,
                grads[place],
                state["m"][place],
                state["v"][used : used + size],
                step=int(state["step"][0]),
                lr=lr,
                beta1=self.beta1,
                beta2=self.beta2,
                eps=self.eps,
                weight_decay=self.weight_decay,
                grad_scale=grad_scale,
            )
            used += size

    def _direct(self, g: Array, m: Array, grad_scale: float, ops: FlatOps) -> None:
        """Take a gradient (R, C) into the momentum; make it the direction that a step takes."""
        g *= (1 - self.momentum) * grad_scale
        m *= self.momentum
        m += g
        g += self.momentum * m  # Nesterov: the momentum as it will be; its length is no matter
        ops["orthogonalize"](g, steps=self.ns_steps)
        g *= 0.2 * sqrt(max(g.shape))


def _is_hidden(param: Param) -> bool:
    return param.hidden


def _is_not_hidden(param: Param) -> bool:
    return not param.hidden
