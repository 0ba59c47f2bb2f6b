"""Record PyTorch's schedules of 20 steps: python record_schedules.py > schedules.json

Needs PyTorch, which the tests do not. Each is a chain of PyTorch's own schedulers with the
milestones between them; its step n is the rate that PyTorch would take for that step.
"""

import json
from collections.abc import Callable

import torch
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    SequentialLR,
)

STEPS, WARMUP, DECAY = 20, 4, 6
LR, FLOOR = 3e-3, 2e-4

Part = tuple[int, Callable[[torch.optim.Optimizer], LRScheduler]]  # from which step on


def rates(*parts: Part) -> list[float]:
    """Return the learning rate of every step."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR)
    chain = [build(optimizer) for _, build in parts]
    schedule = SequentialLR(optimizer, chain, [first for first, _ in parts[1:]])
    found = []
    for _ in range(STEPS):
        found.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return found


def warm_up(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return LinearLR(optimizer, 1 / WARMUP, total_iters=WARMUP - 1)


def stable(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return ConstantLR(optimizer, 1.0)


def falling(steps: int) -> Callable[[torch.optim.Optimizer], LRScheduler]:
    return lambda optimizer: LinearLR(optimizer, 1.0, FLOOR / LR, total_iters=steps)


def half_cosine(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return CosineAnnealingLR(optimizer, STEPS - 1 - WARMUP, FLOOR)


recorded = {
    "cosine": rates((0, warm_up), (WARMUP, half_cosine)),
    "linear": rates((0, warm_up), (WARMUP, falling(STEPS - 1 - WARMUP))),
    "wsd": rates((0, warm_up), (WARMUP, stable), (STEPS - 1 - DECAY, falling(DECAY))),
    "constant": rates((0, warm_up), (WARMUP, stable)),
}
print(json.dumps({"torch": torch.__version__, "rates": recorded}, indent=1))
