"""Run folders for tests, with lines as a training writes them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from splitbit_kit.training.config import build_config
from splitbit_kit.training.run_folder import config_toml

Row = Mapping[str, Any]


def made(folder: Path, rows: Iterable[Row] | None, tail: bytes = b"", **train: Any) -> Path:
    """Return a run folder with these lines; without a metrics file if rows is None."""
    folder.mkdir(parents=True)
    config = build_config("tiny-llama", sections={"train": {"steps": 100, **train}})
    (folder / "config.toml").write_bytes(config_toml(config))
    if rows is not None:
        lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        (folder / "metrics.jsonl").write_bytes(lines + tail)
    return folder


def begun(step: int = 0, **more: Any) -> Row:
    return {
        "kind": "run",
        "time": "2026-12-01T10:00:00+00:00",
        "step": step,
        "steps": 100,
        "parameters": 1_234_567,
        "tokens": 98_765,
        "origins": {"linear": "numba", "dropout": "numpy"},
        "machine": {"processor": "Abacus 9", "cores": 3, "memory_bytes": 7_500_000_000},
        "versions": {"splitbit-kit": "0.1.0", "numpy": "2.1.3"},
        **more,
    }


def step(n: int, **more: Any) -> Row:
    loss = 2 + 4 * math.exp(-n / 20)
    return {
        "kind": "train",
        "step": n,
        "loss": loss,
        "lr": 1e-3,
        "grad_norm": 1 + 1 / n,
        "tokens": 1000,
        "seconds": 0.5,
        **more,
    }


def evaluation(n: int, loss: float, **more: Any) -> Row:
    return {
        "kind": "eval",
        "step": n,
        "loss": loss,
        "perplexity": math.exp(loss),
        "bits_per_byte": loss / 2,
        "tokens": 50,
        "seconds": 1.0,
        "best": False,
        **more,
    }


def sample(n: int, text: str, prompt: str = "") -> Row:
    return {"kind": "sample", "step": n, "prompt": prompt, "text": text}


def ended(n: int, reason: str = "finished", **more: Any) -> Row:
    return {
        "kind": "end",
        "step": n,
        "reason": reason,
        "total_steps": n,
        "epochs": 1.5,
        "best_loss": 2.5,
        "final_loss": 2.75,
        "total_time_s": 75.2,
        "tokens_per_second": 1234.5,
        **more,
    }


def whole(steps: int = 100) -> list[Row]:
    """Return the lines of a run that went well."""
    rows: list[Row] = [begun(), evaluation(0, 6.0)]
    for n in range(1, steps + 1):
        rows.append(step(n))
        if n % 25 == 0:
            rows += [evaluation(n, 6 - n / 30), sample(n, f"text of step {n}", "Once ")]
    return [*rows, ended(steps)]
