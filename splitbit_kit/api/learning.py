"""What optimizers and schedulers offer, and the flat buffers that optimizers work on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

import numpy as np

from splitbit_kit.api.backend import Param

Array = np.ndarray[Any, np.dtype[Any]]

State = dict[str, Array]
"""An optimizer's state: named flat arrays, which the trainer saves and restores to the bit."""


class Parameters(Protocol):
    """All trainable parameters, in one flat buffer.

    Decayed matrices come first, other matrices next, vectors last; each starts at a multiple of 64
    bytes, and the gaps between them are zero in values and gradients alike.
    """

    @property
    def values(self) -> Array:
        """(P,) float32 or float64: every parameter is a view into it."""
        ...

    @property
    def decayed(self) -> int:
        """The first `decayed` entries take weight decay."""
        ...

    @property
    def matrices(self) -> int:
        """The first `matrices` entries belong to matrices."""
        ...

    @property
    def version(self) -> int:
        """How often the values have changed; the trainer raises it by one after each update."""
        ...

    def __iter__(self) -> Iterator[Param]:
        """Yield the handles of the trainable parameters, in buffer order."""
        ...

    def view(self, flat: Array, param: Param) -> Array:
        """Return the part of another flat array (P,) that belongs to a parameter, in its shape."""
        ...

    def parts(self, chosen: Callable[[Param], bool]) -> Sequence[tuple[slice, Parameters]]:
        """Return the chosen parameters: each run of neighbours as (its place, it alone).

        The loops below take a part as they take the whole, with flat[place] of every flat array.
        """
        ...


FlatOps = Mapping[str, Callable[..., Any]]
"""Loops over flat buffers, by name; each backend may offer faster ones. Pinned here:

squared_norm(x) -> float
    The sum of x^2, accumulated in float64, in an order that does not depend on the threads.

adamw(params, grads, m, v, *, step, lr, beta1, beta2, eps, weight_decay, grad_scale) -> None
    With g = grad_scale * grads and t = step (1 at the first): m = beta1 m + (1 - beta1) g;
    v = beta2 v + (1 - beta2) g^2; values = values (1 - lr weight_decay on the decayed entries)
    - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps).
    Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101.

lion(params, grads, m, *, lr, beta1, beta2, weight_decay, grad_scale) -> None
    values = values (1 - lr weight_decay on the decayed entries) - lr sign(beta1 m + (1 - beta1) g),
    where sign(0) is 0; then m = beta2 m + (1 - beta2) g. Chen et al. 2023,
    https://arxiv.org/abs/2302.06675.

sgd(params, grads, m, *, lr, momentum, weight_decay, grad_scale) -> None
    m = momentum m + g (m is None without momentum); values = values (1 - lr weight_decay on the
    decayed entries) - lr m.

orthogonalize(x, *, steps) -> None
    x (R, C), changed in place: from U S V', its singular values, to about U V'. Newton-Schulz: x is
    divided by max(its Frobenius norm, 1e-7) and then, `steps` times,
    x = a x + (b A + c A A) x with A = x x', or the same of x' where R > C, so that A is the smaller
    of both. (a, b, c) are `NEWTON_SCHULZ`; after 5 steps singular values lie in about 0.7 .. 1.2.

`params` is a `Parameters`, so that a backend with a converted copy of the values can renew it in
the same pass, for version params.version + 1.
"""


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients whose steps raise small singular values as fast as can be, at the price that they do
not quite come to 1: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/."""


class Optimizer(Protocol):
    """A built optimizer: a pair of functions, with its options inside."""

    def init(self, params: Parameters) -> State:
        """Return the state before the first step."""
        ...

    def update(
        self,
        params: Parameters,
        grads: Array,
        state: State,
        *,
        lr: float,
        grad_scale: float,
        ops: FlatOps,
    ) -> None:
        """Change params.values and state in place. The gradient (P,) is grad_scale * grads.

        `grads` may be used as scratch space: it is not read again.
        """
        ...


@dataclass(frozen=True)
class OptimizerOffer:
    """An optimizer by name."""

    name: str
    summary: str
    build: Callable[..., Optimizer]
    """build(**options); its keyword parameters, all with defaults, are the options it has"""
    needs: tuple[str, ...] = ()
    lr_scale: float = 1.0
    """Its usual learning rate as a multiple of adamw's. A preset's rate is taken times this where
    the user names the optimizer and no rate."""

    def __post_init__(self) -> None:
        if not 0 < self.lr_scale < inf:
            raise ValueError(f"lr_scale of {self.name}: {self.lr_scale!r} is not a number above 0")


Schedule = Callable[[int], float]
"""step -> learning rate, pure. The first step is 0."""


@dataclass(frozen=True)
class SchedulerOffer:
    """A learning-rate schedule by name."""

    name: str
    summary: str
    build: Callable[..., Schedule]
    """build(lr, steps, **options): lr is the peak, steps the length of the whole run"""
    needs: tuple[str, ...] = ()
