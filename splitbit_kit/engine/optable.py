"""Which backend serves which call: settled once for each distinct site, with the origin kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from splitbit_kit.api import (
    Backend,
    CacheMaker,
    LowRank,
    Op,
    OpOffer,
    Ops,
    OpSpec,
    PackedTensor,
    Param,
    Site,
    SplitbitError,
)


@dataclass(frozen=True)
class Stub:
    """Stands for an array while a model is planned: only its dtype is known."""

    dtype: np.dtype[Any]


@dataclass(frozen=True)
class CacheStub:
    """Stands for a key/value cache while a model is planned."""


@dataclass(frozen=True)
class Resolved:
    """What a site became: an op and the backend it comes from, or (op None) its smaller ops."""

    site: Site
    op: Op | None
    origin: str
    make_cache: CacheMaker | None = None
    declined: tuple[str, ...] = ()  # why offers before this one do not serve the site

    @cached_property
    def activations(self) -> tuple[int, ...]:
        """The places of the operands that have gradients: floating-point arrays."""
        kinds = enumerate(self.site.operands)
        return tuple(place for place, kind in kinds if kind.startswith("array:float"))


def operand_kind(operand: Any) -> str:
    """Return an operand's kind, as `Site.operands` names them."""
    if operand is None:
        return "none"
    if isinstance(operand, np.ndarray | Stub):
        return _ARRAY_KINDS.get(operand.dtype) or f"array:{operand.dtype.name}"
    if isinstance(operand, Param):
        value = operand.value
        if isinstance(value, PackedTensor):
            return f"packed:{value.format}"
        if isinstance(value, LowRank):
            return f"lowrank:{operand_kind(value.base)}"
        return _PARAM_KINDS.get(value.dtype) or f"param:{value.dtype.name}"
    if isinstance(operand, CacheStub) or hasattr(operand, "truncate"):
        return "cache"
    raise TypeError(f"{operand!r} cannot be an operand: pass an array, a parameter or a cache")


_ARRAYS = (np.ndarray, Stub)
_DTYPES = [np.dtype(t) for t in (np.float32, np.float64, np.int32, np.int64)]
_ARRAY_KINDS = {dtype: f"array:{dtype.name}" for dtype in _DTYPES}  # formatting takes longer
_PARAM_KINDS = {dtype: f"param:{dtype.name}" for dtype in _DTYPES}


def _call_part(operand: Any) -> Any:
    """Return what stands for an array or a cache in a call: caches come and go."""
    return operand.dtype if isinstance(operand, _ARRAYS) else operand_kind(operand)


class OpTable:
    """The resolution of every site a model has, over a chain of backends.

    chain: (name, backend) in order of preference; NumPy closes it. fuse=False resolves fused ops
    into their parts always (calibration observes `linear`).
    """

    def __init__(
        self, chain: Sequence[tuple[str, Backend]], *, train: bool, fuse: bool = True
    ) -> None:
        self.chain = tuple(chain)
        self.train = train
        self.fuse = fuse
        self._resolved: dict[Any, Resolved] = {}  # by site, in words
        self._calls: dict[Any, Resolved] = {}  # by what a call is made of

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of arrays between ops, which the first backend's precision decides."""
        return np.dtype(np.float64 if self.chain[0][1].precision == "fp64" else np.float32)

    @property
    def flat(self) -> Mapping[str, Callable[..., Any]]:
        """The flat-buffer loops, each from the first backend that offers it."""
        merged: dict[str, Callable[..., Any]] = {}
        for _, backend in reversed(self.chain):
            merged.update(backend.flat)
        return merged

    @property
    def resolved(self) -> Sequence[Resolved]:
        """All sites met so far, in the order they were met."""
        return tuple(self._resolved.values())

    def resolve(
        self, spec: OpSpec, operands: tuple[Any, ...], static: Mapping[str, Any]
    ) -> Resolved:
        """Return what serves a call. Only the first call of a site does any work.

        A model makes the same calls with the same parameters in every step, so they are known again
        by those, before any words are made for the site. Caches come and go, and need no hash.
        """
        call = (
            spec.name,
            *[
                # most are parameters or left out, and exact types are the cheapest to tell
                o if o is None or o.__class__ is Param else _call_part(o)
                for o in operands
            ],
            *static.values(),
        )
        known = self._calls.get(call)
        if known is None:
            known = self._calls[call] = self._resolve_site(spec, operands, static)
        return known

    def _resolve_site(
        self, spec: OpSpec, operands: tuple[Any, ...], static: Mapping[str, Any]
    ) -> Resolved:
        site = self._site(spec, operands, static)
        found = self._resolved.get(site)
        if found is None:
            found = self._resolved[site] = self._decide(spec, site, operands, static)
        return found

    def _site(self, spec: OpSpec, operands: tuple[Any, ...], static: Mapping[str, Any]) -> Site:
        kinds = tuple(map(operand_kind, operands))
        shapes = tuple(o.shape if isinstance(o, Param) else () for o in operands)
        return Site(spec.name, tuple(static.items()), kinds, self.train, shapes)

    def _decide(
        self, spec: OpSpec, site: Site, operands: tuple[Any, ...], static: Mapping[str, Any]
    ) -> Resolved:
        if spec.fused and not self.fuse:
            return Resolved(site, None, "parts")
        reasons: list[str] = []
        for place, name, offer, reason in self._offers(site, len(self.chain)):
            if reason is None and spec.fused and self._ahead(place, spec, operands, static):
                reason = "a backend ahead of it offers one of its parts"
            if reason is None:
                return Resolved(site, offer.op, name, offer.make_cache, tuple(reasons))
            reasons.append(f"{name} declines: {reason}")
        if spec.fused:
            return Resolved(site, None, "parts", declined=tuple(reasons))
        raise SplitbitError(
            f"no backend serves {site} ({'; '.join(reasons) or 'none offers it'}); "
            f"the chain is {', '.join(name for name, _ in self.chain)}"
        )

    def _ahead(
        self, place: int, spec: OpSpec, operands: tuple[Any, ...], static: Mapping[str, Any]
    ) -> bool:
        """Whether a backend before `place` would serve one of a fused op's parts."""
        parts = _Parts(self.dtype)
        assert spec.recipe is not None
        spec.recipe(parts, *operands, **static)
        for part, part_operands, part_static in parts.calls:
            site = self._site(part, part_operands, part_static)
            if any(reason is None for *_, reason in self._offers(site, place)):
                return True
        return False

    def _offers(self, site: Site, stop: int) -> Iterator[tuple[int, str, OpOffer, str | None]]:
        """Yield the first `stop` backends' offers: (place, backend, offer, why it declines)."""
        for place, (name, backend) in enumerate(self.chain[:stop]):
            for offer_name in _offer_names(site):
                offer = backend.ops.get(offer_name)
                if offer is not None:
                    yield place, name, offer, self._reason(name, offer_name, offer, site)

    def _reason(self, backend: str, name: str, offer: OpOffer, site: Site) -> str | None:
        """Return why a backend's offer does not serve a site, or None if it does."""
        if self.train and offer.op.backward is None:
            return "it has no backward pass"
        try:
            reason = offer.declines(site, name)
        except Exception as error:
            raise SplitbitError(
                f"backend {backend}: accepts failed on {site}: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(reason, str | None):  # True would decline, and NumPy serve in silence
            raise SplitbitError(
                f"backend {backend}: accepts answered {reason!r} to {site}; "
                "None (it serves) or the reason for declining is expected"
            )
        return reason


def _offer_names(site: Site) -> tuple[str, ...]:
    """Return the names under which an op may be offered, the special before the general."""
    if site.op == "linear" and site.operands[1].startswith("packed:"):
        return (f"packed_linear:{site.operands[1].removeprefix('packed:')}", "linear")
    return (site.op,)


class Planner(Ops):
    """Runs a model on stubs, so that every site is resolved before the first step."""

    def __init__(self, table: OpTable) -> None:
        self.table = table

    def call(self, spec: OpSpec, operands: tuple[Any, ...], static: dict[str, Any]) -> Any:
        resolved = self.table.resolve(spec, operands, static)
        if resolved.op is None:
            assert spec.recipe is not None
            return spec.recipe(self, *operands, **static)
        return Stub(self.table.dtype)


class _Parts(Ops):
    """Notes which ops a fused op is made of, whoever may serve them."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self.calls: list[tuple[OpSpec, tuple[Any, ...], dict[str, Any]]] = []

    def call(self, spec: OpSpec, operands: tuple[Any, ...], static: dict[str, Any]) -> Any:
        self.calls.append((spec, operands, static))
        if spec.recipe is not None:
            return spec.recipe(self, *operands, **static)
        return Stub(self._dtype)
