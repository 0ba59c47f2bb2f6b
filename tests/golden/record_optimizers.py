"""Record 20 steps of PyTorch's optimizers: python record_optimizers.py > optimizers.json

Needs PyTorch, which the tests do not. Four small parameters, of which the vector is not decayed;
gradients from a formula that any program can repeat. PyTorch mixes SGD's decay into the momentum,
so that for SGD the decoupled decay is applied by hand, before the step. Its Muon iterates in
bfloat16; here that conversion is taken out, so that what is recorded is the algorithm in float64.
It has no Lion: that one is the pseudocode of the paper (Chen et al. 2023, algorithm 2).
"""

import json
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

STEPS, SHOWN = 20, (1, 2, 10, 20)
DECAY, SCALE = 0.1, 0.5
SHAPES = {"tok": (5, 3), "wide": (3, 4), "tall": (4, 3), "norm": (3,)}
HIDDEN = ("wide", "tall")


def start() -> dict[str, Tensor]:
    """Return the weights before the first step."""
    found, i = {}, 0
    for name, shape in SHAPES.items():
        size = math.prod(shape)
        found[name] = torch.tensor([math.cos(i + n) for n in range(size)]).reshape(shape)
        i += size
    return found


def gradient(step: int) -> dict[str, Tensor]:  # step counts from 0
    """Return gradients that change sign and size from step to step."""
    found, i = {}, 0
    for name, shape in SHAPES.items():
        size = math.prod(shape)
        values = [
            math.sin(1.7 * step + k * (1 + 0.1 * k)) * 10.0 ** (k % 3 - 1)
            for k in range(i, i + size)
        ]
        found[name] = torch.tensor(values).reshape(shape)
        i += size
    return found


def groups(params: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Return the matrices, which decay, and the vectors, which do not."""
    return [
        {"params": [p for p in params.values() if p.ndim > 1], "weight_decay": DECAY},
        {"params": [p for p in params.values() if p.ndim == 1], "weight_decay": 0.0},
    ]


def adamw(params: dict[str, Tensor], lr: float, options: dict[str, float]) -> Callable[[], None]:
    """Return a step of torch.optim.AdamW."""
    betas = (options["beta1"], options["beta2"])
    return torch.optim.AdamW(groups(params), lr=lr, betas=betas, eps=options["eps"]).step


def sgd(params: dict[str, Tensor], lr: float, options: dict[str, float]) -> Callable[[], None]:
    """Return a step of torch.optim.SGD, after the decay."""
    optimizer = torch.optim.SGD(params.values(), lr=lr, momentum=options["momentum"])

    def step() -> None:
        decay(params, lr)
        optimizer.step()

    return step


def lion(params: dict[str, Tensor], lr: float, options: dict[str, float]) -> Callable[[], None]:
    """Return a step of the paper's algorithm 2."""
    beta1, beta2 = options["beta1"], options["beta2"]
    momenta = {name: torch.zeros_like(p) for name, p in params.items()}

    @torch.no_grad()
    def step() -> None:
        for name, theta in params.items():
            g, m = theta.grad, momenta[name]
            c = beta1 * m + (1 - beta1) * g
            weight_decay = DECAY if theta.ndim > 1 else 0.0
            theta -= lr * (torch.sign(c) + weight_decay * theta)
            m.copy_(beta2 * m + (1 - beta2) * g)

    return step


def muon(params: dict[str, Tensor], lr: float, options: dict[str, float]) -> Callable[[], None]:
    """Return a step of torch.optim.Muon for the hidden matrices, and of AdamW for the rest."""
    optimizer = torch.optim.Muon(
        [params[name] for name in HIDDEN],
        lr=lr,
        weight_decay=DECAY,
        momentum=options["momentum"],
        ns_steps=options["ns_steps"],
        adjust_lr_fn="match_rms_adamw",
    )
    others = adamw({n: p for n, p in params.items() if n not in HIDDEN}, lr, options)

    def step() -> None:
        optimizer.step()
        others()

    return step


def adafactor(
    params: dict[str, Tensor], lr: float, options: dict[str, float]
) -> Callable[[], None]:
    """Return a step of torch.optim.Adafactor."""
    more = {
        "lr": lr,
        "beta2_decay": -options["decay"],
        "eps": (options["eps1"], options["eps2"]),
        "d": options["clip"],
    }
    return torch.optim.Adafactor(groups(params), **more).step


@torch.no_grad()
def decay(params: dict[str, Tensor], lr: float) -> None:
    """Decay the matrices, apart from the gradient."""
    for p in params.values():
        if p.ndim > 1:
            p.mul_(1 - lr * DECAY)


def record(
    build: Callable[..., Callable[[], None]], lr: float, options: dict[str, float]
) -> list[list[float]]:
    """Return all weights in a row, after steps 1, 2, 10 and 20."""
    params = {name: value.requires_grad_() for name, value in start().items()}
    step = build(params, lr, options)
    found = []
    for n in range(STEPS):
        for name, g in gradient(n).items():
            params[name].grad = SCALE * g
        step()
        if n + 1 in SHOWN:
            found.append(torch.cat([p.detach().flatten() for p in params.values()]).tolist())
    return found


torch.set_default_dtype(torch.float64)
torch.Tensor.bfloat16 = torch.Tensor.clone
ADAMW = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8}
CASES = [
    (adamw, 0.05, ADAMW),
    (adamw, 0.05, {"beta1": 0.8, "beta2": 0.999, "eps": 1e-3}),
    (sgd, 0.05, {"momentum": 0.9}),
    (sgd, 0.05, {"momentum": 0.0}),
    (lion, 0.05, {"beta1": 0.9, "beta2": 0.99}),
    (lion, 0.01, {"beta1": 0.95, "beta2": 0.98}),
    (muon, 0.05, {"momentum": 0.95, "ns_steps": 5, **ADAMW}),
    (muon, 0.02, {"momentum": 0.8, "ns_steps": 4, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6}),
    (adafactor, 0.05, {"decay": 0.8, "clip": 1.0, "eps1": 1e-30, "eps2": 1e-3}),
    (adafactor, 0.5, {"decay": 0.5, "clip": 1.5, "eps1": 1e-30, "eps2": 0.5}),
]
recorded = [
    {
        "name": build.__name__,
        "lr": lr,
        "options": options,
        "values": record(build, lr, options),
    }
    for build, lr, options in CASES
]
print(json.dumps({"torch": torch.__version__, "cases": recorded}, indent=1))
