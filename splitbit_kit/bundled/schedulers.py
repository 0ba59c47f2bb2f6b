"""Learning-rate schedules: a linear warm-up, and then what their names say.

Warm-up step n (the first is 0) has lr (n + 1) / warmup_steps, so that no step is without effect.
Step warmup_steps - 1, the last of the warm-up, and step warmup_steps, the first after it, have lr
exactly. Not given, warmup_steps is a tenth of the steps but at most 100. Schedules that end at
min_lr have it exactly at step steps - 1, the last, and at any later one; not given, it is a tenth
of lr. All raise ValueError for options outside their range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import cos, isfinite, pi, sqrt
from typing import Literal, get_args

from splitbit_kit.api import Schedule, SchedulerOffer, hookimpl

Decay = Literal["exponential", "linear", "1-sqrt"]


def cosine(
    lr: float, steps: int, *, warmup_steps: int | None = None, min_lr: float | None = None
) -> Schedule:
    """Return a schedule that rises to lr, then falls along half a cosine to min_lr.

    Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983, one cycle.
    """
    warmup, floor = _warmup(lr, steps, warmup_steps), _floor(lr, min_lr)
    falling = _falling(lr, floor, warmup, steps, lambda progress: (1 + cos(pi * progress)) / 2)
    return _warmed_up(lr, warmup, falling)


def linear(
    lr: float, steps: int, *, warmup_steps: int | None = None, min_lr: float | None = None
) -> Schedule:
    """Return a schedule that rises to lr, then falls in a straight line to min_lr."""
    warmup, floor = _warmup(lr, steps, warmup_steps), _floor(lr, min_lr)
    return _warmed_up(lr, warmup, _falling(lr, floor, warmup, steps, lambda p: 1 - p))


def wsd(
    lr: float,
    steps: int,
    *,
    warmup_steps: int | None = None,
    decay_steps: int | None = None,
    decay: Decay = "1-sqrt",
    min_lr: float | None = None,
) -> Schedule:
    """Return warm-up, stable, decay: a schedule that rises to lr, stays there, falls at the end.

    Hu et al. 2024 (MiniCPM), https://arxiv.org/abs/2404.06395. The last decay_steps steps, a fifth
    of all unless given, fall from lr to min_lr: exponentially, as in that paper; linearly; or as
    1 - sqrt(progress), which did best with Hägele et al. 2024, https://arxiv.org/abs/2405.18392.
    With warmup_steps given, runs of any length are alike until they decay.
    """
    warmup, floor = _warmup(lr, steps, warmup_steps), _floor(lr, min_lr)
    if decay not in get_args(Decay):
        raise ValueError(f"decay: {decay!r} is not one of {', '.join(get_args(Decay))}")
    if decay == "exponential" and not floor:
        raise ValueError("min_lr: an exponential decay never comes to 0; give a positive number")
    room = max(0, steps - warmup - 1)
    last = min(steps // 5, room) if decay_steps is None else decay_steps
    if not 0 <= last <= room:
        raise ValueError(
            f"decay_steps: {last} does not lie in 0 .. {room}, "
            f"what {warmup} steps of warm-up and one at lr leave of {steps}"
        )
    # of the weights of lr and of min_lr; a power of min_lr / lr is such a weighted sum as well
    ratio = floor / lr
    share: dict[str, Callable[[float], float]] = {
        "exponential": lambda p: (ratio**p - ratio) / (1 - ratio) if ratio < 1 else 1.0,
        "linear": lambda p: 1 - p,
        "1-sqrt": lambda p: 1 - sqrt(p),
    }
    falling = _falling(lr, floor, steps - 1 - last, steps, share[decay]) if last else None

    def stable(step: int) -> float:
        return falling(step) if falling and step >= steps - last else lr

    return _warmed_up(lr, warmup, stable)


def inverse_sqrt(lr: float, steps: int, *, warmup_steps: int | None = None) -> Schedule:
    """Return a schedule that rises to lr, then falls as lr sqrt(warmup_steps / step).

    Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, with the peak given, as fairseq has it.
    It falls by the length of the warm-up, which is 1 step at least, and never ends.
    """
    warmup = _warmup(lr, steps, warmup_steps)
    if warmup_steps == 0:
        raise ValueError("warmup_steps: 0, but inverse_sqrt falls by its length; give 1 or more")
    warmup = max(1, warmup)
    return _warmed_up(lr, warmup, lambda step: lr * sqrt(warmup / step))


def constant(lr: float, steps: int, *, warmup_steps: int | None = None) -> Schedule:
    """Return a schedule that rises to lr and stays there."""
    return _warmed_up(lr, _warmup(lr, steps, warmup_steps), lambda step: lr)


def _warmed_up(lr: float, warmup: int, after: Schedule) -> Schedule:
    """Return the warm-up, and from step `warmup` on another schedule."""
    return lambda step: lr * ((step + 1) / warmup) if step < warmup else after(step)


def _falling(
    lr: float, floor: float, first: int, steps: int, share: Callable[[float], float]
) -> Schedule:
    """Return a fall from lr, at step `first`, to the floor, at the last of all steps.

    share: the weight of lr by progress, from 1 at 0 to 0 at 1; the floor has the rest.
    """
    falling = steps - 1 - first

    def schedule(step: int) -> float:
        progress = min(1.0, (step - first) / falling) if falling > 0 else float(step > 0)
        if progress == 1:
            return floor
        weight = share(progress)
        # A weighted sum is exact at both ends; floor + weight (lr - floor) would not be.
        return weight * lr + (1 - weight) * floor

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


def _floor(lr: float, min_lr: float | None) -> float:
    """Return the rate at the end. Raises ValueError if it is out of range."""
    floor = 0.1 * lr if min_lr is None else min_lr
    if not 0 <= floor <= lr:
        raise ValueError(f"min_lr: {floor} does not lie between 0 and lr = {lr}")
    return floor


@hookimpl
def schedulers() -> Sequence[SchedulerOffer]:
    """Offer all."""
    return [
        SchedulerOffer("cosine", "linear warm-up, then cosine to min_lr (the default)", cosine),
        SchedulerOffer("linear", "linear warm-up, then straight down to min_lr", linear),
        SchedulerOffer("wsd", "warm-up, stable at lr, decay to min_lr over the last fifth", wsd),
        SchedulerOffer("inverse_sqrt", "linear warm-up, then by 1 / sqrt(step)", inverse_sqrt),
        SchedulerOffer("constant", "linear warm-up, then lr throughout", constant),
    ]
