"""Run command lines in this process, or in one of their own, and look at what they wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics
from typing import Any

TEXT = "\n".join(topics.topics.values())[:8_000]

TINY = [
    *("--set", "model.layers=1", "--set", "model.width=32", "--set", "model.context=32"),
    *("--set", "tokenizer.kind=byte", "--set", "tokenizer.vocab_size=0"),
    *("--set", "sample.max_tokens=8", "--set", "scheduler.warmup_steps=1"),
    *("--seq-len", "32", "--batch-size", "4", "--steps", "4", "--backend", "numpy"),
    *("--threads", "1", "--tier", "light"),
]
"""What makes any preset small enough for a test, on any machine."""


@dataclass(frozen=True)
class Outcome:
    """What a command line left behind."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> Any:
        """The object in the last line of standard output."""
        return json.loads(self.out.splitlines()[-1])

    @property
    def error(self) -> str:
        """The one line of an error. Fails if there is more than that line, or a traceback."""
        lines = self.err.splitlines()
        assert self.code in (1, 2), self
        assert [line.startswith(("error: ", "unexpected error: ")) for line in lines[-1:]] == [True]
        assert "Traceback" not in self.err
        return lines[-1]


Run = Callable[..., Outcome]


def clean_environment() -> dict[str, str]:
    """Return this process's environment without what changes the looks of an output."""
    looks = ("NO_COLOR", "FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "COLUMNS", "TERMINAL_WIDTH")
    return {k: v for k, v in os.environ.items() if k not in looks and "COV_" not in k}


def process(*argv: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "splitbit_kit", *map(str, argv)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
        **{"stdin": subprocess.DEVNULL, **more},
    )
