"""Adafactor."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from splitbit_kit.api import Array, FlatOps, Param, Parameters, State
from splitbit_kit.bundled.optimizers.checks import check_decay, check_positive


@dataclass(frozen=True, kw_only=True)
class Adafactor:
    """Adam with a second moment kept as a row and a column of each matrix: Shazeer and Stern 2018.

    https://arxiv.org/abs/1804.04235, without momentum. The step is relative: of a parameter whose
    root mean square is s, it is max(eps2, s) min(lr, 1 / sqrt(step)). The second moment forgets by
    1 - step^-decay; a direction's root mean square is at most `clip`. Raises ValueError for options
    outside their range.
    """

    decay: float = 0.8
    clip: float = 1.0
    eps1: float = 1e-30
    eps2: float = 1e-3
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay: {self.decay} does not lie in 0 .. 1 (0 excluded)")
        check_positive("clip", self.clip, "1")
        check_positive("eps1", self.eps1, "1e-30")
        check_positive("eps2", self.eps2, "1e-3")
        check_decay(self.weight_decay)

    def init(self, params: Parameters) -> State:
        """Return second moments, parameter by parameter, and the count of steps made (1,).

        Of a matrix (R, C) the mean squares of rows and of columns, R + C numbers; of a vector all.
        """
        size = sum(map(_moments, params))
        return {"step": np.zeros(1, np.int64), "v": np.zeros(size, params.values.dtype)}

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
        step = float(state["step"][0])
        new = step**-self.decay  # the share of this step's squares in the moment: all at the first
        slowed = 1 / max(1.0, lr * sqrt(step))
        used = 0
        for param in params:
            g, size = params.view(grads, param), _moments(param)
            g *= grad_scale
            _precondition(g, state["v"][used : used + size], new, self.eps1)
            used += size
            scale = max(self.eps2, _root_mean_square(params.view(params.values, param), ops))
            g *= slowed * scale / max(1.0, _root_mean_square(g, ops) / self.clip)
        ops["sgd"](
            params,
            grads,
            None,
            lr=lr,
            momentum=0.0,
            weight_decay=self.weight_decay,
            grad_scale=1.0,
        )


def _moments(param: Param) -> int:
    """Return how many numbers a parameter's second moment is kept in."""
    if len(param.shape) < 2:
        return param.shape[0]
    rows, columns = param.shape
    return rows + columns


def _precondition(g: Array, v: Array, new: float, eps: float) -> None:
    """Take a gradient's squares into the moments v; divide it by the root of the moment."""
    if g.ndim == 1:
        v += new * (g * g + eps - v)
        g /= np.sqrt(v)
        return
    row, column = v[: len(g)], v[len(g) :]
    row += new * (np.einsum("rc,rc->r", g, g) / len(column) + eps - row)
    column += new * (np.einsum("rc,rc->c", g, g) / len(row) + eps - column)
    # v = row column / mean(row); the roots one by one, for the product of both may underflow
    g *= 1 / np.sqrt(row / row.mean())[:, None]
    g *= 1 / np.sqrt(column)


def _root_mean_square(x: Array, ops: FlatOps) -> float:
    return sqrt(ops["squared_norm"](x.reshape(-1)) / x.size)
