"""Changes proposed to the engine, put in place of what it has, to measure what each saves.

Throwaway: each goes once the engine has it. `run.py --patched` applies all of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from splitbit_kit.api import Gradients, Ops, OpSpec
from splitbit_kit.engine import optable, tape, workspace
from splitbit_kit.text.batches import Batch
from splitbit_kit.training import learner

Array = np.ndarray[Any, np.dtype[Any]]


# ---- workspace: loans come home without running Python; sizes are worked out once a shape


class Memory(np.ndarray):
    """A type of its own, so that NumPy does not look through a loan to what it was made of."""

    loan: Any = None  # the reference that tells of the loan's end must itself live until then


class Loan(np.ndarray):
    """The base of what is handed out: it dies with the last view."""


class Ending(weakref.ref):  # type: ignore[type-arg]
    """Put into the list of free memory, by list.append itself, when its loan dies."""

    __slots__ = ("memory",)


def pool_init(self: Any) -> None:
    self._free = {}
    self._places = {}
    self._memories = []  # held here too: a loan that dies in a cycle must still come home
    self.allocated_bytes = 0


def take(self: Any, shape: Sequence[int], dtype: Any) -> Array:
    place = self._places.get((shape, dtype))
    if place is None:
        place = _find_place(self, shape, dtype)
    free, home, size = place
    if free:
        memory = free.pop().memory
    else:
        memory = workspace.aligned((size,), np.uint8).view(Memory)
        self._memories.append(memory)
        self.allocated_bytes += size
    loan = memory.view(Loan)
    memory.loan = ending = Ending(loan, home)
    ending.memory = memory
    return np.ndarray(shape, dtype, loan)


def _find_place(self: Any, shape: Sequence[int], dtype: Any) -> Any:
    exact = np.dtype(dtype)
    size = workspace._bucket(max(prod(shape) * exact.itemsize, 1))
    if len(self._places) > 4096:  # shapes that never come back
        self._places.clear()
    free = self._free.setdefault(size, [])
    place = self._places[shape, dtype] = free, free.append, size
    return place


# ---- op table: a call is known by what it is made of, before any words are made for it


def resolve(
    self: Any, spec: OpSpec, operands: tuple[Any, ...], static: Mapping[str, Any]
) -> optable.Resolved:
    key = (
        spec.name,
        *[o.dtype if type(o) is np.ndarray else o for o in operands],
        *static.values(),
    )
    found = self._calls.get(key)
    if found is None:
        found = resolve_site(self, spec, operands, static)
        places = tuple(
            i for i, kind in enumerate(found.site.operands) if kind.startswith("array:float")
        )
        object.__setattr__(found, "activations", places)
        # a parameter or cache is in the key itself; only for training, where they are few
        if self.train and not any(isinstance(o, optable.Stub) for o in operands):
            self._calls[key] = found
    return found


def table_init(self: Any, *args: Any, **kwargs: Any) -> None:
    make_table(self, *args, **kwargs)
    self._calls = {}


resolve_site, make_table = optable.OpTable.resolve, optable.OpTable.__init__


# ---- ops: a call that gives everything, in order, is passed on as it is


def caller(spec: OpSpec) -> Callable[..., Array]:
    count, names = len(spec.operands), spec.static

    def call(self: Any, *args: Any, **static: Any) -> Array:
        if len(args) < count:
            args = (*args, *(None,) * (count - len(args)))
        if tuple(static) != names:
            given = {**spec.defaults, **static}
            if given.keys() != spec.static_set:
                raise TypeError(f"{spec.name} takes the static arguments {names}, not {given}")
            static = {key: given[key] for key in names}
        return self.call(spec, args, static)

    call.spec = spec  # type: ignore[attr-defined]
    return call


# ---- tape: which operands are activations is known with the site


def backward(
    self: Any, out: Array, dout: Array, grads: Gradients, wrt: Sequence[Array] = ()
) -> tuple[Array | None, ...]:
    gradients: dict[int, Array] = {id(out): dout}
    wanted = {id(array) for array in wrt}
    found = dict(gradients)
    records, ctx = self._records, self.ctx
    while records:
        resolved, operands, result, saved = records.pop()
        gradient = gradients.pop(id(result), None)
        if gradient is None:
            continue
        results = resolved.op.backward(ctx, gradient, saved, grads)
        for place, result in zip(resolved.activations, results, strict=True):
            if result is None:
                continue
            key = id(operands[place])
            held = gradients.get(key)
            gradients[key] = result if held is None else self._sum(held, result)
        if wanted:
            found.update((key, gradients[key]) for key in wanted & gradients.keys())
    return tuple(found.get(id(array)) for array in wrt)


def call(self: Any, spec: OpSpec, operands: tuple[Any, ...], static: dict[str, Any]) -> Array:
    resolved = self.table.resolve(spec, operands, static)
    op = resolved.op
    if op is None:
        return spec.recipe(self, *operands, **static)  # type: ignore[misc]
    if self._flat is not None:
        self._refuse_raw_parameters(spec, operands)
    if self._observe is not None and spec.name == "linear":
        self._observe(operands[1], operands[0])
    out, saved = op.forward(self.ctx, *operands, **static)
    if id(out) in map(id, operands):
        raise TypeError(f"{spec.name} of {resolved.origin} returned one of its operands")
    if self.ctx.grad:
        self._records.append((resolved, operands, out, saved))
    return out


# ---- learner: one array of weights for all steps of a size; raw parameters are looked for once


def gradients(self: Any, step: int, micro_batches: Sequence[Batch]) -> float:
    share = 1.0 / sum([batch.ids.size for batch in micro_batches])
    loss = 0.0
    self.grads.begin()
    ctx = self._ctx
    first, self._tried = not getattr(self, "_tried", False), True
    for i, batch in enumerate(micro_batches):
        ctx.step, ctx.micro_batch = step, i
        weights = self.__dict__.get("_loss_weights")
        if weights is None or weights.size != batch.ids.size or self._share != share:
            weights = self._loss_weights = np.full(batch.ids.size, share, self.params.dtype)
            self._share = share
        ops = tape.Tape(self._table, ctx, flat=self.params.values if first else None)
        nll = self.decoder.loss(ops, batch, batch.targets, weights)
        loss += share * float(np.add.reduce(nll, dtype=np.float64))
        ops.backward(nll, weights, self.grads)
    self.grads.finish()
    return loss


def apply(names: str = "workspace resolve ops tape learner") -> None:
    """Put the changes in place."""
    chosen = names.split()
    if "workspace" in chosen:
        workspace.BufferPool.__init__ = pool_init  # type: ignore[method-assign]
        workspace.BufferPool.take = take  # type: ignore[method-assign]
    if "resolve" in chosen or "tape" in chosen:
        optable.OpTable.__init__ = table_init  # type: ignore[method-assign]
        optable.OpTable.resolve = resolve  # type: ignore[method-assign]
    if "tape" in chosen:
        tape.Tape.call = call  # type: ignore[method-assign]
        tape.Tape.backward = backward  # type: ignore[method-assign]
    if "ops" in chosen:
        for name, method in list(vars(Ops).items()):
            if hasattr(method, "spec"):
                setattr(Ops, name, caller(method.spec))
    if "learner" in chosen:
        learner.Learner.gradients = gradients  # type: ignore[method-assign]
