"""Learning-rate schedules with a linear warm-up: cosine to a floor, and constant."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, isfinite, pi

from splitbit_kit.api import Schedule, SchedulerOffer, hookimpl


def cosine(
    lr: float, steps: int, *, warmup_steps: int | None = None, min_lr: float | None = None
) -> Schedule:
    """Return a schedule that rises to lr, then falls along half a cosine to min_lr.

    Warm-up step n (the first is 0) has lr (n + 1) / warmup_steps. Step warmup_steps - 1, the last
    of the warm-up, and step warmup_steps, the first of the cosine, have lr exactly; step steps - 1,
    the last, has min_lr exactly, and so has any later one. Not given, warmup_steps is a tenth of
    the steps but at most 100, and min_lr a tenth of lr. Loshchilov and Hutter 2017,
    arXiv:1608.03983, one cycle. Raises ValueError for options outside their range.
    """
    warmup = _warmup(lr, steps, warmup_steps)
    floor = 0.1 * lr if min_lr is None else min_lr
    if not 0 <= floor <= lr:
        raise ValueError(f"min_lr: {floor} does not lie between 0 and lr = {lr}")
    falling = steps - 1 - warmup

    def schedule(step: int) -> float:
        if step < warmup:
            return lr * ((step + 1) / warmup)
        progress = min(1.0, (step - warmup) / falling) if falling > 0 else float(step > 0)
        share = (1 + cos(pi * progress)) / 2
        # A weighted sum is exact at both ends; min_lr + share (lr - min_lr) would not be.
        return share * lr + (1 - share) * floor

    return schedule


def constant(lr: float, steps: int, *, warmup_steps: int | None = None) -> Schedule:
    """Return a schedule that rises to lr as `cosine` does, and stays there.

    Raises ValueError for options outside their range.
    """
    warmup = _warmup(lr, steps, warmup_steps)

    def schedule(step: int) -> float:
        return lr * ((step + 1) / warmup) if step < warmup else lr

    return schedule


def _warmup(lr: float, steps: int, warmup_steps: int | None) -> int:
    """Return the length of the warm-up. Raises ValueError if one of the three is out of range."""
    if not (isfinite(lr) and lr > 0):
        raise ValueError(f"lr: {lr} is not a positive number; 1e-3 is a usual start")
    if steps < 1:
        raise ValueError(f"steps: {steps} is too few; at least 1 is needed")
    if warmup_steps is None:
        return min(100, steps // 10)
    if warmup_steps < 0:
        raise ValueError(f"warmup_steps: {warmup_steps} is negative; 0 turns warm-up off")
    return warmup_steps


@hookimpl
def schedulers() -> Sequence[SchedulerOffer]:
    """Offer both."""
    return [
        SchedulerOffer("cosine", "linear warm-up, then cosine to min_lr (the default)", cosine),
        SchedulerOffer("constant", "linear warm-up, then lr throughout", constant),
    ]
