"""Resolution: which backend serves a site, and that it is asked once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from chains import chain as real_chain

from splitbit_kit.api import (
    OPS,
    Backend,
    Context,
    LowRank,
    Op,
    OpOffer,
    PackedTensor,
    Param,
    Site,
    SplitbitError,
)
from splitbit_kit.engine.optable import CacheStub, OpTable, Planner, Resolved, Stub, operand_kind
from splitbit_kit.engine.params import ParameterStore
from splitbit_kit.engine.workspace import BufferPool
from splitbit_kit.models.config import ModelConfig
from splitbit_kit.models.decoder import Decoder, parameter_specs
from splitbit_kit.text.batches import Batch
from splitbit_kit.training.learner import Learner

Accepts = Callable[[Site], str | None]
X = Stub(np.dtype(np.float32))
IDS = Stub(np.dtype(np.int32))
W = Param("w", np.zeros((3, 2), np.float32))


def nothing(*args: Any, **static: Any) -> Any:
    """Stand for a kernel that these tests never run."""
    raise AssertionError("resolution must not run an op")


def anything(site: Site) -> str | None:
    """Accept every site."""
    return None


def offers(*names: str, accepts: Accepts | None = anything, backward: Any = nothing) -> Backend:
    """Return a backend that offers ops by name."""
    ops = {name: OpOffer(Op(nothing, backward), accepts) for name in names}
    return Backend(ops, {}, "fp32")


def decline(reason: str) -> Accepts:
    """Return an `accepts` that declines everything."""
    return lambda site: reason


def table(train: bool = True, fuse: bool = True, **backends: Backend) -> OpTable:
    """Return the table of a chain in the order of the arguments."""
    return OpTable(list(backends.items()), train=train, fuse=fuse)


def resolve(t: OpTable, op: str, *operands: Any, **static: Any) -> Resolved:
    """Resolve a call of an op, with operands and static arguments filled in as `Ops` does."""
    spec = OPS[op]
    filled = (*operands, *(None,) * (len(spec.operands) - len(operands)))
    return t.resolve(spec, filled, {**spec.defaults, **static})


PARTS = ("layer_norm", "rms_norm", "linear", "rotary", "attention", "gelu", "add", "dropout")


def attention_block(t: OpTable, w: Param = W, **static: Any) -> Resolved:
    """Resolve an attention block."""
    operands = (X, IDS, IDS, W, None, w, w, w, w)
    return resolve(
        t, "attention_block", *operands, **{"norm": "layer", "heads": 1, "kv_heads": 1, **static}
    )


# ---- the chain's order


def test_the_first_that_accepts_serves() -> None:
    t = table(a=offers("gelu"), b=offers("gelu", "add"), c=offers("gelu", "add", "swiglu"))
    assert resolve(t, "gelu", X).origin == "a"
    assert resolve(t, "add", X, X).origin == "b"
    assert resolve(t, "swiglu", X, X).origin == "c"


def test_who_declines_is_passed_over() -> None:
    t = table(a=offers("gelu", accepts=decline("too hot")), b=offers("gelu"))
    assert resolve(t, "gelu", X).origin == "b"


def test_inference_only_ops_are_passed_over_in_training() -> None:
    backends = {"a": offers("gelu", backward=None), "b": offers("gelu")}
    assert resolve(table(train=True, **backends), "gelu", X).origin == "b"
    assert resolve(table(train=False, **backends), "gelu", X).origin == "a"


def test_where_nobody_serves_the_error_says_who_declined_and_why() -> None:
    t = table(a=offers("gelu", accepts=decline("too hot")), b=offers("add"))
    with pytest.raises(SplitbitError, match=r"gelu\(array:float32\).*a declines: too hot.*a, b"):
        resolve(t, "gelu", X)


def test_sites_differ_by_operand_kinds_and_static_arguments() -> None:
    only_float32: Accepts = lambda site: (  # noqa: E731
        None if site.operands[0] == "array:float32" and dict(site.static)["eps"] < 1 else "no"
    )
    t = table(a=offers("rms_norm", accepts=only_float32), b=offers("rms_norm"))
    assert resolve(t, "rms_norm", X, W).origin == "a"
    assert resolve(t, "rms_norm", Stub(np.dtype(np.float64)), W).origin == "b"
    assert resolve(t, "rms_norm", X, W, eps=2.0).origin == "b"
    assert len(t.resolved) == 3


def test_flat_loops_come_from_the_first_that_has_them() -> None:
    a, b = Backend({}, {"adamw": 1}, "fp32"), Backend({}, {"adamw": 2, "sgd": 3}, "fp32")
    assert table(a=a, b=b).flat == {"adamw": 1, "sgd": 3}


# ---- fused ops


def test_a_fused_op_is_taken_whole() -> None:
    t = table(a=offers("attention_block"), b=offers(*PARTS))
    assert attention_block(t).origin == "a"


@pytest.mark.parametrize("part", ["layer_norm", "linear", "attention", "add"])
def test_a_fused_op_is_left_if_a_backend_ahead_offers_a_part(part: str) -> None:
    t = table(a=offers(part), b=offers("attention_block"), c=offers(*PARTS))
    assert attention_block(t).op is None
    assert attention_block(t).origin == "parts"


def test_a_backend_ahead_that_offers_no_part_of_it_is_no_obstacle() -> None:
    # this block is not rotated, drops nothing and has no GELU
    t = table(a=offers("rotary", "gelu", "dropout"), b=offers("attention_block", *PARTS))
    assert attention_block(t).origin == "b"
    assert attention_block(t, rotary_base=1e4).origin == "parts"
    assert attention_block(t, dropout=0.1).origin == "parts"


def test_an_offer_ahead_that_would_not_serve_is_no_obstacle() -> None:
    fused = offers("attention_block", *PARTS)
    declining = table(a=offers("linear", accepts=decline("no")), b=fused)
    assert attention_block(declining).origin == "b"
    inference_only = {"a": offers("linear", backward=None), "b": fused}
    assert attention_block(table(train=True, **inference_only)).origin == "b"
    assert attention_block(table(train=False, **inference_only)).origin == "parts"


def test_the_parts_may_be_served_by_backends_ahead_alone() -> None:
    t = table(numpy=offers(*PARTS), fast=offers("attention_block"))
    assert attention_block(t).origin == "parts"


def test_a_declined_fused_op_becomes_its_parts_each_resolved_in_turn() -> None:
    no_dropout: Accepts = lambda site: (  # noqa: E731
        "no dropout" if dict(site.static)["dropout"] else None
    )
    t = table(a=offers("attention_block", accepts=no_dropout), b=offers("add"), c=offers(*PARTS))
    plan = Planner(t)
    static = {"norm": "layer", "heads": 1, "kv_heads": 1}
    plan.attention_block(X, IDS, IDS, W, None, W, W, W, W, **static, dropout=0.1, site=1)
    origins = {r.site.op: r.origin for r in t.resolved}
    assert origins == {
        "attention_block": "parts",
        "layer_norm": "c",
        "linear": "c",
        "attention": "c",
        "dropout": "c",
        "add": "b",
    }


def test_without_fusion_every_fused_op_becomes_its_parts() -> None:
    t = table(fuse=False, a=offers("attention_block", *PARTS))
    assert attention_block(t).origin == "parts"


# ---- packed weights


def packed(format_name: str) -> Param:
    """Return a handle of a weight in some format."""
    return Param("p", PackedTensor(format_name, (3, 2), {}), trainable=False)


def test_packed_linear_of_the_format_is_found_first() -> None:
    t = table(a=offers("linear", "packed_linear:q8"), b=offers("linear"))
    special, general = t.chain[0][1].ops["packed_linear:q8"], t.chain[0][1].ops["linear"]
    t.chain[0][1].ops["packed_linear:q8"] = OpOffer(Op(repr, nothing), special.accepts)  # type: ignore[index]
    assert resolve(t, "linear", X, packed("q8")).op == Op(repr, nothing)
    assert resolve(t, "linear", X, packed("q4")).op == general.op
    assert resolve(t, "linear", X, W).op == general.op


def test_a_packed_linear_behind_serves_what_those_ahead_decline() -> None:
    arrays_only: Accepts = lambda site: (  # noqa: E731
        None if site.operands[1].startswith("param") else "packed"
    )
    t = table(a=offers("linear", accepts=arrays_only), b=offers("packed_linear:q8"))
    assert resolve(t, "linear", X, packed("q8")).origin == "b"
    assert resolve(t, "linear", X, W).origin == "a"


def test_a_packed_linear_ahead_goes_before_a_fused_op() -> None:
    t = table(a=offers("packed_linear:q8"), b=offers("attention_block", *PARTS))
    assert attention_block(t, packed("q8")).origin == "parts"
    assert attention_block(t, packed("q4")).origin == "b"
    assert attention_block(t, W).origin == "b"


# ---- what is refused


def test_an_unknown_static_argument_is_refused() -> None:
    t = table(a=offers("gelu", "rms_norm"))
    with pytest.raises(TypeError, match="gelu takes the static arguments"):
        Planner(t).gelu(X, exact=True)
    with pytest.raises(TypeError, match="attention takes the static arguments"):
        Planner(t).attention(X, X, X, IDS, heads=2)  # kv_heads is missing


def test_an_accepts_that_fails_is_named() -> None:
    def broken(site: Site) -> str | None:
        raise KeyError("exact")

    with pytest.raises(SplitbitError, match=r"backend a: accepts failed on gelu\(.*KeyError"):
        resolve(table(a=offers("gelu", accepts=broken), b=offers("gelu")), "gelu", X)


@pytest.mark.parametrize("answer", [True, False, ()])
def test_an_accepts_that_answers_neither_none_nor_a_reason_is_named(answer: Any) -> None:
    # True is what a newcomer would write for "yes"; it must not decline in silence
    t = table(a=offers("gelu", accepts=lambda site: answer), b=offers("gelu"))
    with pytest.raises(SplitbitError, match=r"backend a: accepts answered .*None \(it serves\)"):
        resolve(t, "gelu", X)


def test_a_missing_weight_is_declined_by_name() -> None:
    with pytest.raises(SplitbitError, match="numpy declines: w: none is not served"):
        resolve(OpTable(real_chain("numpy", "fp32"), train=True), "linear", X)


@pytest.mark.parametrize(
    ("operand", "kind"),
    [
        (None, "none"),
        (X, "array:float32"),
        (np.zeros(2, np.int32), "array:int32"),
        (np.zeros(2, np.float16), "array:float16"),
        (W, "param:float32"),
        (packed("q8"), "packed:q8"),
        (CacheStub(), "cache"),
    ],
)
def test_operand_kinds(operand: Any, kind: str) -> None:
    assert operand_kind(operand) == kind


# ---- once


def counting(backend: Backend, seen: list[Site]) -> Backend:
    """Return a backend whose every `accepts` notes what it was asked."""

    def counted(offer: OpOffer) -> OpOffer:
        def accepts(site: Site) -> str | None:
            seen.append(site)
            return offer.declines(site, site.op)

        return OpOffer(offer.op, accepts, offer.make_cache)

    ops = {name: counted(offer) for name, offer in backend.ops.items()}
    return Backend(ops, backend.flat, backend.precision)


def test_a_site_is_resolved_once() -> None:
    seen: list[Site] = []
    t = table(a=counting(offers("gelu"), seen))
    found = [resolve(t, "gelu", X) for _ in range(3)]
    found += [resolve(t, "gelu", np.zeros((n, 3), np.float32)) for n in range(1, 4)]
    assert len(seen) == 1
    assert all(r is found[0] for r in found)


def test_operands_need_not_be_hashable() -> None:
    class Mapped(np.ndarray):
        """As np.memmap is: an array of a type of its own."""

    @dataclass
    class Cache:
        """Equal by value, and so without a hash."""

        length: int = 0

        def truncate(self, length: int) -> None:
            self.length = length

    mapped = np.zeros((2, 3), np.float32).view(Mapped)
    for train in (True, False):
        assert resolve(table(train=train, a=offers("gelu")), "gelu", mapped).origin == "a"
    t = table(train=False, a=offers("attention"))
    assert resolve(t, "attention", X, X, X, IDS, Cache(), heads=1, kv_heads=1).origin == "a"


@pytest.mark.parametrize("train", [True, False])
def test_a_planned_call_is_known_again_without_its_site(
    train: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cache:
        def truncate(self, length: int) -> None:
            raise AssertionError

    t = table(train=train, a=offers("attention", "linear"))
    static = {"heads": 1, "kv_heads": 1}
    planned = (
        resolve(t, "attention", X, X, X, IDS, CacheStub(), **static),
        resolve(t, "linear", X, W),
    )
    monkeypatch.setattr(t, "_site", nothing)  # words cost more than the call of a small model
    x, starts = np.zeros((2, 2), np.float32), np.zeros(2, np.int32)
    for _ in range(2):
        assert resolve(t, "attention", x, x, x, starts, Cache(), **static) is planned[0]
        assert resolve(t, "linear", x, W) is planned[1]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_nothing_is_resolved_inside_a_step(family: str, dropout: float) -> None:
    seen: list[Site] = []
    (name, numpy), *_ = real_chain("numpy", "fp32")
    config = ModelConfig(family, layers=2, heads=2, width=16, hidden=16, context=8, dropout=dropout)
    specs = parameter_specs(config, 7)
    params = ParameterStore(specs)
    params.initialise(specs, seed=1)
    t = OpTable([(name, counting(numpy, seen))], train=True)

    class NoUpdate:
        def init(self, params: Any) -> dict[str, Any]:
            return {}

        def update(self, *args: Any, **options: Any) -> None:
            pass

    learner = Learner(
        Decoder(config, params), t, Context(BufferPool()), NoUpdate(), lambda step: 0.0
    )
    assert len(seen) == len(set(seen)) > 5
    before = len(seen)
    for step in range(3):
        ids = np.arange(7, dtype=np.int32)
        starts = np.array([0, step + 1, 7], np.int32)
        batch = Batch(ids, ids, ids, starts)
        learner.step(step, [batch, batch])
    assert len(seen) == before


def test_without_accepts_only_what_is_plain_is_served() -> None:
    def forward(ctx: Any, x: Any, w: Any, b: Any = None) -> Any:
        return x, None

    plain = Backend({"linear": OpOffer(Op(forward, forward))}, {}, "fp32")
    special = Backend({"packed_linear:q8": OpOffer(Op(forward, forward))}, {}, "fp32")
    t = OpTable([("a", plain), ("b", special)], train=True)
    assert resolve(t, "linear", X, W).origin == "a"
    assert resolve(t, "linear", X, packed("q8")).origin == "b"
    with pytest.raises(SplitbitError, match="a declines: packed:q4 is not served"):
        resolve(t, "linear", X, packed("q4"))
    with pytest.raises(SplitbitError, match="a declines: lowrank:"):
        resolve(t, "linear", X, Param("w", LowRank(W, W, W, 1.0)))


def test_a_static_value_that_no_recipe_knows_is_refused() -> None:
    planner = Planner(table(a=offers("linear")))
    with pytest.raises(ValueError, match="norm: layer, or rms without a bias"):
        planner.logits(X, W, None, W, norm="batch")
    with pytest.raises(ValueError, match="activation: gelu, or swiglu with a gate"):
        Planner(table(a=offers("rms_norm", "linear"))).mlp_block(
            X, W, None, None, W, W, norm="rms", activation="relu"
        )
