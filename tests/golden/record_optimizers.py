"""Record 20 steps of PyTorch's AdamW and SGD: python record_optimizers.py > optimizers.json

Needs PyTorch, which the tests do not. Eight weights, of which the first four are decayed; gradients
from a formula that any program can repeat. PyTorch mixes SGD's decay into the momentum, so that for
SGD the decoupled decay is applied by hand, before the step.
"""

import json
import math

import torch

STEPS, SIZE, DECAYED = 20, 8, 4
LR, DECAY, SCALE = 0.05, 0.1, 0.5


def gradient(step: int) -> torch.Tensor:  # step counts from 0 -> (SIZE,)
    """Return gradients that change sign and size from step to step."""
    return torch.tensor([math.sin(1.7 * step + i) * 10.0 ** (i % 3 - 1) for i in range(SIZE)])


def record(name: str, **options: float) -> list[list[float]]:
    """Return the weights after steps 1, 2, 10 and 20."""
    values = torch.tensor([math.cos(i) for i in range(SIZE)])
    decayed = values[:DECAYED].clone().requires_grad_()
    others = values[DECAYED:].clone().requires_grad_()
    if name == "adamw":
        groups = [
            {"params": [decayed], "weight_decay": DECAY},
            {"params": [others], "weight_decay": 0.0},
        ]
        betas = (options["beta1"], options["beta2"])
        optimizer = torch.optim.AdamW(groups, lr=LR, betas=betas, eps=options["eps"])
    else:
        optimizer = torch.optim.SGD([decayed, others], lr=LR, momentum=options["momentum"])
    found = []
    for step in range(STEPS):
        decayed.grad, others.grad = (SCALE * gradient(step)).split(DECAYED)
        if name == "sgd":
            with torch.no_grad():
                decayed.mul_(1 - LR * DECAY)
        optimizer.step()
        if step + 1 in (1, 2, 10, 20):
            found.append(torch.cat([decayed, others]).tolist())
    return found


torch.set_default_dtype(torch.float64)
cases = [
    ("adamw", {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8}),
    ("adamw", {"beta1": 0.8, "beta2": 0.999, "eps": 1e-3}),
    ("sgd", {"momentum": 0.9}),
    ("sgd", {"momentum": 0.0}),
]
recorded = [
    {"name": name, "options": options, "values": record(name, **options)} for name, options in cases
]
print(json.dumps({"torch": torch.__version__, "cases": recorded}, indent=1))
