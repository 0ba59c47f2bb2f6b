"""The tape: what it records, how it walks back, and what it refuses."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from chains import DTYPES, chain

from splitbit_kit.api import Backend, Context, Op, OpOffer, Param
from splitbit_kit.engine.optable import OpTable
from splitbit_kit.engine.params import GradientBuffer, ParameterStore, ParamSpec
from splitbit_kit.engine.tape import Tape
from splitbit_kit.engine.workspace import BufferPool
from splitbit_kit.models.config import ModelConfig
from splitbit_kit.models.decoder import Decoder, parameter_specs
from splitbit_kit.text.batches import Batch

Array = np.ndarray[Any, np.dtype[Any]]

SPECS = [ParamSpec("w", (3, 3), std=0.5), ParamSpec("v", (3, 3), std=0.5)]


class Bench:
    """A tape with parameters to use it on."""

    def __init__(self, grad: bool = True, fuse: bool = True, observe: Any = None) -> None:
        self.params = ParameterStore(SPECS, np.float64)
        self.params.initialise(SPECS, seed=1)
        self.grads = GradientBuffer(self.params)
        self.grads.begin()
        self.pool = BufferPool()
        table = OpTable(chain("numpy", "fp64"), train=True, fuse=fuse)
        self.ctx = Context(self.pool, grad=grad)
        self.tape = Tape(table, self.ctx, flat=self.params.values, observe=observe)
        self.w, self.v = self.params["w"], self.params["v"]


@pytest.fixture
def x() -> Array:
    return np.random.default_rng(1).normal(size=(4, 3))


@pytest.fixture
def dout() -> Array:
    return np.random.default_rng(2).normal(size=(4, 3))


def test_a_chain_of_ops_walks_back(x: Array, dout: Array) -> None:
    b = Bench()
    out = b.tape.linear(b.tape.linear(x, b.w), b.v)
    np.testing.assert_allclose(out, x @ b.w.array.T @ b.v.array.T)
    (dx,) = b.tape.backward(out, dout, b.grads, wrt=[x])
    np.testing.assert_allclose(dx, dout @ b.v.array @ b.w.array)
    np.testing.assert_allclose(b.grads["w"], (dout @ b.v.array).T @ x)
    np.testing.assert_allclose(b.grads["v"], dout.T @ (x @ b.w.array.T))


def test_gradients_of_an_array_that_is_used_often_add_up(x: Array, dout: Array) -> None:
    b = Bench()
    h = b.tape.linear(x, b.w)
    out = b.tape.add(b.tape.add(h, h), b.tape.add(h, x))
    (dx, dh) = b.tape.backward(out, dout, b.grads, wrt=[x, h])
    np.testing.assert_allclose(dh, 3 * dout)
    np.testing.assert_allclose(dx, 3 * dout @ b.w.array + dout)


def test_a_second_gradient_is_added_out_of_place(x: Array, dout: Array) -> None:
    # add's backward pass returns its dout for both operands, so a sum in place would change it
    b = Bench()
    h, k = b.tape.linear(x, b.w), b.tape.linear(x, b.v)
    out = b.tape.add(b.tape.add(h, k), h)
    before = dout.copy()
    dh, dk = b.tape.backward(out, dout, b.grads, wrt=[h, k])
    np.testing.assert_array_equal(dout, before)
    np.testing.assert_allclose(dh, 2 * before)
    np.testing.assert_allclose(dk, before)


def test_one_handle_used_twice_gets_both_gradients(x: Array, dout: Array) -> None:
    b = Bench()
    h = b.tape.linear(x, b.w)
    out = b.tape.linear(h, b.w)
    b.tape.backward(out, dout, b.grads)
    np.testing.assert_allclose(b.grads["w"], dout.T @ h + (dout @ b.w.array).T @ x)


def test_what_the_result_does_not_depend_on_has_no_gradient(x: Array, dout: Array) -> None:
    b = Bench()
    aside = b.tape.linear(x, b.v)
    out = b.tape.linear(x, b.w)
    found = b.tape.backward(out, dout, b.grads, wrt=[aside, x, np.zeros(3)])
    assert found[0] is None
    assert found[1] is not None
    assert found[2] is None
    b.grads.finish()
    assert not b.grads["v"].any()


# ---- refusals


def test_an_array_of_a_parameter_is_refused(x: Array) -> None:
    b = Bench()
    for raw in (b.w.array, b.w.array[:2], b.params.values[:9].reshape(3, 3)):
        with pytest.raises(TypeError, match="add: pass the parameter itself as y, not its array"):
            b.tape.add(x, raw)
    b.tape.add(x[:3], b.w.array.copy())


def test_an_unknown_static_argument_is_refused(x: Array) -> None:
    with pytest.raises(TypeError, match="gelu takes the static arguments"):
        Bench().tape.gelu(x, exact=True)


def with_gelu(forward: Any = None, backward: Any = None, checked: bool = True) -> Tape:
    """Return a tape on which a careless backend serves gelu."""
    right = OpOffer(
        Op(
            forward or (lambda ctx, x: (x + 1, None)),
            backward or (lambda ctx, dout, saved, grads: (dout + 1,)),
        )
    )
    careless = ("careless", Backend({"gelu": right}, {}, "fp64"))
    table = OpTable([careless, *chain("numpy", "fp64")], train=True)
    flat = np.zeros(1) if checked else None
    return Tape(table, Context(BufferPool(), np.dtype(np.float64)), flat=flat)


@pytest.mark.parametrize(
    ("forward", "found"),
    [
        (lambda ctx, x: x + 1, "ndarray, where"),
        (lambda ctx, x: (x.tolist(), None), "list; a C-contiguous array of float64"),
        (lambda ctx, x: (x.astype(np.float32), None), "an array of float32"),
        (lambda ctx, x: (np.asfortranarray(x + 1), None), "an array that is not C-contiguous"),
    ],
)
def test_a_result_that_the_next_op_could_not_take_is_refused(
    forward: Any, found: str, x: Array
) -> None:
    with pytest.raises(TypeError, match=f"gelu of careless returned {found}"):
        with_gelu(forward).gelu(x)


@pytest.mark.parametrize(
    ("backward", "found"),
    [
        (lambda ctx, dout, saved, grads: dout, "a tuple of 1 gradients is expected"),
        (lambda ctx, dout, saved, grads: (dout, None), "a tuple of 1 gradients is expected"),
        (lambda ctx, dout, saved, grads: (dout[:1].copy(),), r"operand 0 has shape \(1, 3\)"),
        (lambda ctx, dout, saved, grads: (dout.astype(np.float32),), "an array of float32"),
    ],
)
def test_a_gradient_that_does_not_fit_is_refused(
    backward: Any, found: str, x: Array, dout: Array
) -> None:
    tape = with_gelu(backward=backward)
    out = tape.gelu(x)
    with pytest.raises(TypeError, match=f"backward of gelu of careless.*{found}"):
        tape.backward(out, dout, GradientBuffer(ParameterStore(SPECS)))


@pytest.mark.parametrize("checked", [True, False])
def test_what_fits_passes(checked: bool, x: Array, dout: Array) -> None:
    tape = with_gelu(checked=checked)
    out = tape.gelu(x)
    (dx,) = tape.backward(out, dout, GradientBuffer(ParameterStore(SPECS)), wrt=[x])
    np.testing.assert_array_equal(dx, dout + 1)


# ---- memory


def test_without_grad_nothing_is_recorded(x: Array) -> None:
    b = Bench(grad=False)
    h = b.tape.linear(x, b.w)
    alive = weakref.ref(h)
    out = b.tape.gelu(h)
    del h
    assert alive() is None
    assert np.isfinite(out).all()


def test_the_tape_keeps_every_array_until_its_backward_pass_has_run(x: Array, dout: Array) -> None:
    b = Bench()
    h = b.tape.linear(x, b.w)
    alive = weakref.ref(h)
    out = b.tape.linear(h, b.v)
    del h
    gc.collect()
    assert alive() is not None
    b.tape.backward(out, dout, b.grads)
    assert alive() is None


def test_memory_returns_while_the_tape_walks_back() -> None:
    # with depth, only what the way forward kept may grow: the way back reuses what it frees
    def allocated(depth: int, back: bool) -> int:
        b = Bench()
        x = np.ones((1000, 3))
        for _ in range(depth):
            x = b.tape.gelu(x)
        if back:
            b.tape.backward(x, np.ones_like(x), b.grads)
        return b.pool.allocated_bytes

    def extra(depth: int) -> int:
        return allocated(depth, back=True) - allocated(depth, back=False)

    assert extra(20) <= extra(3)


def test_a_second_step_allocates_nothing(x: Array, dout: Array) -> None:
    b = Bench()
    sizes = []
    for _ in range(3):
        b.grads.begin()
        out = b.tape.gelu(b.tape.linear(b.tape.gelu(b.tape.linear(x, b.w)), b.v))
        b.tape.backward(out, dout, b.grads)
        del out
        sizes.append(b.pool.allocated_bytes)
    assert sizes[0] == sizes[1] == sizes[2] > 0


# ---- observing


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_calibration_sees_every_linear(family: str) -> None:
    config = ModelConfig(family, layers=2, heads=2, width=16, hidden=24, context=8, tied=False)
    specs = parameter_specs(config, 7)
    params = ParameterStore(specs, DTYPES["fp32"])
    params.initialise(specs, seed=1)
    seen: list[tuple[Param, Array]] = []
    table = OpTable(chain("numpy", "fp32"), train=False, fuse=False)
    ctx = Context(BufferPool(), grad=False)
    tape = Tape(table, ctx, flat=params.values, observe=lambda w, x: seen.append((w, x.copy())))
    ids = np.arange(6, dtype=np.int32)
    batch = Batch(ids, ids, ids, np.array([0, 6], np.int32))
    Decoder(config, params).loss(tape, batch, ids, np.ones(6, np.float32), train=False)
    names = [w.name for w, _ in seen]
    matrices = {p.name for p in params if p.array.ndim == 2}
    assert sorted(names) == sorted(matrices - {"tok.weight", "pos.weight"})
    assert names[-1] == "head.weight"
    for w, x in seen:
        assert params[w.name] is w
        assert x.shape == (6, w.shape[1])
        assert np.isfinite(x).all()
    inputs = {w.name: x for w, x in seen}
    q, k = (inputs[f"layers.0.attn.{name}.weight"] for name in "qk")
    np.testing.assert_array_equal(q, k)
