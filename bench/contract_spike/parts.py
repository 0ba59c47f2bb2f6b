"""What each part of a step costs on the Python side, measured in place: caches as cold as they are.

Functions are wrapped for a while by a stopwatch that counts time once: what a function spends in
another wrapped one is not its own. The stopwatch's own cost is measured and taken off.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from time import thread_time
from typing import Any, TextIO
from unittest.mock import patch

import backend
import common
import numpy as np

from splitbit_kit.engine import optable, params, tape, workspace
from splitbit_kit.training import learner


class Stopwatch:
    """Own time of wrapped functions, by label."""

    def __init__(self) -> None:
        self.stack: list[float] = [0.0]
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self.cost = 0.0  # of one wrapped call, to its caller's account

    def wrap(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same and is timed."""
        stack, seconds, calls = self.stack, self.seconds, self.calls

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            stack.append(0.0)
            start = thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent = thread_time() - start
                inner = stack.pop()
                stack[-1] += spent + self.cost
                seconds[label] = seconds.get(label, 0.0) + spent - inner
                calls[label] = calls.get(label, 0) + 1

        return timed

    def reset(self) -> tuple[dict[str, float], dict[str, int]]:
        """Return the figures so far, and begin anew."""
        done = dict(self.seconds), dict(self.calls)
        self.seconds.clear()
        self.calls.clear()
        return done


def parts(pair: Any, out: TextIO, steps: int = 100) -> dict[str, Any]:
    """Print and return median microseconds a step and calls a step of each part of both sides.

    Only meaningful with one thread, where the clock is the CPU's.
    """
    watch = Stopwatch()

    def nothing() -> None:
        pass

    timed = watch.wrap("nothing", nothing)
    costs = []
    for _ in range(2000):
        start = thread_time()
        timed()
        costs.append(thread_time() - start)
    floor = statistics.median(costs)  # around the wrapper
    inside = watch.reset()[0]["nothing"] / 2000  # within it: charged to the function itself
    watch.cost = floor - inside

    spike = backend.Spike
    targets: list[tuple[Any, str, str]] = [
        (tape.Tape, "call", "Tape.call"),
        (tape.Tape, "backward", "Tape.backward"),
        (tape.Tape, "_refuse_raw_parameters", "Tape: refuse raw parameters"),
        (optable.OpTable, "resolve", "OpTable.resolve"),
        (workspace.BufferPool, "take", "workspace.take"),
        (params.GradientBuffer, "into", "grads.into"),
        (params.GradientBuffer, "begin", "grads.begin, finish"),
        (params.GradientBuffer, "finish", "grads.begin, finish"),
        (params.ParameterStore, "updated", "params.updated"),
        (learner.Learner, "gradients", "Learner.gradients"),
        (learner.Learner, "step", "Learner.step"),
        (learner.Decoder, "loss", "Decoder"),
        (backend, "address", "address"),
        (spike, "_read", "backend: _read (weights)"),
        (type(pair.bare), "step", "bare: step"),
    ]
    for name in ("gemm", "ln_fwd", "ln_bwd", "attn_fwd", "attn_bwd", "ce", "cvt"):
        targets.append((pair.bare.k, name, "kernels"))
    for name in [
        "embed_fwd",
        "embed_bwd",
        "clip_adamw",
        "gather",
        "scatter",
        "add",
        "sumsq",
        "adamw",
    ]:
        targets.append((common, name, "kernels"))
    sides: dict[str, dict[str, list[float]]] = {"bare": {}, "contract": {}}
    counts: dict[str, dict[str, int]] = {"bare": {}, "contract": {}}
    with ExitStack() as stack:
        for owner, name, label in targets:
            wrapped = watch.wrap(label, getattr(owner, name))
            stack.enter_context(patch.object(owner, name, wrapped))
        # the table holds the backend's bound methods: wrap them there
        for resolved in list(pair.learner._table._resolved.values()):
            op = resolved.op
            timed_op = type(op)(
                watch.wrap("backend: forward", op.forward),
                watch.wrap("backend: backward", op.backward),
            )
            object.__setattr__(resolved, "op", timed_op)
            stack.callback(object.__setattr__, resolved, "op", op)
        flat = pair.learner._flat_ops
        for name in ("squared_norm", "adamw"):
            stack.enter_context(patch.dict(flat, {name: watch.wrap("backend: flat", flat[name])}))
        for i in range(2 * steps):
            side = ("bare", "contract")[i % 2]
            watch.reset()
            (pair.bare_step if side == "bare" else pair.contract_step)()
            pair.done += i % 2
            seconds, calls = watch.reset()
            counts[side] = calls
            for label, spent in seconds.items():
                own = spent - inside * calls[label]
                sides[side].setdefault(label, []).append(own)
    report: dict[str, Any] = {}
    for side, labels in sides.items():
        report[side] = {
            label: {
                "us": round(1e6 * float(np.median(spent)), 1),
                "least_us": round(1e6 * min(spent), 1),
                "calls": counts[side][label],
            }
            for label, spent in labels.items()
        }
        python = sum(v["us"] for k, v in report[side].items() if k != "kernels")
        print(f"{side}: Python {python:.0f} us a step", file=out)
        for label, value in sorted(report[side].items(), key=lambda item: -item[1]["us"]):
            print(
                f"  {label:32s} {value['us']:9.1f} us (least {value['least_us']:9.1f}), "
                f"{value['calls']} calls",
                file=out,
            )
    return report
