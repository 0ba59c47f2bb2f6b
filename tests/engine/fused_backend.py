"""A backend for tests alone, which proves the op contract.

It fuses both blocks, keeps what its backward pass needs in half precision, and declines dropout.
Inside it runs NumPy's primitives, which no one outside can see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from splitbit_kit.api import OPS, Backend, Context, Gradients, Op, OpOffer, Ops, OpSpec, Site

Array = np.ndarray[Any, np.dtype[Any]]

BLOCKS = ("attention_block", "mlp_block")


def fused_backend(primitives: Backend) -> Backend:
    """Return the backend, made out of the primitives of another."""
    ops = {name: OpOffer(_block(OPS[name], primitives.ops), accepts) for name in BLOCKS}
    return Backend(ops, flat={}, precision=primitives.precision, notes="for tests")


def accepts(site: Site) -> str | None:
    """Decline dropout, caches, and weights that are not arrays."""
    if unknown := {name for name, _ in site.static}.difference(OPS[site.op].static):
        return f"static arguments {unknown} are not known"
    if dict(site.static)["dropout"]:
        return "there is no dropout here"
    for operand in site.operands:
        if operand.partition(":")[0] not in ("array", "param", "none"):
            return f"{operand} is not served"
    return None


def _block(spec: OpSpec, primitives: Mapping[str, OpOffer]) -> Op:
    recipe = spec.recipe
    assert recipe is not None

    def forward(ctx: Context, x: Array, *operands: Any, **static: Any) -> tuple[Array, Any]:
        run = _Run(primitives, ctx)
        source = run.number(x)
        out = recipe(run, x, *operands, **static)
        return out, (source, run.number(out), run.steps) if ctx.grad else None

    def backward(ctx: Context, dout: Array, saved: Any, grads: Gradients) -> tuple[Array]:
        source, target, steps = saved
        gradients = {target: dout}
        for op, inputs, output, kept in reversed(steps):
            wide = _converted(kept, np.dtype(np.float16), dout.dtype)
            results = op.backward(ctx, gradients.pop(output), wide, grads)
            for number, result in zip(inputs, results, strict=True):
                held = gradients.get(number)
                gradients[number] = result if held is None else held + result
        return (gradients[source],)

    return Op(forward, backward)


class _Run(Ops):
    """Runs primitives and notes what the way back needs: arrays by number, values in float16."""

    def __init__(self, primitives: Mapping[str, OpOffer], ctx: Context) -> None:
        self.steps: list[tuple[Op, list[int], int, Any]] = []
        self._primitives = primitives
        self._ctx = ctx
        self._arrays: list[Array] = []  # alive while their identities count

    def number(self, array: Array) -> int:
        """Return an array's number."""
        for i, known in enumerate(self._arrays):
            if known is array:
                return i
        self._arrays.append(array)
        return len(self._arrays) - 1

    def call(self, spec: OpSpec, operands: tuple[Any, ...], static: dict[str, Any]) -> Array:
        op = self._primitives[spec.name].op
        out, saved = op.forward(self._ctx, *operands, **static)
        inputs = [
            self.number(o) for o in operands if isinstance(o, np.ndarray) and o.dtype.kind == "f"
        ]
        kept = _converted(saved, out.dtype, np.dtype(np.float16))
        self.steps.append((op, inputs, self.number(out), kept))
        return out


def _converted(saved: Any, found: np.dtype[Any], wanted: np.dtype[Any]) -> Any:
    """Return `saved` with the arrays of one dtype in another."""
    if isinstance(saved, np.ndarray):
        return saved.astype(wanted) if saved.dtype == found else saved
    if isinstance(saved, tuple | list):
        again: Callable[[Any], Any] = type(saved)
        return again(_converted(part, found, wanted) for part in saved)
    return saved
