"""What holds for every op: exact gradients, untouched operands, either precision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from opcheck import Case, Grads, cases, context, numerical_gradient, relative_error

from splitbit_kit.api import OPS, SplitbitError
from splitbit_numpy_backend import attention, linear, memory, table

CASES = cases()
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(params=["whole", "in small pieces"], autouse=True)
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run everything twice: as it is, and with blocks, tiles and slabs of a few rows."""
    if request.param != "whole":
        monkeypatch.setattr(memory, "BLOCK_BYTES", 128)
        monkeypatch.setattr(attention, "TILE", 2)
        monkeypatch.setattr(attention, "SCORE_BYTES", 1)
        monkeypatch.setattr(linear, "DECODED_BYTES", 40)


def upstream(case: Case) -> np.ndarray:
    out = case.forward(context())[0]
    return np.random.default_rng(1).standard_normal(out.shape).astype(out.dtype)


def test_every_primitive_is_here_and_has_a_case() -> None:
    primitives = {name for name, spec in OPS.items() if not spec.fused}
    assert set(table.OPS) == primitives == {case.op for case in CASES}


@every_case
def test_gradients_agree_with_finite_differences(case: Case) -> None:
    dout = upstream(case)
    found, grads = case.backward(context(), dout)
    for operand, gradient in zip(case.activations(), found, strict=True):
        assert gradient.shape == operand.shape
        assert relative_error(gradient, numerical_gradient(case, operand, dout)) < 1e-6
    for param in case.params():
        if param.trainable:
            expected = numerical_gradient(case, param.array, dout)
            assert relative_error(grads.views[param.name], expected) < 1e-6, param.name


@every_case
def test_gradients_are_added_to_what_is_there(case: Case) -> None:
    dout = upstream(case)
    _, fresh = case.backward(context(), dout)
    start = {name: np.full_like(view, 3) for name, view in fresh.views.items()}
    _, added = case.backward(context(), dout, Grads(start))
    for name, view in fresh.views.items():
        np.testing.assert_allclose(added.views[name], view + 3, rtol=1e-12)


@every_case
def test_frozen_parameters_get_no_gradient(case: Case) -> None:
    dout = upstream(case)
    expected, _ = case.backward(context(), dout)
    kept = [(param, param.trainable) for param in case.params()]
    try:
        for param, _ in kept:
            param.trainable = False
        found, grads = case.backward(context(), dout)
    finally:
        for param, trainable in kept:
            param.trainable = trainable
    assert not grads.views
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_operands_are_neither_changed_nor_returned(dtype: type) -> None:
    for case in cases(dtype):
        read = case.arrays()
        before = [array.copy() for array in read]
        ctx = context(dtype)
        out, _ = case.forward(ctx)
        dout = np.ones_like(out)
        dout_before = dout.copy()
        found, grads = case.backward(ctx, dout)
        for array, copy in zip([*read, dout], [*before, dout_before], strict=True):
            np.testing.assert_array_equal(array, copy, err_msg=case.name)
        for result in (out, *found):
            assert not any(np.may_share_memory(result, array) for array in read), case.name
            assert result.flags.c_contiguous, case.name
        for result in (out, *found, *grads.views.values()):
            assert result.dtype == dtype, case.name


def test_float32_agrees_with_float64() -> None:
    for single, double in zip(cases(np.float32), CASES, strict=True):
        np.testing.assert_allclose(
            single.forward(context(np.float32))[0],
            double.forward(context())[0],
            rtol=1e-5,
            atol=1e-5,
            err_msg=single.name,
        )
        dout = upstream(double)
        found, grads = single.backward(context(np.float32), dout.astype(np.float32))
        expected, expected_grads = double.backward(context(), dout)
        for a, b in zip(found, expected, strict=True):
            assert relative_error(a, b) < 1e-5, single.name
        for name, view in expected_grads.views.items():
            assert relative_error(grads.views[name], view) < 1e-5, f"{single.name}: {name}"


@every_case
def test_inference_gives_the_same_result(case: Case) -> None:
    out, _ = case.forward(context(grad=False))
    np.testing.assert_array_equal(out, case.forward(context())[0])


def test_a_wrong_gradient_would_be_found() -> None:
    """The checks above can fail: a gradient off by one part in 10,000 does."""
    case = next(case for case in CASES if case.op == "gelu")
    dout = upstream(case)
    (gradient,), _ = case.backward(context(), dout)
    expected = numerical_gradient(case, case.operands[0], dout)
    assert relative_error(gradient * 1.0001, expected) > 1e-6


@pytest.mark.parametrize("op", ["embedding", "cross_entropy"])
@pytest.mark.parametrize("wrong", [-1, 7])
def test_ids_outside_the_vocabulary_are_named(op: str, wrong: int) -> None:
    case = next(case for case in CASES if case.op == op)
    operands = [
        operand.copy() if isinstance(operand, np.ndarray) else operand for operand in case.operands
    ]
    ids = next(o for o in operands if isinstance(o, np.ndarray) and o.dtype == np.int32)
    ids[1] = wrong
    with pytest.raises(SplitbitError, match=f"{op}: id {wrong} .* vocabulary of 7"):
        replace(case, operands=tuple(operands)).forward(context())
