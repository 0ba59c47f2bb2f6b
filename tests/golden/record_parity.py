"""Train every case of `parity.py` in PyTorch and write each step's loss and gradient norm down.

    PYTHONPATH=. python tests/golden/record_parity.py

Needs torch beside what splitbit_kit needs. It takes a minute, and rewrites parity.json beside it.
"""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import numpy as np
import torch
from parity import (
    BETAS,
    CASES,
    DROPOUT_SEED,
    EPS,
    GRAD_CLIP,
    RECORDED,
    WEIGHT_DECAY,
    Case,
    Text,
    fingerprint,
    schedule,
    starting_weights,
)
from torch_models import Dropout, mean_loss


def train(case: Case, text: Text, dtype: Any) -> dict[str, list[float]]:
    """Return the loss and the gradient norm of every step, both before the update."""
    params = starting_weights(case, dtype)
    weights = {p.name: torch.tensor(p.array, requires_grad=True) for p in params}
    optimizer = torch.optim.AdamW(
        [
            {"params": [w for w in weights.values() if w.dim() >= 2]},
            {"params": [w for w in weights.values() if w.dim() < 2], "weight_decay": 0.0},
        ],
        betas=BETAS,
        eps=EPS,
        weight_decay=WEIGHT_DECAY,
        foreach=False,
    )
    recorded: dict[str, list[float]] = {"losses": [], "norms": []}
    for step in range(case.steps):
        optimizer.zero_grad()
        total = 0.0
        for i, batch in enumerate(text.batches(case, step)):
            ids, targets = (torch.from_numpy(a.astype(np.int64)) for a in batch)
            drop = Dropout(case.config.dropout, DROPOUT_SEED, step, micro_batch=i)
            loss = mean_loss(case.config, weights, ids, targets, drop) / case.micro_batches
            loss.backward()
            total += loss.item()
        gradients = [w.grad for w in weights.values()]
        # not clip_grad_norm_, which divides by norm + 1e-6
        norm = torch.nn.utils.get_total_norm(gradients)
        for gradient in gradients:
            gradient.mul_(min(1.0, GRAD_CLIP / norm.item()))
        for group in optimizer.param_groups:
            group["lr"] = schedule(step)
        optimizer.step()
        recorded["losses"].append(total)
        recorded["norms"].append(norm.item())
    return recorded


def main() -> None:
    """Record every case in both precisions."""
    text = Text()
    cases = {}
    for case in CASES:
        curves = {np.dtype(t).name: train(case, text, t) for t in (np.float64, np.float32)}
        start = fingerprint(starting_weights(case, np.float64))
        cases[case.name] = {"starting_weights": start, **curves}
        first, last = (curves["float64"]["losses"][i] for i in (0, -1))
        print(f"{case.name}: {case.steps} steps, loss {first:.4f} to {last:.4f}", flush=True)
    record = {
        "recorded": {
            "torch": torch.__version__,
            "numpy": np.__version__,
            "date": date.today().isoformat(),
            "text_sha256": text.sha256,
        },
        "cases": cases,
    }
    RECORDED.write_text(json.dumps(record, indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    main()
