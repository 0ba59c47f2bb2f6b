"""Fused ops of odd sizes against their definitions, and numbers that overflow or are none."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from test_numba_primitives import NUMBA, NUMPY, Grads, array, context, error, integers

from splitbit_kit.api import OPS, Param
from splitbit_kit.engine.optable import OpTable
from splitbit_kit.engine.tape import Tape

Array = np.ndarray[Any, np.dtype[Any]]

BOUNDS = {"fp32": 1e-5, "bf16": 2e-2}
PRECISIONS = pytest.mark.parametrize("precision", BOUNDS)
SEEDS = pytest.mark.parametrize("seed", range(8))


def drawn(name: str, seed: int) -> tuple[list[Any], dict[str, Any]]:
    """Return operands and static arguments of a block, of sizes that nothing divides."""
    generator = np.random.default_rng(seed)

    def upto(most: int) -> int:
        return int(generator.integers(1, most + 1))

    made: list[Param] = []

    def param(*shape: int) -> Param:
        value = generator.standard_normal(shape, np.float32) / np.float32(shape[-1] ** 0.5)
        made.append(Param(f"p{len(made)}", value, trainable=bool(generator.random() < 0.9)))
        return made[-1]

    def maybe(*shape: int) -> Param | None:
        return param(*shape) if generator.random() < 0.5 else None

    lengths = generator.integers(0, (2, 9, 40, 140)[seed % 4], upto(5))
    rows, width = int(lengths.sum()), upto(70)
    x = generator.standard_normal((rows, width), np.float32)
    norm = ("layer", "rms")[seed % 2]
    static: dict[str, Any] = {"norm": norm, "eps": 1e-5}
    norms = [param(width), maybe(width) if norm == "layer" else None]
    if name == "head_loss":
        vocabulary = upto(100)
        targets = generator.integers(0, vocabulary, rows, np.int32)
        weights = generator.random(rows, np.float32)
        return [x, *norms, param(vocabulary, width), targets, weights], static
    static |= {"dropout": (0.0, 0.3)[seed // 2 % 2], "site": upto(9)}
    if name == "mlp_block":
        hidden, gated = upto(90), seed // 2 % 2 == 1
        gate = param(hidden, width) if gated else None
        weights = [gate, param(hidden, width), param(width, hidden), maybe(hidden), maybe(width)]
        return [x, *norms, *weights], static | {"activation": "swiglu" if gated else "gelu"}
    kv_heads, group, turned = upto(3), upto(3), seed % 3 > 0
    size = 2 * upto(20) if turned else upto(40)
    heads = kv_heads * group
    q, k = heads * size, kv_heads * size
    starts = np.cumsum([0, *lengths], dtype=np.int32)
    positions = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]) + np.int32(seed)
    weights = [param(q, width), param(k, width), param(k, width), param(width, q)]
    biases = [maybe(q), maybe(k), maybe(k), maybe(width)]
    static |= {"heads": heads, "kv_heads": kv_heads, "rotary_base": 1e4 if turned else None}
    return [x, positions, starts, *norms, *weights, *biases, None], static


def results(chain: Any, name: str, operands: list[Any], static: Any) -> list[Array]:
    """Return the result, the gradient of x, and those of the parameters, by name."""
    ctx, grads = context(), Grads()
    tape = Tape(OpTable(chain, train=True), ctx)
    out = getattr(tape, name)(*operands, **static)
    dout = operands[-1] if name == "head_loss" else array(*out.shape, seed=5)
    (dx,) = tape.backward(out, dout, grads, wrt=[operands[0]])
    assert dx is not None
    return [out, dx, *(grads.held[name] - 1 for name in sorted(grads.held))]


@PRECISIONS
@SEEDS
@pytest.mark.parametrize("name", [name for name in OPS if name.endswith(("_block", "_loss"))])
def test_odd_sizes(name: str, seed: int, precision: str) -> None:
    operands, static = drawn(name, seed)
    numpy = [("numpy", NUMPY)]
    ours = results([("numba", NUMBA[precision]), *numpy], name, operands, static)
    theirs = results(numpy, name, operands, static)
    scale = max(float(np.abs(b).max(initial=0)) for b in theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        # some gradients are zero but for rounding
        small = 1e-3 * scale * b.size**0.5
        assert np.linalg.norm(a - b) <= BOUNDS[precision] * max(float(np.linalg.norm(b)), small)


BAD = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 1e37, -1e37, 1e-30, 0.0], np.float32)


@pytest.mark.skipif("SPLITBIT_DEBUG" in os.environ, reason="there it is an error")
@pytest.mark.parametrize("bad", BAD, ids=str)
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "linear", "cross_entropy", "attention"])
def test_what_is_not_finite_stays_in_its_row_and_is_seen(name: str, bad: float) -> None:
    """A row with such a number is finite, or not, as NumPy has it; the others are as ever."""
    x, row = array(6, 20), 3
    others = {
        "layer_norm": [Param("w", array(20)), Param("b", array(20))],
        "rms_norm": [Param("w", array(20))],
        "linear": [Param("w", array(20, 20)), None],
        "cross_entropy": [integers(0, 1, 2, 19, 4, 5)],
        "attention": [array(6, 20, seed=1), array(6, 20, seed=2), integers(0, 3, 6), None],
    }[name]
    static = {"eps": 1e-5} if "norm" in name else {}
    if name == "attention":
        static = {"heads": 2, "kv_heads": 2}
    spoilt = x.copy()
    spoilt[row, 7] = bad
    with np.errstate(all="ignore"):
        expected = NUMPY.ops[name].op.forward(context(), spoilt, *others, **static)[0][row]
        clean, found = (
            NUMBA["fp32"].ops[name].op.forward(context(), a, *others, **static)[0]
            for a in (x, spoilt)
        )
    assert (np.isfinite(found[row]) == np.isfinite(expected)).all()
    if np.isfinite(expected).all():
        assert error(found[row].astype(np.float64), expected.astype(np.float64)) < 1e-4
    untouched = [r for r in range(6) if r != row]
    np.testing.assert_array_equal(found[untouched], clean[untouched])
