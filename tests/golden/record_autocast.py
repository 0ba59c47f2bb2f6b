"""Measure how far PyTorch's bfloat16 gradients are from its float64 ones, and write it down.

    PYTHONPATH=. python tests/golden/record_autocast.py

For every case of `parity.py`: the gradients of its first step, from its starting weights, once in
float64 and once in float32 under torch.autocast("cpu", dtype=torch.bfloat16), with the same
dropouts. What is kept is |autocast - float64| / |float64|, over all parameters and of each. Needs
torch beside what splitbit_kit needs; takes some seconds, and rewrites autocast.json beside it.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import date
from typing import Any

import numpy as np
import torch
from parity import AUTOCAST, CASES, DROPOUT_SEED, Case, Text, starting_weights
from torch_models import Dropout, mean_loss

Array = np.ndarray[Any, np.dtype[Any]]


def gradients(case: Case, text: Text, dtype: Any, autocast: bool) -> dict[str, Array]:
    """Return the first step's gradient of every parameter."""
    params = starting_weights(case, dtype)
    weights = {p.name: torch.tensor(p.array, requires_grad=True) for p in params}
    for i, batch in enumerate(text.batches(case, 0)):
        ids, targets = (torch.from_numpy(a.astype(np.int64)) for a in batch)
        drop = Dropout(case.config.dropout, DROPOUT_SEED, 0, micro_batch=i)
        with torch.autocast("cpu", dtype=torch.bfloat16) if autocast else nullcontext():
            loss = mean_loss(case.config, weights, ids, targets, drop) / case.micro_batches
        loss.backward()
    return {name: weight.grad.double().numpy() for name, weight in weights.items()}


def main() -> None:
    """Record every case."""
    text = Text()
    cases = {}
    for case in CASES:
        exact = gradients(case, text, np.float64, autocast=False)
        found = gradients(case, text, np.float32, autocast=True)
        difference = {name: float(np.linalg.norm(found[name] - exact[name])) for name in exact}
        size = {name: float(np.linalg.norm(exact[name])) for name in exact}
        whole = float(np.linalg.norm([*difference.values()]) / np.linalg.norm([*size.values()]))
        # a key bias moves all scores alike, so that its gradient is 0
        names = [name for name in exact if not name.endswith("k.bias")]
        each = {name: difference[name] / size[name] for name in names}
        cases[case.name] = {"all": whole, "each": each}
        worst = max(each, key=each.__getitem__)
        print(f"{case.name}: {whole:.2e} in all; {worst} {each[worst]:.2e}", flush=True)
    record = {
        "recorded": {"torch": torch.__version__, "date": date.today().isoformat()},
        "cases": cases,
    }
    AUTOCAST.write_text(json.dumps(record, indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    main()
