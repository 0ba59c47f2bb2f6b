"""Where a step's time goes: an op table, and flat loops, that keep account of each call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from splitbit_kit.api import Op
from splitbit_kit.benchmark.work import BACKWARD, forward_work
from splitbit_kit.engine.optable import OpTable, Resolved


@dataclass
class Entry:
    """What an op, or a loop over a flat buffer, has cost so far."""

    origin: str  # the backend that serves it
    calls: int = 0
    forward_s: float = 0.0
    backward_s: float = 0.0
    work: float = 0.0  # operations on the way there, see `work`

    @property
    def seconds(self) -> float:
        """Both ways."""
        return self.forward_s + self.backward_s


class TimedTable(OpTable):
    """An op table whose ops keep account in `entries`, by name; so do its flat loops."""

    def __init__(self, table: OpTable) -> None:
        super().__init__(table.chain, train=table.train, fuse=table.fuse)
        self.entries: dict[str, Entry] = {}

    @property
    def flat(self) -> Mapping[str, Callable[..., Any]]:
        """The flat loops, timed."""
        origins = {loop: name for name, backend in reversed(self.chain) for loop in backend.flat}
        return {
            name: self._timed_loop(name, origins[name], loop) for name, loop in super().flat.items()
        }

    def _decide(self, spec: Any, *site: Any) -> Resolved:
        resolved = super()._decide(spec, *site)
        if resolved.op is None:
            return resolved
        return replace(resolved, op=self._timed_op(spec.name, resolved.origin, resolved.op))

    def _entry(self, name: str, origin: str) -> Entry:
        return self.entries.setdefault(name, Entry(origin))

    def _timed_op(self, name: str, origin: str, op: Op) -> Op:
        def forward(ctx: Any, *operands: Any, **static: Any) -> Any:
            begun = time.perf_counter()
            result = op.forward(ctx, *operands, **static)
            entry = self._entry(name, origin)
            entry.forward_s += time.perf_counter() - begun
            entry.calls += 1
            entry.work += forward_work(name, operands)
            return result

        def backward(ctx: Any, dout: Any, saved: Any, grads: Any) -> Any:
            assert op.backward is not None
            begun = time.perf_counter()
            result = op.backward(ctx, dout, saved, grads)
            self._entry(name, origin).backward_s += time.perf_counter() - begun
            return result

        return Op(forward, backward if op.backward else None)

    def _timed_loop(self, name: str, origin: str, loop: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            result = loop(*args, **kwargs)
            entry = self._entry(name, origin)
            entry.forward_s += time.perf_counter() - begun
            entry.calls += 1
            return result

        return timed


def total_work(entries: Iterable[Entry]) -> float:
    """Return the operations of all calls, both ways."""
    return (1 + BACKWARD) * sum(entry.work for entry in entries)
