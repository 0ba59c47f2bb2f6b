"""The tape: runs a model's ops on plain arrays, remembers them, and walks back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from splitbit_kit.api import Context, Gradients, Ops, OpSpec, Param
from splitbit_kit.engine.optable import OpTable, Resolved

Array = np.ndarray[Any, np.dtype[Any]]
Observer = Callable[[Param, Array], None]


class _Record(NamedTuple):
    resolved: Resolved
    operands: tuple[Any, ...]
    out: Array
    saved: Any


class Tape(Ops):
    """Calls ops; with ctx.grad it also records (op, operands, out, saved) for the way back.

    Arrays are known by identity. That is safe because the tape holds every operand and result
    until its backward pass has run, no op returns one of its operands, and the workspace hands out
    a new array object at each request. Once a record is done its arrays are let go, which returns
    their memory.

    flat: the flat parameter buffer. If it is given, what passes between ops is checked, and a
    TypeError says what is wrong: no operand may overlap the buffer, since its gradient would be
    lost; results and gradients are C-contiguous arrays in the compute dtype; a gradient has its
    operand's shape. observe(w, x) is told of every `linear`, for calibration.
    """

    def __init__(
        self,
        table: OpTable,
        ctx: Context,
        flat: Array | None = None,
        observe: Observer | None = None,
    ) -> None:
        if ctx.grad and not table.train:
            raise ValueError("a context with grad=True needs an op table for training")
        self.table = table
        self.ctx = ctx
        self._flat = flat
        self._observe = observe
        self._records: list[_Record] = []

    def call(self, spec: OpSpec, operands: tuple[Any, ...], static: dict[str, Any]) -> Array:
        resolved = self.table.resolve(spec, operands, static)
        if resolved.op is None:
            assert spec.recipe is not None
            whole: Array = spec.recipe(self, *operands, **static)
            return whole
        if self._flat is not None:
            self._refuse_raw_parameters(spec, operands)
        if self._observe is not None and spec.name == "linear":
            self._observe(operands[1], operands[0])
        result = resolved.op.forward(self.ctx, *operands, **static)
        if self._flat is not None:
            self._check_result(resolved, result)
        out, saved = result
        if id(out) in map(id, operands):
            raise TypeError(f"{spec.name} of {resolved.origin} returned one of its operands")
        if self.ctx.grad:
            self._records.append(_Record(resolved, operands, out, saved))
        return out

    def backward(
        self, out: Array, dout: Array, grads: Gradients, wrt: Sequence[Array] = ()
    ) -> tuple[Array | None, ...]:
        """Walk back from `out`, whose gradient is `dout`; parameter gradients go into `grads`.

        Returns the gradients of the arrays in `wrt` (None where `out` does not depend on one). The
        tape is empty afterwards.
        """
        gradients: dict[int, Array] = {id(out): dout}
        wanted = {id(array) for array in wrt}
        found = dict(gradients)
        while self._records:
            record = self._records.pop()
            gradient = gradients.pop(id(record.out), None)
            if gradient is None:
                continue
            op, places = record.resolved.op, record.resolved.activations
            assert op is not None and op.backward is not None
            results = op.backward(self.ctx, gradient, record.saved, grads)
            if self._flat is not None:
                self._check_gradients(record, results)
            for place, result in zip(places, results, strict=True):
                if result is None:
                    continue
                key = id(record.operands[place])
                held = gradients.get(key)
                # out of place: `held` may be another op's result that is used elsewhere
                gradients[key] = result if held is None else self._sum(held, result)
            if wanted:
                found.update((key, gradients[key]) for key in wanted & gradients.keys())
        return tuple(found.get(id(array)) for array in wrt)

    def _sum(self, a: Array, b: Array) -> Array:
        out = self.ctx.workspace.take(a.shape, a.dtype)
        np.add(a, b, out=out)
        return out

    def _refuse_raw_parameters(self, spec: OpSpec, operands: tuple[Any, ...]) -> None:
        for name, operand in zip(spec.operands, operands, strict=True):
            if isinstance(operand, np.ndarray) and np.may_share_memory(operand, self._flat):
                raise TypeError(f"{spec.name}: pass the parameter itself as {name}, not its array")

    def _check_result(self, resolved: Resolved, result: Any) -> None:
        if not isinstance(result, tuple) or len(result) != 2:
            found = type(result).__name__
            raise TypeError(
                f"{_forward(resolved)} returned {found}, where (out, saved) is expected"
            )
        self._check_array(result[0], _forward(resolved))

    def _check_gradients(self, record: _Record, results: Any) -> None:
        where = f"backward of {_forward(record.resolved)}"
        places = record.resolved.activations
        if not isinstance(results, tuple) or len(results) != len(places):
            raise TypeError(f"{where}: a tuple of {len(places)} gradients is expected")
        for place, result in zip(places, results, strict=True):
            if result is not None:
                self._check_array(result, where)
                if result.shape != record.operands[place].shape:
                    raise TypeError(
                        f"{where}: the gradient of operand {place} has shape {result.shape}; "
                        f"{record.operands[place].shape} is expected"
                    )

    def _check_array(self, array: Any, where: str) -> None:
        if not isinstance(array, np.ndarray):
            found = type(array).__name__
        elif array.dtype != self.table.dtype:
            found = f"an array of {array.dtype}"
        elif not array.flags.c_contiguous:
            found = "an array that is not C-contiguous"
        else:
            return
        raise TypeError(
            f"{where} returned {found}; a C-contiguous array of {self.table.dtype} is expected"
        )


def _forward(resolved: Resolved) -> str:
    return f"{resolved.site.op} of {resolved.origin}"
