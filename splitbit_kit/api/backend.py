"""What a backend offers, and what its ops are given: handles, sites, contexts, caches.

A backend is a table of ops (see `splitbit_kit.api.ops` for what each means). Which backend serves
a call is settled once for each distinct `Site`, when a model is built; nothing is looked up in a
kernel loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, NamedTuple, Protocol

import numpy as np

from splitbit_kit.api.hardware import Hardware
from splitbit_kit.api.quantization import PackedTensor

Array = np.ndarray[Any, np.dtype[Any]]

PRECISIONS = ("auto", "bf16", "fp32", "fp64")
"""auto: the backend's choice, which it reports. bf16: float32 with bfloat16 multiplies."""


@dataclass(eq=False, slots=True)
class Param:
    """A handle to one weight, passed to ops whole.

    value is a view into the flat parameter buffer, a read-only array or `PackedTensor` (frozen
    weights), or a `LowRank`. `version` rises at each update, whoever made it, so that a backend may
    keep a converted copy and know when it is stale; a `LowRank`'s parts have versions of their own.
    Once a model is planned, its calls are known by their handles: a value of another kind needs a
    new handle.
    """

    name: str
    value: Array | PackedTensor | LowRank
    trainable: bool = True
    """False: it has no gradient"""
    decay: bool = False
    """whether weight decay applies, to matrices only"""
    hidden: bool = False
    """whether it is a matrix (O, I) that maps one hidden activation to another: no embedding, no
    head. Some optimizers treat these alone as matrices."""
    version: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape, whatever the storage."""
        return self.value.shape

    @property
    def array(self) -> Array:
        """The value as an array. Raises TypeError if it is packed or low-rank."""
        if not isinstance(self.value, np.ndarray):
            raise TypeError(f"{self.name}: an array is needed, not {type(self.value).__name__}")
        return self.value


@dataclass(frozen=True, eq=False, slots=True)
class LowRank:
    """base + scale * b a, with base (O, I), a (R, I), b (O, R): LoRA, Hu et al. 2021.

    base is an array or a `PackedTensor` handle of its own and is usually frozen; a and b are
    handles like any other, with gradients of their own.
    """

    base: Param
    a: Param
    b: Param
    scale: float

    @property
    def shape(self) -> tuple[int, ...]:
        """(O, I), the shape of the base."""
        return self.base.shape


class Gradients(Protocol):
    """Where an op's backward pass puts the gradients of parameters, by parameter name."""

    def into(self, param: Param) -> tuple[Array, bool] | None:
        """Return (view, accumulate), or None where the parameter is frozen.

        The view has the parameter's shape. If accumulate is True the op adds to it; otherwise this
        is the step's first contribution: the view holds rubbish and the op overwrites all of it.
        Saying so once each step saves a pass over the whole buffer to clear it.
        """
        ...

    def add(self, param: Param, gradient: Array) -> None:
        """Add a gradient that is already computed; nothing happens where the param is frozen."""
        ...


class Workspace(Protocol):
    """Where an op gets memory: reused from step to step, so that pages are touched only once."""

    def take(self, shape: Sequence[int], dtype: Any) -> Array:
        """Return an uninitialised, C-contiguous, 64-byte aligned array, always a new object.

        The memory returns to the workspace by itself when the last view of the array is gone.
        """
        ...


class KVCache(Protocol):
    """Keys and values of the tokens already seen, made by the backend that owns attention.

    The layout is private. One cache serves one layer and S sequences.
    """

    @property
    def lengths(self) -> Array:
        """(S,) int32: how many tokens each sequence holds."""
        ...

    def append(self, k: Array, v: Array, starts: Array) -> None:
        """Add rows k, v (N, K * D) of the sequences that starts (S + 1,) divides.

        Raises ValueError when a sequence would exceed the capacity.
        """
        ...

    def truncate(self, length: int) -> None:
        """Forget every token from `length` on, in every sequence."""
        ...


@dataclass(slots=True)
class Context:
    """What an op is given besides its operands."""

    workspace: Workspace
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float32))
    """of arrays between ops"""
    threads: int = 1
    """how many an op may use"""
    grad: bool = True
    """False: keep nothing for a backward pass"""
    seed: int = 0
    """of the dropouts, 0 to 2^64 - 1; step and micro_batch are the rest of their counter"""
    step: int = 0
    """the optimizer step, from 0 on"""
    micro_batch: int = 0
    """its place in the step, from 0 on"""
    unpack: Callable[[PackedTensor, int, int], Array] | None = None
    """Rows [start, stop) of a packed tensor as float32, for weights whose format has no kernel."""


class Op(NamedTuple):
    """Forward and backward of one op, resolved together.

    forward(ctx, *operands, **static) -> (out, saved): `out` is a new array, never an operand;
    `saved` is private to the backend and comes back once.

    backward(ctx, dout, saved, grads) -> a tuple with the gradient of each floating-point array
    operand, in order (None where there is none). Gradients of parameters go into `grads`. Neither
    `dout` nor an operand may be changed, but a gradient returned may be `dout` itself. An
    inference-only op has no backward.
    """

    forward: Callable[..., tuple[Array, Any]]
    backward: Callable[..., tuple[Array | None, ...]] | None


@dataclass(frozen=True)
class Site:
    """A place where a model calls an op, as plain data: what an offer's `accepts` decides on.

    operands, in the order of `splitbit_kit.api.ops`, each one of: "array:DTYPE", "param:DTYPE",
    "packed:FORMAT", "lowrank:KIND OF THE BASE" (as in "lowrank:packed:FORMAT"), "cache", "none".
    """

    op: str
    static: tuple[tuple[str, Any], ...]
    operands: tuple[str, ...]
    train: bool
    shapes: tuple[tuple[int, ...], ...] = ()
    """of each operand that is a parameter; () of the others"""

    def __str__(self) -> str:
        static = ", ".join(f"{k}={v!r}" for k, v in self.static)
        return f"{self.op}({', '.join(self.operands)}{'; ' if static else ''}{static})"


PLAIN_KINDS = ("array", "param", "none")


def accepts_plain(site: Site, forward: Callable[..., Any], packed: str = "") -> str | None:
    """Accept arrays and parameters, and the static arguments that `forward` has by name.

    Low-rank weights, weights packed in another format than `packed`, caches, and static arguments
    that it does not know are declined.
    """
    for kind in site.operands:
        if kind.partition(":")[0] not in PLAIN_KINDS and kind != f"packed:{packed}":
            return f"{kind} is not served"
    parameters = signature(forward).parameters
    for name, _ in site.static:
        if name not in parameters:
            return f"static argument {name} is not known"
    return None


class CacheMaker(Protocol):
    """Makes the key/value cache of one layer."""

    def __call__(
        self, *, sequences: int, capacity: int, kv_heads: int, head_size: int, dtype: Any
    ) -> KVCache:
        """Return an empty cache for `sequences` sequences of at most `capacity` tokens."""
        ...


@dataclass(frozen=True)
class OpOffer:
    """An op, and the sites it serves.

    accepts(site) answers None, or the reason for declining. A static argument or an operand kind
    that the owner does not know must be declined, never ignored; without an `accepts` of its own an
    op serves what `accepts_plain` does. Ops that take a cache bring the maker of it.
    """

    op: Op
    accepts: Callable[[Site], str | None] | None = None
    make_cache: CacheMaker | None = None

    def declines(self, site: Site, name: str) -> str | None:
        """Return why the site is not served by the op offered as `name`, or None if it is."""
        if self.accepts is None:
            return accepts_plain(site, self.op.forward, name.removeprefix("packed_linear:"))
        return self.accepts(site)


class Peak(NamedTuple):
    """The fastest multiply that a backend is capable of: all operands in the first cache."""

    run: Callable[[], None]
    """multiplies for some milliseconds, on all threads, in the backend's precision"""
    operations: float
    """floating-point operations of a run; an addition and a multiplication are two"""


@dataclass(frozen=True)
class Backend:
    """A built backend.

    ops: by name, among them `packed_linear:FORMAT` for weights packed in FORMAT, whosever format
    it is (the operands are those of `linear`). flat: loops over flat buffers, see
    `splitbit_kit.api.learning.FlatOps`. precision: what was chosen, never "auto". own_threads:
    whether it keeps threads that wait for work; backends behind it in the chain then get one.
    hear: is given whom to tell, in lines, what keeps the user waiting in a first run, such as
    compiling.
    """

    ops: Mapping[str, OpOffer]
    flat: Mapping[str, Callable[..., Any]]
    precision: str
    notes: str = ""
    own_threads: bool = False
    peak: Callable[[], Peak] | None = None
    hear: Callable[[Callable[[str], None]], None] | None = None


@dataclass(frozen=True)
class BackendOffer:
    """A backend by name. `build` may import what is heavy, and raises if it cannot serve.

    needs: names of distributions without which the backend is listed as unavailable; they are
    looked up, not imported.
    """

    name: str
    summary: str
    """one line for `list-plugins`"""
    build: Callable[[Hardware, str, int], Backend]
    """build(hardware, precision, threads) -> Backend; raises ValueError for a precision it lacks"""
    needs: tuple[str, ...] = ()
