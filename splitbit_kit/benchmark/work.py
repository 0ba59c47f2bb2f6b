"""How much arithmetic a call is: its multiplies, and attention at half for causality.

An addition and a multiplication count as two operations. A weight (O, I) takes 2 O I of them for
each token on the way there and twice that on the way back. A head's scores and the mixing of its
values take 4 T^2 D for a sequence and twice that on the way back, of which half is masked; what a
backend computes anew on the way back is its own affair. All else (norms, activations, the
optimizer) counts as nothing.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from splitbit_kit.api import OPS, Param

BACKWARD = 2
"""What a way back is worth, in ways there."""


def forward_work(op: str, operands: tuple[Any, ...]) -> float:
    """Return the floating-point operations of a call on the way there.

    operands: as `splitbit_kit.api.ops` orders them; the first one's rows are the tokens.
    """
    if op == "embedding":
        return 0.0
    named = dict(zip(OPS[op].operands, operands, strict=False))
    weights = [o for o in operands if isinstance(o, Param) and len(o.shape) == 2]
    done: float = 2.0 * operands[0].shape[0] * sum(prod(weight.shape) for weight in weights)
    if "starts" in named:
        mixed = named["wq"].shape[0] if "wq" in named else named["q"].shape[1]  # H * D
        done += 4.0 / 2 * mixed * float((np.diff(named["starts"]).astype(np.float64) ** 2).sum())
    return done
