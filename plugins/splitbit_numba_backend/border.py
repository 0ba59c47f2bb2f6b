"""The border: every operand is checked here, before a kernel is given its address.

A kernel believes what it is told. Kind, shape and order of every array and parameter, ids,
positions, starts and static arguments are therefore checked in Python, for each call, whoever
makes it: what is wrong is an error and never a crash. Integers, of which kernels make addresses,
are copied first, so that nobody can change them between the check and their use, or before the
backward pass.

One op of a built backend runs at a time: scratch memory and converted weights are shared, and a
second Python thread waits until they are not in use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from itertools import compress
from typing import Any, NamedTuple

import numpy as np

from splitbit_kit.api import OPS, Context, Gradients, Op, Param, Site, SplitbitError
from splitbit_kit.api.backend import Array
from splitbit_kit.api.ops import ACTIVATIONS
from splitbit_numba_backend.runtime import FLOAT, INT, Runtime, whole
from splitbit_numba_backend.simd import debug

# What each operand may be, in the order of the contract. F: a float32 array, I: int32, P: a float32
# parameter, C: a cache; P? and C?: or nothing. Then its shape: letters that recur stand for the
# same size. N may be 0; S is one more than the sequences.
OPERANDS = {
    "embedding": "I:N P:VC",
    "layer_norm": "F:NC P:C P?:C",
    "rms_norm": "F:NC P:C",
    "linear": "F:NI P:OI P?:O",
    "rotary": "F:NQ I:N",
    "attention": "F:NQ F:NK F:NK I:S C?",
    "gelu": "F:NC",
    "swiglu": "F:NC F:NC",
    "add": "F:NC F:NC",
    "dropout": "F:NC",
    "cross_entropy": "F:NV I:N",
    "attention_block": "F:NC I:N I:S P:C P?:C P:QC P:KC P:KC P:CQ P?:Q P?:K P?:K P?:C C?",
    "mlp_block": "F:NC P:C P?:C P?:HC P:HC P:CH P?:H P?:C",
    "head_loss": "F:NC P:C P?:C P:VC I:N F:N",
}
KINDS = {
    "F": ("array:float32",),
    "I": ("array:int32",),
    "P": ("param:float32",),
    "P?": ("param:float32", "none"),
    "C?": ("cache", "none"),
}
NORMS = ("layer", "rms")
MOST_POSITIONS = 1 << 20  # of rotary: the table of angles takes 4 D bytes for each
MOST_KNOWN = 4096  # calls whose parameters are remembered


class Operand(NamedTuple):
    """One operand of an op: its name, what it may be, and its shape in letters."""

    name: str
    kind: str
    shape: str


def operands_of(op: str) -> tuple[Operand, ...]:
    """Return what an op is given."""
    parts = [part.partition(":") for part in OPERANDS[op].split()]
    names = OPS[op].operands
    return tuple(
        Operand(name, kind, shape) for name, (kind, _, shape) in zip(names, parts, strict=True)
    )


def accepts(name: str, forward: Callable[..., Any]) -> Callable[[Site], str | None]:
    """Return the `accepts` of an op: operands as above, static arguments that `forward` has."""
    operands = operands_of(name)
    parameters = signature(forward).parameters.values()
    known = {p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY}

    def decide(site: Site) -> str | None:
        if len(site.operands) > len(operands):
            return f"{len(site.operands)} operands, where {len(operands)} are known"
        kinds = {}
        for operand, kind in zip(operands, site.operands, strict=False):
            if kind not in KINDS[operand.kind]:
                return f"{operand.name}: {kind} is not served"
            kinds[operand.name] = kind
        static = dict(site.static)
        if unknown := [argument for argument in static if argument not in known]:
            return f"static argument {unknown[0]} is not known"
        if "cache" in site.operands:
            if site.train:
                return "a cache goes with inference only"
            if static.get("dropout"):
                return "dropout does not go with a cache"
        return _unknown_value(static, {name for name, kind in kinds.items() if kind != "none"})

    return decide


def _unknown_value(static: Mapping[str, Any], given: set[str]) -> str | None:
    """Return what is wrong with static arguments and the parameters that go with them, or None."""
    norm = static.get("norm", "layer")
    if norm not in NORMS or (norm == "rms" and "norm_bias" in given):
        return f"norm: layer, or rms without a bias, is expected, not {norm!r}"
    activation = static.get("activation", "gelu")
    if activation not in ACTIVATIONS or (activation == "swiglu") != ("gate" in given):
        return f"activation: gelu, or swiglu with a gate, is expected, not {activation!r}"
    return None


def guarded(name: str, op: Any, runtime: Runtime) -> Op:
    """Return an op that checks what it is given. op: has `forward` and `backward`."""
    border = Border(name)

    def forward(ctx: Context, *given: Any, **static: Any) -> tuple[Array, Any]:
        checked, weights = border.checked(given, static)
        with runtime.turn:
            debug.begin([])
            out, saved = op.forward(ctx, *checked, **static)
            known = list(debug.arrays)
        if not ctx.grad:
            return out, None
        versions = [param.version for param, _ in weights]
        return out, (out.shape, weights, versions, known, saved)

    def backward(
        ctx: Context, dout: Array, saved: Any, grads: Gradients
    ) -> tuple[Array | None, ...]:
        if saved is None:
            raise ValueError(f"{name}: its forward pass kept nothing for a backward pass")
        shape, weights, versions, known, saved = saved
        if not whole(dout, FLOAT) or dout.shape != shape:
            raise ValueError(_wrong(name, "the gradient of the result", dout, FLOAT, shape))
        for (param, value), version in zip(weights, versions, strict=True):
            # the forward pass kept the address of the value, or of a copy that may be gone
            if param.value is not value or param.version != version:
                raise ValueError(f"{name}: {param.name} has changed since the forward pass")
        with runtime.turn:
            debug.begin(known)
            gradients: tuple[Array | None, ...] = op.backward(ctx, dout, saved, grads)
        return gradients

    return Op(forward, backward)


def serialised(runtime: Runtime, loop: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loop over flat buffers that waits for its turn as ops do."""

    def run(*args: Any, **options: Any) -> Any:
        with runtime.turn:
            debug.begin([])
            return loop(*args, **options)

    return run


class Border:
    """The checks of one op. Parameters come again in each step, and are looked at once."""

    def __init__(self, op: str) -> None:
        self.op = op
        self.operands = operands_of(op)
        self._is_param = [operand.kind[0] == "P" for operand in self.operands]
        self._needed = sum(operand.kind[-1] != "?" for operand in self.operands)
        self._fixed, self._values = FIXED.get(op, ()), CHECKS.get(op, ())
        self._known: dict[tuple[Any, ...], tuple[dict[str, int], list[tuple[Param, Array]]]] = {}

    def checked(
        self, given: Sequence[Any], static: Mapping[str, Any]
    ) -> tuple[list[Any], list[tuple[Param, Array]]]:
        """Return the operands, integers copied, and each parameter with its value.

        Raises ValueError, or SplitbitError for an id, about the first thing that is wrong.
        """
        if not self._needed <= len(given) <= len(self.operands):
            raise ValueError(
                f"{self.op}: {len(given)} operands; {', '.join(o.name for o in self.operands)} "
                "are expected"
            )
        key = (*compress(given, self._is_param), *static.values())
        known = self._known.get(key)
        if known is None or not all(param.value is value for param, value in known[1]):
            if len(self._known) > MOST_KNOWN:  # parameters that do not come back
                self._known.clear()
            known = self._known[key] = self._parameters(given, static)
        sizes, checked = known[0].copy(), list(given)
        for place, operand in enumerate(self.operands[: len(given)]):
            kind, value = operand.kind, given[place]
            if kind == "F":
                self._fit(operand, operand.name, value, FLOAT, sizes)
            elif kind == "I":
                self._fit(operand, operand.name, value, INT, sizes)
                checked[place] = value.copy()
        call = Call(self.op, checked, static, sizes)
        for check in self._values:
            check(call)
        return checked, known[1]

    def _parameters(
        self, given: Sequence[Any], static: Mapping[str, Any]
    ) -> tuple[dict[str, int], list[tuple[Param, Array]]]:
        """Return the sizes that parameters have, and each with its value; check what is fixed."""
        sizes: dict[str, int] = {}
        pairs: list[tuple[Param, Array]] = []
        present: set[str] = set()
        for operand, value in zip(self.operands, given, strict=False):
            if operand.kind[0] != "P" or (value is None and operand.kind == "P?"):
                continue
            if not isinstance(value, Param):
                raise ValueError(
                    f"{self.op}: {operand.name} is {type(value).__name__}; a Param is expected"
                )
            self._fit(operand, f"{operand.name} ({value.name})", value.array, FLOAT, sizes)
            pairs.append((value, value.array))
            present.add(operand.name)
        if "norm" in static and (wrong := _unknown_value(static, present)):
            raise ValueError(f"{self.op}: {wrong}")
        for check in self._fixed:
            check(Call(self.op, given, static, sizes))
        return sizes, pairs

    def _fit(
        self, operand: Operand, what: str, array: Any, dtype: np.dtype[Any], sizes: dict[str, int]
    ) -> None:
        """Raise ValueError unless an array is plain and its shape agrees with the sizes so far."""
        letters = operand.shape
        if not whole(array, dtype) or array.ndim != len(letters):
            expected = [str(sizes.get(letter, letter)) for letter in letters]
            raise ValueError(_wrong(self.op, what, array, dtype, expected))
        for letter, size in zip(letters, array.shape, strict=True):
            if sizes.setdefault(letter, size) != size or not (size or letter == "N"):
                expected = [str(sizes[one]) if one in sizes else one for one in letters]
                raise ValueError(_wrong(self.op, what, array, dtype, expected))


def _wrong(op: str, what: str, found: Any, dtype: np.dtype[Any], shape: Sequence[Any]) -> str:
    expected = f"C-contiguous {dtype} of shape ({', '.join(map(str, shape))})"
    if not isinstance(found, np.ndarray):
        return f"{op}: {what} is {type(found).__name__}; {expected} is expected"
    order = "" if whole(found, found.dtype) else ", not C-contiguous or not aligned"
    return f"{op}: {what} is {found.dtype} of shape {found.shape}{order}; {expected} is expected"


# ---- values: ids, positions, starts, and static arguments


class Call(NamedTuple):
    """What a check looks at: a call whose kinds and shapes are right."""

    op: str
    operands: Sequence[Any]
    static: Mapping[str, Any]
    sizes: Mapping[str, int]


def ids_at(place: int) -> Callable[[Call], None]:
    """Return a check that the ids at this place lie in 0 .. V - 1."""

    def check(call: Call) -> None:
        ids, vocabulary = call.operands[place], call.sizes["V"]
        if ids.size and ids.view(np.uint32).max() >= vocabulary:  # a negative one is large there
            wrong = ids[(ids < 0) | (ids >= vocabulary)][0]
            raise SplitbitError(f"{call.op}: id {wrong} is outside the vocabulary of {vocabulary}")

    return check


def starts_at(place: int) -> Callable[[Call], None]:
    """Return a check that the starts at this place rise from 0 to the number of rows."""

    def check(call: Call) -> None:
        starts, rows = call.operands[place], call.sizes["N"]
        # compared, not subtracted: a difference of int32 may wrap
        if starts[0] != 0 or starts[-1] != rows or (starts[1:] < starts[:-1]).any():
            raise ValueError(f"{call.op}: starts must rise from 0 to {rows}, the number of tokens")

    return check


def positions_at(place: int) -> Callable[[Call], None]:
    """Return a check that positions which turn heads lie in the range that has angles."""

    def check(call: Call) -> None:
        positions = call.operands[place]
        if call.static.get("rotary_base", 1.0) is None or not positions.size:
            return
        if positions.view(np.uint32).max() >= MOST_POSITIONS:  # a negative one is large there
            wrong = positions[(positions < 0) | (positions >= MOST_POSITIONS)][0]
            raise ValueError(f"{call.op}: position {wrong} is not in 0 .. {MOST_POSITIONS - 1}")

    return check


def heads(call: Call) -> None:
    """Check that heads divide the columns of q, and key heads those of k and the heads."""
    static, columns = call.static, call.sizes["Q"]
    number = static["heads"]
    size = columns // number if number > 0 else 0
    if size * number != columns:
        raise ValueError(f"{call.op}: {number} heads do not divide {columns} columns")
    turned = static.get("rotary_base", static.get("base"))
    if turned is not None and size % 2:
        raise ValueError(f"{call.op}: heads of {size} are not of even size, so they do not turn")
    if "kv_heads" in static:
        shared, columns = static["kv_heads"], call.sizes["K"]
        if shared < 1 or number % shared or shared * size != columns:
            raise ValueError(
                f"{call.op}: {shared} key heads; {columns} columns of k are for {columns // size} "
                f"of size {size}, and they must divide {number} heads"
            )


def rate(call: Call) -> None:
    """Check that a rate of dropout lies in [0, 1)."""
    dropped = call.static.get("rate", call.static.get("dropout", 0.0))
    if not 0 <= dropped < 1:
        raise ValueError(f"{call.op}: a rate of dropout lies in [0, 1), not {dropped}")


FIXED: Mapping[str, tuple[Callable[[Call], None], ...]] = {
    "attention_block": (heads, rate),
    "mlp_block": (rate,),
}
"""of parameters and static arguments: made once for each"""

CHECKS: Mapping[str, tuple[Callable[[Call], None], ...]] = {
    "embedding": (ids_at(0),),
    "rotary": (heads, positions_at(1)),
    "attention": (heads, starts_at(3)),
    "dropout": (rate,),
    "cross_entropy": (ids_at(1),),
    "attention_block": (positions_at(1), starts_at(2)),
    "head_loss": (ids_at(4),),
}
"""of arrays: made in every call"""
