"""Primitives one by one against NumPy's, in both precisions; and generation with a cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import splitbit_numpy_backend
from splitbit_kit.api import OPS, Backend, Context, Hardware, LowRank, Param, Site
from splitbit_kit.compute import Compute
from splitbit_kit.engine.optable import OpTable, operand_kind
from splitbit_kit.engine.params import ParameterStore
from splitbit_kit.engine.tape import Tape
from splitbit_kit.engine.workspace import BufferPool
from splitbit_kit.generate import Sampling, Window, generate, one_sequence
from splitbit_kit.models.config import ModelConfig
from splitbit_kit.models.decoder import Decoder, parameter_specs
from splitbit_kit.text.tokenizer import Tokenizer

table = pytest.importorskip("splitbit_numba_backend.table")

Array = np.ndarray[Any, np.dtype[Any]]

HARDWARE = Hardware(2, 2, 1 << 34, "light")
NUMPY = splitbit_numpy_backend.build(HARDWARE, "fp32", 1)
NUMBA = {precision: table.build(HARDWARE, precision, 2) for precision in ("fp32", "bf16")}
BOUNDS = {"fp32": 1e-5, "bf16": 1e-2}
PRECISIONS = pytest.mark.parametrize("precision", BOUNDS)


class Grads:
    """Gradients that already hold ones, so that what is added shows."""

    def __init__(self) -> None:
        self.held: dict[str, Array] = {}

    def into(self, param: Param) -> tuple[Array, bool] | None:
        if not param.trainable:
            return None
        return self.held.setdefault(param.name, np.ones(param.shape, np.float32)), True

    def add(self, param: Param, gradient: Array) -> None:
        raise NotImplementedError


def array(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape, np.float32)


def param(name: str, *shape: int, trainable: bool = True) -> Param:
    return Param(name, array(*shape, seed=9), trainable)


def integers(*values: int) -> Array:
    return np.array(values, np.int32)


def context(**more: Any) -> Context:
    return Context(BufferPool(), seed=0xFEDCBA9876543210, step=12, micro_batch=3, **more)


def run(backend: Backend, name: str, operands: Any, static: Any, ctx: Context) -> list[Array]:
    """Return the result, the gradients of arrays, and those of parameters in order of name."""
    op, grads = backend.ops[name].op, Grads()
    assert op.backward is not None
    out, saved = op.forward(ctx, *operands, **static)
    dout = array(*out.shape, seed=5)
    gradients = [g for g in op.backward(ctx, dout, saved, grads) if g is not None]
    return [out, *gradients, *(grads.held[name] for name in sorted(grads.held))]


def error(a: Array, b: Array) -> float:
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30))


CASES: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "layer norm": (
        "layer_norm",
        [array(37, 50), param("w", 50), param("b", 50)],
        {"eps": 1e-5},
    ),
    "layer norm, no bias": ("layer_norm", [array(5, 64), param("w", 64), None], {"eps": 1e-3}),
    "rms norm": ("rms_norm", [array(37, 50), param("w", 50)], {"eps": 1e-5}),
    "rms norm, frozen": (
        "rms_norm",
        [array(3, 17), param("w", 17, trainable=False)],
        {"eps": 1e-5},
    ),
    "linear": ("linear", [array(70, 50), param("w", 39, 50), param("b", 39)], {}),
    "linear, whole blocks": ("linear", [array(33, 64), param("w", 96, 64), None], {}),
    "linear, one row": ("linear", [array(1, 50), param("w", 39, 50), None], {}),
    "linear, frozen": (
        "linear",
        [array(9, 7), param("w", 5, 7, trainable=False), param("b", 5)],
        {},
    ),
    "rotary": (
        "rotary",
        [array(4, 40), integers(0, 1, 700, 3)],
        {"heads": 2, "base": 10_000.0},
    ),
    "attention": (
        "attention",
        [array(70, 48), array(70, 24), array(70, 24, seed=1), integers(0, 40, 40, 41, 70), None],
        {"heads": 4, "kv_heads": 2},
    ),
    "attention, wide heads": (
        "attention",
        [array(65, 128), array(65, 128, seed=1), array(65, 128, seed=2), integers(0, 65), None],
        {"heads": 2, "kv_heads": 2},
    ),
    "gelu": ("gelu", [array(7, 33)], {}),
    "swiglu": ("swiglu", [array(7, 33), array(7, 33, seed=1)], {}),
    "add": ("add", [array(7, 33), array(7, 33, seed=1)], {}),
    "dropout": ("dropout", [array(7, 33)], {"rate": 0.3, "site": 4}),
    "cross entropy": ("cross_entropy", [array(5, 61), integers(0, 60, 3, 3, 17)], {}),
}


@PRECISIONS
@pytest.mark.parametrize("case", CASES)
def test_forward_and_backward_are_numpys(case: str, precision: str) -> None:
    name, operands, static = CASES[case]
    ours = run(NUMBA[precision], name, operands, static, context())
    theirs = run(NUMPY, name, operands, static, context())
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        assert a.dtype == np.float32
        assert error(a, b) < BOUNDS[precision]


@PRECISIONS
@pytest.mark.parametrize("case", CASES)
def test_nothing_comes_of_no_rows(case: str, precision: str) -> None:
    name, operands, static = CASES[case]
    empty = [o[:0] if isinstance(o, np.ndarray) else o for o in operands]
    if name == "attention":
        empty[3] = integers(0, 0)
    ours = run(NUMBA[precision], name, empty, static, context())
    theirs = run(NUMPY, name, empty, static, context())
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


@PRECISIONS
@pytest.mark.parametrize("rows", [1, 3, 4, 5])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (50, 39), (256, 67)])
def test_few_rows_times_a_weight(rows: int, inputs: int, outputs: int, precision: str) -> None:
    operands = [array(rows, inputs), param("w", outputs, inputs), param("b", outputs)]
    ours, _ = NUMBA[precision].ops["linear"].op.forward(context(grad=False), *operands)
    theirs, _ = NUMPY.ops["linear"].op.forward(context(grad=False), *operands)
    assert error(ours, theirs) < BOUNDS[precision]


def test_threads_change_no_bit_of_few_rows() -> None:
    operands = [array(2, 50), param("w", 71, 50), None]
    found = {
        table.build(HARDWARE, "fp32", threads)
        .ops["linear"]
        .op.forward(context(grad=False), *operands)[0]
        .tobytes()
        for threads in (1, 2, 3)
    }
    assert len(found) == 1


# ---- what is declined, and what is an error


def reason(name: str, *operands: Any, train: bool = True, **static: Any) -> str | None:
    kinds = tuple(o if isinstance(o, str) else operand_kind(o) for o in operands)
    site = Site(name, tuple(static.items()), kinds, train)
    return NUMBA["fp32"].ops[name].declines(site, name)


def test_every_op_is_offered_but_logits() -> None:
    assert set(OPS) - set(NUMBA["fp32"].ops) == {"logits"}


def test_what_is_declined() -> None:
    x, w = array(2, 4), param("w", 3, 4)
    low = Param("low", LowRank(w, param("a", 1, 4), param("b", 3, 1), 1.0))
    assert reason("linear", x, w, None) is None
    assert reason("linear", x, low, None) == "w: lowrank:param:float32 is not served"
    assert reason("linear", x, "packed:q8_0", None) == "w: packed:q8_0 is not served"
    assert reason("gelu", x.astype(np.float64)) == "x: array:float64 is not served"
    assert reason("gelu", x.astype(np.int32)) == "x: array:int32 is not served"
    assert reason("gelu", x, x) == "2 operands, where 1 are known"
    assert reason("rms_norm", x, w, eps=1.0, axis=0) == "static argument axis is not known"
    attention = ("array:float32",) * 3 + ("array:int32", "cache")
    assert reason("attention", *attention, train=False, heads=1, kv_heads=1) is None
    assert reason("attention", *attention) == "a cache goes with inference only"
    block = ["array:float32", "array:int32", "array:int32", w, *[None] * 9, "cache"]
    block[5:9] = [w] * 4
    assert reason("attention_block", *block, train=False, dropout=0.0) is None
    declined = reason("attention_block", *block, train=False, dropout=0.1)
    assert declined == "dropout does not go with a cache"


# ---- generation


CONTEXT = 16
BYTES = Tokenizer.train("byte", [])
V = BYTES.vocab_size
MODELS = {
    "gpt2": ModelConfig("gpt2", layers=2, heads=2, width=16, context=CONTEXT, bias=True),
    "llama": ModelConfig(
        "llama", layers=2, heads=4, kv_heads=2, width=40, hidden=24, context=CONTEXT
    ),
}
FAMILIES = pytest.mark.parametrize("family", MODELS)


def compute(precision: str | None) -> Compute:
    """Return the chain numba,numpy, or numpy alone."""
    ahead = (("numba", NUMBA[precision]),) if precision else ()
    return Compute((*ahead, ("numpy", NUMPY)), precision or "fp32", 2, None)  # type: ignore[arg-type]


def decoder(family: str) -> Decoder:
    """Return a model with weights so large that its scores differ clearly."""
    specs = parameter_specs(MODELS[family], V)
    params = ParameterStore(specs)
    params.initialise([replace(spec, std=10 * spec.std) for spec in specs], seed=3)
    return Decoder(MODELS[family], params)


@FAMILIES
def test_greedy_texts_are_numpys(family: str) -> None:
    model, greedy = decoder(family), Sampling(40, temperature=0)  # the window slides
    seen = np.arange(V) < 128

    def text(chain: Compute) -> str:
        return "".join(generate(model, chain, BYTES, "once upon", greedy, seen=seen))

    found = text(compute("fp32"))
    assert len(found) == 40
    assert found == text(compute(None))


@FAMILIES
@PRECISIONS
def test_scores_with_the_cache_are_those_without(family: str, precision: str) -> None:
    model, chain = decoder(family), compute(precision)
    ids = np.random.default_rng(1).integers(0, V, CONTEXT).tolist()
    inference = chain.table(train=False)
    window = Window(model, chain, inference, CONTEXT)
    for start, stop in ((0, 7), (7, 10), *((i, i + 1) for i in range(10, CONTEXT))):
        found = window.read(ids[start:stop])
        batch = one_sequence(ids[:stop])
        uncached = model.logits(Tape(chain.table(train=False), chain.context()), batch)[-1]
        exact = model.logits(Tape(compute(None).table(train=False), chain.context()), batch)[-1]
        assert error(found, exact) < {"fp32": 1e-5, "bf16": 3e-2}[precision]
        assert error(found, uncached) < {"fp32": 1e-5, "bf16": 3e-2}[precision]
    assert {r.origin for r in inference.resolved} == {"numba", "parts"}


def test_a_full_cache_and_one_of_other_heads_are_errors() -> None:
    offer = NUMBA["fp32"].ops["attention"]
    assert offer.make_cache is not None
    shape = {"sequences": 1, "kv_heads": 2, "head_size": 4, "dtype": np.float32}
    cache = offer.make_cache(capacity=3, **shape)
    rows = [array(2, 8), array(2, 8), array(2, 8), integers(0, 2), cache]
    ctx = context(grad=False)
    offer.op.forward(ctx, *rows, heads=2, kv_heads=2)
    with pytest.raises(ValueError, match="4 tokens exceed the cache's capacity of 3"):
        offer.op.forward(ctx, *rows, heads=2, kv_heads=2)
    assert cache.lengths.tolist() == [2]
    with pytest.raises(ValueError, match="made for other sequences or heads"):
        offer.op.forward(ctx, *rows, heads=1, kv_heads=1)


def test_parts_train_as_the_blocks_do() -> None:
    model = decoder("llama")
    batch = one_sequence(np.arange(12))
    targets, weights = integers(*range(12)), np.ones(12, np.float32)
    losses = []
    for fuse in (True, False):
        chain = OpTable(compute("fp32").chain, train=True, fuse=fuse)
        losses.append(model.loss(Tape(chain, context()), batch, targets, weights))
    assert error(*losses) < 1e-5
