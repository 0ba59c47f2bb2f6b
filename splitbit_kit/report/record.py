"""What a run folder tells of a run: read once, line by line, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from splitbit_kit.api import SplitbitError
from splitbit_kit.formats import jsonl
from splitbit_kit.report.curve import Curve
from splitbit_kit.training.config import to_dict
from splitbit_kit.training.run_folder import RunFolder

CURVES = ("loss", "lr", "grad_norm", "tokens_per_second")
"""What is drawn of the training steps."""

MOST_STEPS = 2**53
"""Above it a step is no exact float; no run makes so many."""

MOST_COPIES = 20
"""Formats that are shown."""

Row = Mapping[str, Any]


class Spread:
    """Rows spread evenly over all that came, at most `limit`, the first and the newest included."""

    def __init__(self, limit: int) -> None:
        self.count = 0
        self._limit = limit
        self._stride = 1
        self._kept: list[Row] = []
        self._newest: Row | None = None

    def add(self, row: Row) -> None:
        """Take the next row."""
        if self.count % self._stride == 0:
            if len(self._kept) == self._limit - 1:
                self._kept = self._kept[::2]
                self._stride *= 2
            if self.count % self._stride == 0:
                self._kept.append(row)
        self._newest = row
        self.count += 1

    def rows(self) -> list[Row]:
        """Return what was kept, in order."""
        if self._newest is None or (self._kept and self._kept[-1] is self._newest):
            return list(self._kept)
        return [*self._kept, self._newest]


@dataclass
class Record:
    """A run as its folder tells it."""

    folder: Path
    config: Mapping[str, Any]
    """section -> key -> value, resolved"""
    curves: Mapping[str, Curve] = field(default_factory=lambda: {n: Curve() for n in CURVES})
    validation: Curve = field(default_factory=Curve)
    evaluations: Spread = field(default_factory=lambda: Spread(24))
    samples: Spread = field(default_factory=lambda: Spread(12))
    history: Spread = field(default_factory=lambda: Spread(40))
    """starts and ends, as they came"""
    copies: dict[str, Row] = field(default_factory=dict)
    """quantised copies of the best model: format -> the newest end that measured one"""
    best: Row | None = None
    """the evaluation with the lowest loss after step 0"""
    start: Row | None = None
    """the newest"""
    end: Row | None = None
    """the newest, if nothing came after it"""
    step: int = 0
    seconds: float = 0.0
    """in steps, evaluations aside"""
    damaged: int = 0
    """lines that cannot be read"""
    written: datetime | None = None
    """when the newest line was"""

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.resolve().name or str(self.folder)

    @property
    def state(self) -> str:
        """One of finished, interrupted, failed, and unfinished: going on, or killed."""
        if self.end is None:
            return "unfinished"
        reason = text(self.end.get("reason"))
        return reason if reason in ("finished", "interrupted") else "failed"


def read(folder: Path) -> Record:
    """Return what a run folder tells. Raises SplitbitError if it holds no run.

    Lines that are damaged are counted and passed over, lines of a kind not known are ignored.
    """
    run = RunFolder(folder)
    record = Record(folder, to_dict(run.read_config()))
    if run.metrics.exists():
        record.written = datetime.fromtimestamp(run.metrics.stat().st_mtime, UTC)

        def damaged(error: SplitbitError) -> None:
            record.damaged += 1

        for row in jsonl.rows(run.metrics, damaged):
            _take(record, row)
    return record


def _take(record: Record, row: Row) -> None:
    kind = row.get("kind")
    take = _TAKERS.get(kind) if isinstance(kind, str) else None
    if take is None:
        return
    step = row.get("step")
    if type(step) is not int or not 0 <= step < MOST_STEPS:
        record.damaged += 1
        return
    record.step = max(record.step, step)
    if kind != "end":
        record.end = None
    take(record, step, row)


def _train(record: Record, step: int, row: Row) -> None:
    for name in ("loss", "lr", "grad_norm"):
        value = number(row.get(name))
        if value is not None:
            record.curves[name].add(step, value)
    tokens, seconds = number(row.get("tokens")), number(row.get("seconds"))
    if tokens is not None and seconds is not None and seconds > 0:
        record.seconds += seconds
        record.curves["tokens_per_second"].add(step, tokens / seconds)


def _eval(record: Record, step: int, row: Row) -> None:
    loss = number(row.get("loss"))
    if loss is None:
        return
    record.validation.add(step, loss)
    record.evaluations.add(row)
    lowest = math.inf if record.best is None else float(record.best["loss"])
    if step > 0 and loss < lowest:
        record.best = row
        record.copies.clear()  # they were of the model before, and went with it


def _run(record: Record, step: int, row: Row) -> None:
    record.start = row
    record.history.add(row)


def _end(record: Record, step: int, row: Row) -> None:
    record.end = row
    record.history.add(row)
    name = text(row.get("quantizer"))
    if name and (name in record.copies or len(record.copies) < MOST_COPIES):
        record.copies[name] = row


def _sample(record: Record, step: int, row: Row) -> None:
    record.samples.add(row)


_TAKERS = {"train": _train, "eval": _eval, "run": _run, "end": _end, "sample": _sample}


def number(value: Any) -> float | None:
    """Return a number of a metrics line, not finite ones included; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and value not in ("nan", "inf", "-inf"):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def text(value: Any) -> str:
    """Return a text of a metrics line, empty for anything else."""
    return value if isinstance(value, str) else ""


def facts(row: Row | None, name: str) -> dict[str, Any]:
    """Return a mapping that stands in a row, empty if there is none, at most 100 entries of it."""
    found = None if row is None else row.get(name)
    return dict(islice(found.items(), 100)) if isinstance(found, Mapping) else {}
