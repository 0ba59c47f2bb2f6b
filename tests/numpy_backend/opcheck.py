"""What the tests of ops share: a hostile workspace, a gradient store, cases, finite differences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from splitbit_kit.api import Context, LowRank, PackedTensor, Param
from splitbit_kit.engine.workspace import BufferPool
from splitbit_numpy_backend import table

Array = np.ndarray[Any, np.dtype[Any]]


class Poison:
    """A workspace that reuses memory, and fills it with rubbish before it hands it out."""

    def __init__(self) -> None:
        self._pool = BufferPool()

    def take(self, shape: Any, dtype: Any) -> Array:
        array = self._pool.take(shape, dtype)
        array.fill(np.nan if array.dtype.kind == "f" else 1)
        return array


class Grads:
    """Gradients in a dictionary; those in `start` are there already and are added to."""

    def __init__(self, start: dict[str, Array] | None = None) -> None:
        self.views = dict(start or {})

    def into(self, param: Param) -> tuple[Array, bool] | None:
        if not param.trainable:
            return None
        accumulate = param.name in self.views
        if not accumulate:
            self.views[param.name] = np.full(param.shape, np.nan, param.array.dtype)
        return self.views[param.name], accumulate

    def add(self, param: Param, gradient: Array) -> None:
        place = self.into(param)
        if place is not None:
            place[0][...] = place[0] + gradient if place[1] else gradient


def pack(w: Array) -> PackedTensor:
    """Return w in a format of its own: a byte an entry, a scale a row."""
    scale = np.abs(w).max(axis=1, keepdims=True).astype(np.float32) / 127
    codes = np.round(w / scale).astype(np.int8)
    return PackedTensor("test8", w.shape, {"codes": codes, "scale": scale})


def unpack(packed: PackedTensor, start: int, stop: int) -> Array:
    """Return rows [start, stop) as float32."""
    return packed.arrays["codes"][start:stop] * packed.arrays["scale"][start:stop]


def context(dtype: Any = np.float64, **options: Any) -> Context:
    """Return a context with rubbish for memory, which can decode `pack`'s format."""
    return Context(Poison(), np.dtype(dtype), unpack=unpack, **options)


@dataclass
class Case:
    """One call of an op."""

    name: str
    op: str
    operands: tuple[Any, ...]
    static: dict[str, Any] = field(default_factory=dict)

    def forward(self, ctx: Context) -> tuple[Array, Any]:
        out, saved = table.OPS[self.op].op.forward(ctx, *self.operands, **self.static)
        return out, saved

    def backward(
        self, ctx: Context, dout: Array, grads: Grads | None = None
    ) -> tuple[tuple[Array, ...], Grads]:
        grads = grads or Grads()
        backward = table.OPS[self.op].op.backward
        assert backward is not None
        return backward(ctx, dout, self.forward(ctx)[1], grads), grads

    def activations(self) -> list[Array]:
        """The operands that a gradient is returned for."""
        return [o for o in self.operands if isinstance(o, np.ndarray) and o.dtype.kind == "f"]

    def params(self) -> Iterator[Param]:
        """The parameters that have an array for value, also those within a low-rank one."""
        for operand in self.operands:
            if isinstance(operand, Param):
                yield from _with_arrays(operand)

    def arrays(self) -> list[Array]:
        """Every array that the call reads."""
        given = [o for o in self.operands if isinstance(o, np.ndarray)]
        return given + [param.array for param in self.params()]


def _with_arrays(param: Param) -> Iterator[Param]:
    if isinstance(param.value, LowRank):
        for part in (param.value.base, param.value.a, param.value.b):
            yield from _with_arrays(part)
    elif isinstance(param.value, np.ndarray):
        yield param


def cases(dtype: Any = np.float64) -> list[Case]:
    """Return calls of every op, over the shapes and kinds of operand where mistakes hide."""
    rng = np.random.default_rng(0)

    def array(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(dtype)

    def param(name: str, *shape: int) -> Param:
        return Param(name, array(*shape))

    def ints(*values: int) -> Array:
        return np.array(values, np.int32)

    def low_rank(base: Param) -> Param:
        outputs, inputs = base.shape
        return Param("w", LowRank(base, param("a", 2, inputs), param("b", outputs, 2), 1.5))

    packed = Param("w", pack(array(7, 5)), trainable=False)
    frozen = Param("w", array(7, 5), trainable=False)
    found = [
        Case("embedding", "embedding", (ints(3, 0, 3, 6, 3), param("w", 7, 5))),
        Case("embedding-packed", "embedding", (ints(3, 0, 3, 6), packed)),
        Case("layer_norm", "layer_norm", (array(5, 7), param("w", 7), param("b", 7))),
        Case("layer_norm-no-bias", "layer_norm", (array(1, 8), param("w", 8), None)),
        Case("layer_norm-eps", "layer_norm", (array(3, 2), param("w", 2), None), {"eps": 0.5}),
        Case("rms_norm", "rms_norm", (array(5, 7), param("w", 7))),
        Case("rms_norm-eps", "rms_norm", (array(1, 3), param("w", 3)), {"eps": 0.5}),
        Case("linear", "linear", (array(3, 5), param("w", 7, 5), param("bias", 7))),
        Case("linear-no-bias", "linear", (array(1, 5), param("w", 1, 5), None)),
        Case("linear-packed", "linear", (array(3, 5), packed, param("bias", 7))),
        Case("linear-low-rank", "linear", (array(3, 5), low_rank(frozen), None)),
        Case("linear-low-rank-packed", "linear", (array(3, 5), low_rank(packed), param("c", 7))),
        Case("linear-low-rank-base", "linear", (array(3, 5), low_rank(param("w0", 7, 5)), None)),
        Case("gelu", "gelu", (3 * array(5, 7),)),
        Case("swiglu", "swiglu", (3 * array(5, 7), array(5, 7))),
        Case("add", "add", (array(5, 7), array(5, 7))),
        Case("dropout", "dropout", (array(5, 7),), {"rate": 0.4, "site": 3}),
        Case("cross_entropy", "cross_entropy", (3 * array(4, 7), ints(0, 6, 2, 2))),
        Case("cross_entropy-one-token", "cross_entropy", (array(1, 2), ints(1))),
        Case("rotary", "rotary", (array(4, 12), ints(0, 1, 9, 1)), {"heads": 2}),
        Case("rotary-base", "rotary", (array(1, 2), ints(5)), {"heads": 1, "base": 100.0}),
    ]
    for name, heads, kv_heads, starts in [
        ("", 2, 2, (0, 5, 10)),
        ("one-token", 3, 3, (0, 1)),
        ("one-head", 1, 1, (0, 4)),
        ("grouped", 4, 2, (0, 3, 6, 9)),
        ("one-key-head", 3, 1, (0, 6)),
        ("ragged", 2, 2, (0, 4, 5, 11)),
        ("ragged-grouped", 4, 2, (0, 7, 9, 11)),
        ("empty-sequence", 2, 1, (0, 3, 3, 5)),
    ]:
        rows, size = starts[-1], 3
        q, k, v = (array(rows, h * size) for h in (heads, kv_heads, kv_heads))
        static = {"heads": heads, "kv_heads": kv_heads}
        label = f"attention-{name}".rstrip("-")
        found.append(Case(label, "attention", (q, k, v, ints(*starts), None), static))
    return found


def numerical_gradient(case: Case, wrt: Array, dout: Array) -> Array:
    """Return d sum(out * dout) / d wrt by central differences. Changes `wrt` and restores it."""
    gradient, step = np.empty_like(wrt), 1e-5
    ctx = context(grad=False)
    for i in np.ndindex(wrt.shape):
        kept, sides = wrt[i], []
        for moved in (kept + step, kept - step):
            wrt[i] = moved
            sides.append(float(np.sum(case.forward(ctx)[0] * dout)))
        wrt[i] = kept
        gradient[i] = (sides[0] - sides[1]) / (2 * step)
    return gradient


def relative_error(found: Array, expected: Array) -> float:
    """Return |found - expected| / |expected|; a gradient below 1e-3 counts as 1e-3."""
    scale = max(float(np.linalg.norm(expected)), 1e-3)
    return float(np.linalg.norm(found - expected)) / scale
