"""The account of a step: how much arithmetic it is, and that every op and loop is in it."""

from __future__ import annotations

from typing import Any

import pytest

from splitbit_kit.benchmark.by_op import TimedTable, total_work
from splitbit_kit.benchmark.ours import training
from splitbit_kit.compute import choose
from splitbit_kit.registry import Registry

TASK = {
    "model": {"family": "gpt2", "layers": 2, "heads": 2, "width": 16, "context": 8},
    "vocabulary": 11,
    "batch": 3,
}
LLAMA = {
    "model": {"family": "llama", "layers": 1, "heads": 4, "kv_heads": 2, "width": 16, "hidden": 24,
              "context": 8},
    "vocabulary": 11,
    "batch": 2,
}  # fmt: skip


def account(task: dict[str, Any], steps: int = 1, fuse: bool = True) -> TimedTable:
    """Return the table that has counted so many steps."""
    registry = Registry()
    compute = choose(registry, "numpy", "fp32", 1)
    table = TimedTable(compute.table(train=True, fuse=fuse))
    step, _ = training(registry, compute, table, task)
    for _ in range(steps):
        step()
    return table


def test_the_work_of_gpt2_by_hand() -> None:
    tokens, width = 24, 16
    weights = 2 * 12 * width**2 + 11 * width
    attention = 2 * 3 * (4 * 8**2 / 2) * width  # layers, sequences
    expected = 3 * (2 * tokens * weights + attention)
    assert total_work(account(TASK).entries.values()) == expected


def test_the_work_of_llama_by_hand() -> None:
    tokens, width, hidden = 16, 16, 24
    weights = width * (2 * width + 2 * width // 2) + 3 * width * hidden + 11 * width
    attention = 2 * (4 * 8**2 / 2) * width
    expected = 3 * (2 * tokens * weights + attention)
    assert total_work(account(LLAMA).entries.values()) == expected


@pytest.mark.parametrize("steps", [1, 3])
def test_every_call_is_counted_and_timed(steps: int) -> None:
    entries = account(TASK, steps).entries
    assert {"embedding", "linear", "attention", "squared_norm", "adamw"} <= set(entries)
    assert entries["adamw"].calls == steps
    assert entries["attention"].calls == 2 * steps
    assert all(entry.seconds > 0 and entry.origin == "numpy" for entry in entries.values())
    assert entries["embedding"].work == 0
