"""Forward passes against their formulas, written once more, number by number."""

from __future__ import annotations

from math import cos, exp, log, pi, sin, sqrt, tanh
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opcheck import context, pack, unpack

from splitbit_kit.api import LowRank, Param
from splitbit_numpy_backend import linear, loss, norms, pointwise, rotary
from splitbit_numpy_backend.dropout import CHUNK, dropout, kept, philox4x32

Array = np.ndarray[Any, np.dtype[Any]]
RNG = np.random.default_rng(2)


def draw(*shape: int) -> Array:
    return RNG.standard_normal(shape)


def test_layer_norm() -> None:
    x, w, b = draw(3, 5), draw(5), draw(5)
    out, _ = norms.layer_norm(context(), x, Param("w", w), Param("b", b), eps=0.1)
    for row, found in zip(x, out, strict=True):
        mean = sum(row) / 5
        std = sqrt(sum((value - mean) ** 2 for value in row) / 5 + 0.1)
        np.testing.assert_allclose(found, [(value - mean) / std for value in row] * w + b)


def test_rms_norm() -> None:
    x, w = draw(3, 5), draw(5)
    out, _ = norms.rms_norm(context(), x, Param("w", w), eps=0.1)
    for row, found in zip(x, out, strict=True):
        rms = sqrt(sum(value * value for value in row) / 5 + 0.1)
        np.testing.assert_allclose(found, row / rms * w)


def test_gelu() -> None:
    x = np.linspace(-12, 12, 101)[None]
    expected = [v / 2 * (1 + tanh(sqrt(2 / pi) * (v + 0.044715 * v**3))) for v in x[0]]
    np.testing.assert_allclose(pointwise.gelu(context(), x)[0][0], expected, atol=1e-15)


def test_swiglu() -> None:
    gate, up = np.linspace(-12, 12, 101)[None], draw(1, 101)
    expected = [g / (1 + exp(-g)) * u for g, u in zip(gate[0], up[0], strict=True)]
    np.testing.assert_allclose(pointwise.swiglu(context(), gate, up)[0][0], expected)


@pytest.mark.parametrize("op", [pointwise.gelu, lambda ctx, x: pointwise.swiglu(ctx, x, x + 1)])
def test_large_activations_stay_finite(op: Any) -> None:
    x = np.array([[-1e4, -200, 0, 200, 1e4]], np.float32)
    out, _ = op(context(), x)
    assert np.isfinite(out).all()
    assert out[0, 0] == 0


def test_linear() -> None:
    x, w, b = draw(3, 5), draw(7, 5), draw(7)
    expected = np.einsum("ni,oi->no", x, w) + b
    np.testing.assert_allclose(
        linear.linear(context(), x, Param("w", w), Param("b", b))[0], expected
    )


def test_low_rank_linear_is_linear_with_the_sum() -> None:
    x, w, a, b = draw(3, 5), draw(7, 5), draw(2, 5), draw(7, 2)
    handle = Param("w", LowRank(Param("w0", w), Param("a", a), Param("b", b), 0.5))
    np.testing.assert_allclose(
        linear.linear(context(), x, handle)[0], x @ (w + 0.5 * b @ a).T, atol=1e-12
    )


def test_packed_weights_read_as_they_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "DECODED_BYTES", 2 * 4 * 5)
    packed = pack(draw(7, 5))
    dense, x, ids = unpack(packed, 0, 7), draw(3, 5), np.array([6, 0, 6], np.int32)
    decoded = []

    def count(packed: Any, start: int, stop: int) -> Array:
        decoded.append(stop - start)
        return unpack(packed, start, stop)

    ctx = context()
    ctx.unpack = count
    handle = Param("w", packed, trainable=False)
    np.testing.assert_allclose(linear.linear(ctx, x, handle)[0], x @ dense.T.astype(float))
    assert decoded == [2, 2, 2, 1]  # a few rows at a time
    np.testing.assert_array_equal(linear.embedding(ctx, ids, handle)[0], dense[ids])
    assert decoded[4:] == [1, 1]  # the two distinct rows


def test_rotary() -> None:
    x, positions = draw(2, 12), np.array([3, 1000], np.int32)
    out, _ = rotary.rotary(context(), x, positions, heads=2, base=500.0)
    for n, position in enumerate(positions.tolist()):
        for h in range(2):
            for i in range(3):
                a, b = x[n, 6 * h + i], x[n, 6 * h + 3 + i]
                t = position * 500.0 ** (-2 * i / 6)
                turned = (a * cos(t) - b * sin(t), b * cos(t) + a * sin(t))
                np.testing.assert_allclose((out[n, 6 * h + i], out[n, 6 * h + 3 + i]), turned)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000))
def test_rotary_depends_on_the_distance_only(p: int, q: int, shift: int) -> None:
    x = np.random.default_rng(p).standard_normal((2, 8))

    def product(*positions: int) -> float:
        turned, _ = rotary.rotary(context(), x, np.array(positions, np.int32), heads=1)
        return float(turned[0] @ turned[1])

    assert product(p, q) == pytest.approx(product(p + shift, q + shift), abs=1e-9)


def test_cross_entropy() -> None:
    logits, targets = draw(3, 5), np.array([4, 0, 2], np.int32)
    losses, _ = loss.cross_entropy(context(), logits, targets)
    for row, target, found in zip(logits, targets, losses, strict=True):
        assert found == pytest.approx(log(sum(exp(value) for value in row)) - row[target])


@settings(deadline=None, max_examples=25)
@given(st.floats(-1e4, 1e4))
def test_cross_entropy_does_not_mind_a_shift(shift: float) -> None:
    logits, targets = np.linspace(-2, 2, 6)[None], np.array([1], np.int32)
    near, _ = loss.cross_entropy(context(), logits, targets)
    far, _ = loss.cross_entropy(context(), logits + shift, targets)
    np.testing.assert_allclose(far, near, rtol=1e-9)


@pytest.mark.parametrize(
    ("counter", "seed", "expected"),
    [  # Random123's kat_vectors: philox4x32 10
        ("00000000 00000000 00000000 00000000", 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            0x299F31D0_A4093822,
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_known_answers(counter: str, seed: int, expected: str) -> None:
    words = [np.array([int(word, 16)], np.uint64) for word in counter.split()]
    found = philox4x32(*words, seed=seed)
    assert [f"{int(word[0]):08x}" for word in found] == expected.split()


def philox_in_python(counter: list[int], seed: int) -> list[int]:
    key0, key1 = seed % 2**32, seed // 2**32
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * counter[0], 2**32)
        high2, low2 = divmod(0xCD9E8D57 * counter[2], 2**32)
        counter = [high2 ^ counter[1] ^ key0, low2, high0 ^ counter[3] ^ key1, low0]
        key0, key1 = (key0 + 0x9E3779B9) % 2**32, (key1 + 0xBB67AE85) % 2**32
    return counter


def test_dropout_keeps_the_elements_that_the_contract_says() -> None:
    shape, rate, seed = (4 * CHUNK // 5 + 3, 7), 0.3, 2**40 + 5  # more than one chunk, odd
    x = np.ones(shape, np.float32)
    ctx = context(seed=seed, step=11, micro_batch=2)
    out = dropout(ctx, x, rate=rate, site=9)[0].reshape(-1)
    for i in [0, 1, 2, 3, 4, 4 * CHUNK - 1, 4 * CHUNK, 4 * CHUNK + 1, x.size - 2, x.size - 1]:
        word = philox_in_python([i // 4, 9, 11, 2], seed)[i % 4]
        assert out[i] == pytest.approx(1 / 0.7 if word >= int(rate * 2**32) else 0)
    assert (out > 0).mean() == pytest.approx(1 - rate, abs=0.01)


def test_dropout_differs_by_seed_site_step_and_micro_batch() -> None:
    def mask(site: int = 1, **place: int) -> bytes:
        return bytes(kept(context(**place), (16, 16), 0.5, site))

    masks = {mask(), mask(seed=1), mask(seed=2**32), mask(2), mask(step=1), mask(micro_batch=1)}
    assert len(masks) == 6
    assert mask() == mask()
