"""The border: whatever an op is given that it should not be is an error, before a kernel runs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from splitbit_kit.api import OPS, Context, Hardware, Param, SplitbitError
from splitbit_kit.engine.optable import OpTable
from splitbit_kit.engine.params import ParameterStore, ParamSpec
from splitbit_kit.engine.workspace import BufferPool

table = pytest.importorskip("splitbit_numba_backend.table")
from splitbit_numba_backend import threads  # noqa: E402
from splitbit_numba_backend.border import operands_of  # noqa: E402

Array = np.ndarray[Any, np.dtype[Any]]

HARDWARE = Hardware(2, 2, 1 << 34, "light")
NUMBA = {precision: table.build(HARDWARE, precision, 2) for precision in ("fp32", "bf16")}
ERRORS = (ValueError, SplitbitError)


def array(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape, np.float32)


def param(*shape: int) -> Param:
    return Param("w", array(*shape))


def integers(*values: int) -> Array:
    return np.array(values, np.int32)


N, C, HIDDEN, V = 5, 8, 12, 11
BLOCK = {"norm": "layer", "eps": 1e-5, "dropout": 0.0, "site": 1}
HEADS = {"heads": 4, "kv_heads": 2}
ROWS, STARTS, IDS = integers(0, 1, 2, 0, 1), integers(0, 3, 5), integers(0, 10, 3, 3, 7)
CALLS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "embedding": ([IDS, param(V, C)], {}),
    "layer_norm": ([array(N, C), param(C), param(C)], {"eps": 1e-5}),
    "rms_norm": ([array(N, C), param(C)], {"eps": 1e-5}),
    "linear": ([array(N, C), param(7, C), param(7)], {}),
    "rotary": ([array(N, C), ROWS], {"heads": 2, "base": 1e4}),
    "attention": ([array(N, C), array(N, 4), array(N, 4), STARTS, None], HEADS),
    "gelu": ([array(N, C)], {}),
    "swiglu": ([array(N, C), array(N, C)], {}),
    "add": ([array(N, C), array(N, C)], {}),
    "dropout": ([array(N, C)], {"rate": 0.5, "site": 2}),
    "cross_entropy": ([array(N, V), IDS], {}),
    "attention_block": (
        [
            array(N, C),
            ROWS,
            STARTS,
            param(C),
            param(C),
            param(C, C),
            param(4, C),
            param(4, C),
            param(C, C),
            param(C),
            param(4),
            param(4),
            param(C),
            None,
        ],
        {**BLOCK, **HEADS, "rotary_base": 1e4},
    ),
    "mlp_block": (
        [
            array(N, C),
            param(C),
            param(C),
            param(HIDDEN, C),
            param(HIDDEN, C),
            param(C, HIDDEN),
            param(HIDDEN),
            param(C),
        ],
        {**BLOCK, "activation": "swiglu"},
    ),
    "head_loss": (
        [array(N, C), param(C), param(C), param(V, C), IDS, array(N)],
        {"norm": "layer", "eps": 1e-5},
    ),
}


def context(grad: bool = True) -> Context:
    return Context(BufferPool(), grad=grad)


@pytest.fixture
def no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test fail where a kernel would be run."""

    def run(pool: Any, address: int, args: int) -> None:
        raise AssertionError("a kernel was run")

    monkeypatch.setattr(threads.Pool, "run", run)


def call(name: str, *changes: tuple[str, Any], **static: Any) -> Any:
    """Make a good call, but for these operands, by name, and these static arguments."""
    operands, fixed = CALLS[name]
    changed = dict(changes)
    given = [changed.get(o, v) for o, v in zip(OPS[name].operands, operands, strict=False)]
    return NUMBA["fp32"].ops[name].op.forward(context(), *given, **{**fixed, **static})


def misaligned(a: Array) -> Array:
    """Return the same array, one byte off the place that its elements want."""
    memory = np.zeros(a.nbytes + 8, np.uint8)
    start = 1 - memory.ctypes.data % 4 % 4
    copy = memory[start % 8 : start % 8 + a.nbytes].view(a.dtype).reshape(a.shape)
    copy[...] = a
    assert not copy.flags.aligned
    return copy


def spoilt(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a caller might pass by mistake in place of a good operand."""
    a = value.value if isinstance(value, Param) else value
    other = np.float64 if a.dtype == np.float32 else np.int64
    wrong = {
        "a longer": np.concatenate([a, a[:1]]),
        "a shorter": a[:-1],
        "no": a[:0],
        "one dimension more": a[None],
        "one dimension less": a.reshape(-1) if a.ndim > 1 else a[0],
        "another type": a.astype(other),
        "other bytes": a.astype(a.dtype.newbyteorder()),
        "every second": np.repeat(a, 2, axis=0)[::2],
        "backwards": a[::-1],
        "misaligned": misaligned(a),
        "a list": a.tolist(),
    }
    if a.ndim > 1:
        wrong["a wider"] = np.concatenate([a, a[:, :1]], axis=1)
        wrong["a narrower"] = np.ascontiguousarray(a[:, 1:])
        wrong["turned"] = np.ascontiguousarray(a.T).T
        wrong["no width"] = a[:, :0]
    for what, bad in wrong.items():
        if isinstance(value, Param) and what in ("a list", "one dimension less"):
            continue  # a handle always holds an array; a scalar one is not worth a case
        yield what, Param("w", bad) if isinstance(value, Param) else bad
    yield "nothing", None
    yield "an integer", 3
    yield (
        "a handle" if not isinstance(value, Param) else "an array",
        (a if isinstance(value, Param) else Param("w", a)),
    )


RESIZED = {"a longer": 0, "a shorter": 0, "no": 0, "a wider": 1, "a narrower": 1, "no width": 1}
"""what a spoilt operand has of another size: its rows or its columns"""


@pytest.mark.usefixtures("no_kernel")
@pytest.mark.parametrize("name", CALLS)
def test_every_operand_is_checked(name: str) -> None:
    operands = operands_of(name)
    letters = Counter("".join(operand.shape for operand in operands))
    for operand, value in zip(operands, CALLS[name][0], strict=False):
        if value is None:
            continue
        for what, bad in spoilt(value):
            if bad is None and operand.kind[-1] == "?":
                continue
            if what in RESIZED and letters[operand.shape[RESIZED[what]]] == 1:
                continue  # any size will do
            with pytest.raises((*ERRORS, TypeError, AttributeError)):
                pytest.fail(f"{operand.name}, {what}: {call(name, (operand.name, bad))}")


def test_good_calls_reach_the_kernels(no_kernel: None) -> None:
    for name in CALLS:
        with pytest.raises(AssertionError, match="a kernel was run"):
            call(name)


@pytest.mark.usefixtures("no_kernel")
@pytest.mark.parametrize(
    ("name", "changes", "static", "message"),
    [
        ("linear", {"x": array(2, 5)}, {}, r"x is float32 of shape \(2, 5\); .* \(2, 8\)"),
        ("swiglu", {"up": array(N, 4)}, {}, r"up is .* of shape \(5, 4\); .* \(5, 8\) is expected"),
        ("gelu", {"x": array(C, N).T}, {}, "not C-contiguous"),
        ("embedding", {"ids": integers(0, V)}, {}, "id 11 is outside the vocabulary of 11"),
        ("embedding", {"ids": integers(-1, 0)}, {}, "id -1 is outside"),
        ("cross_entropy", {"targets": integers(0, 0, 0, 0, V)}, {}, "id 11 is outside"),
        ("head_loss", {"targets": integers(0, -7, 0, 0, 0)}, {}, "id -7 is outside"),
        ("attention", {"starts": integers(0, 4)}, {}, "starts must rise from 0 to 5"),
        ("attention", {"starts": integers(1, 5)}, {}, "starts must rise from 0 to 5"),
        ("attention", {"starts": integers(0, 4, 2, 5)}, {}, "starts must rise"),
        # the difference of the two in the middle wraps, and is positive
        ("attention", {"starts": integers(0, 2**31 - 1, -5, 5)}, {}, "starts must rise"),
        ("attention_block", {"starts": integers(0, 2**31 - 1, -5, 5)}, {}, "starts must rise"),
        ("attention", {"starts": integers(0)}, {}, "starts must rise"),
        ("attention", {}, {"heads": 3}, "3 heads do not divide 8 columns"),
        ("attention", {}, {"heads": 0}, "0 heads do not divide"),
        ("attention", {}, {"heads": -4}, "-4 heads do not divide"),
        ("attention", {}, {"kv_heads": 0}, "0 key heads"),
        ("attention", {}, {"kv_heads": 4}, "4 key heads; 4 columns of k are for 2 of size 2"),
        ("attention", {}, {"kv_heads": 3}, "3 key heads"),
        ("attention_block", {}, {"heads": 8, "kv_heads": 4}, "not of even size"),
        ("attention_block", {"positions": integers(0, 1, 2, 0, -1)}, {}, "position -1 is not in 0"),
        ("attention_block", {"positions": integers(0, 1, 2, 0, 1 << 20)}, {}, "position 1048576"),
        ("attention_block", {}, {"norm": "batch"}, "norm: layer, or rms without a bias"),
        ("attention_block", {}, {"norm": "rms"}, "norm: layer, or rms without a bias"),
        ("attention_block", {}, {"dropout": 1.0}, r"lies in \[0, 1\), not 1.0"),
        ("mlp_block", {}, {"dropout": -0.1}, r"lies in \[0, 1\), not -0.1"),
        ("mlp_block", {}, {"activation": "gelu"}, "activation: gelu, or swiglu with a gate"),
        ("mlp_block", {}, {"activation": "relu"}, "not 'relu'"),
        ("head_loss", {}, {"norm": ""}, "norm: layer"),
        ("rotary", {}, {"heads": 8}, "not of even size"),
        ("rotary", {"positions": integers(0, 0, 0, 0, -3)}, {}, "position -3 is not in 0"),
        ("dropout", {}, {"rate": float("nan")}, "not nan"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(name: str, changes: Any, static: Any, message: str) -> None:
    with pytest.raises(ERRORS, match=message):
        call(name, *changes.items(), **static)


@pytest.mark.usefixtures("no_kernel")
def test_too_few_and_too_many_operands() -> None:
    forward = NUMBA["fp32"].ops["linear"].op.forward
    with pytest.raises(ValueError, match="linear: 1 operands; x, w, b are expected"):
        forward(context(), array(2, 3))
    with pytest.raises(ValueError, match="linear: 4 operands; x, w, b are expected"):
        forward(context(), array(2, 3), param(2, 3), None, None)


def test_values_nobody_knows_are_declined() -> None:
    chain = [("numba", NUMBA["fp32"])]
    for static in ({"activation": "relu"}, {"norm": "batch"}):
        operands, fixed = CALLS["mlp_block"]
        resolved = OpTable(chain, train=True).resolve(
            OPS["mlp_block"], tuple(operands), {**fixed, **static}
        )
        assert resolved.op is None
        assert "expected, not" in resolved.declined[0]


# ---- the way back


class Grads:
    """Gradients of any shape."""

    def __init__(self, view: Array) -> None:
        self.view = view

    def into(self, param: Param) -> tuple[Array, bool]:
        return self.view, False

    def add(self, param: Param, gradient: Array) -> None:
        raise AssertionError("an op that writes its gradient in place has none to add")


def test_a_gradient_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    op, weight = NUMBA["fp32"].ops["embedding"].op, param(V, C)
    assert op.backward is not None
    out, saved = op.forward(context(), IDS, weight)
    good, grads = np.zeros_like(out), Grads(np.zeros((V, C), np.float32))
    for bad in (good[:-1], good[:, 1:], good.astype(np.float64), good.T.copy().T, None):
        with pytest.raises(ValueError, match="embedding: the gradient of the result is"):
            op.backward(context(), bad, saved, grads)  # type: ignore[arg-type]
    frozen = np.zeros((V, C), np.float32)
    frozen.flags.writeable = False
    for view in (grads.view[1:], grads.view.T, grads.view.astype(np.float64), frozen):
        with pytest.raises(ValueError, match="w: its gradient is no plain array"):
            op.backward(context(), good, saved, Grads(view))
    op.backward(context(), good, saved, grads)


def test_without_grad_there_is_no_way_back() -> None:
    op = NUMBA["fp32"].ops["gelu"].op
    assert op.backward is not None
    out, saved = op.forward(context(grad=False), array(2, 3))
    with pytest.raises(ValueError, match="gelu: its forward pass kept nothing"):
        op.backward(context(), out, saved, None)  # type: ignore[arg-type]


def test_weights_that_change_in_between_are_an_error() -> None:
    op, weight = NUMBA["fp32"].ops["rms_norm"].op, param(C)
    assert op.backward is not None
    for change in ("version", "value"):
        out, saved = op.forward(context(), array(N, C), weight, eps=1e-5)
        if change == "version":
            weight.version += 1
        else:
            weight.value = array(C).copy()
        with pytest.raises(ValueError, match="rms_norm: w has changed since the forward pass"):
            op.backward(context(), out, saved, Grads(np.zeros(C, np.float32)))


def test_ids_that_change_in_between_do_no_harm() -> None:
    op, weight, ids = NUMBA["fp32"].ops["embedding"].op, param(V, C), IDS.copy()
    assert op.backward is not None
    out, saved = op.forward(context(), ids, weight)
    ids[:] = 1 << 30
    grads = Grads(np.zeros((V, C), np.float32))
    op.backward(context(), np.ones_like(out), saved, grads)
    np.testing.assert_array_equal(grads.view[:, 0], np.bincount(IDS, minlength=V))


# ---- caches


def cache(precision: str = "fp32", capacity: int = 6) -> Any:
    make = NUMBA[precision].ops["attention"].make_cache
    assert make is not None
    return make(sequences=2, capacity=capacity, kv_heads=2, head_size=2, dtype=np.float32)


def attend(precision: str, held: Any, **static: int) -> Any:
    operands = [*CALLS["attention"][0][:4], held]
    op = NUMBA[precision].ops["attention"].op
    return op.forward(context(grad=False), *operands, **{**HEADS, **static})


@pytest.mark.usefixtures("no_kernel")
def test_caches_that_do_not_fit_are_errors() -> None:
    for ours, other in (("fp32", "bf16"), ("bf16", "fp32")):
        with pytest.raises(ValueError, match="made for another precision"):
            attend(ours, cache(other))
    with pytest.raises(ValueError, match="3 tokens exceed the cache's capacity of 2"):
        attend("fp32", cache(capacity=2))
    with pytest.raises(ValueError, match="is the cache of another backend"):
        attend("fp32", [1, 2])


def test_a_cache_is_not_cut_below_nothing() -> None:
    held = cache()
    with pytest.raises(ValueError, match="cannot be cut to -1 tokens"):
        held.truncate(-1)
    assert held.lengths.tolist() == [0, 0]


# ---- flat buffers


@pytest.mark.usefixtures("no_kernel")
def test_flat_buffers_are_checked() -> None:
    flat, params = NUMBA["fp32"].flat, ParameterStore([ParamSpec("w", (4, 16), decay=True)])
    good = params.zeros()
    frozen = good.copy()
    frozen.flags.writeable = False
    adamw = {
        "step": 1, "lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1,
        "grad_scale": 1.0,
    }  # fmt: skip
    sgd = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0, "grad_scale": 1.0}
    lion = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "grad_scale": 1.0}
    for bad in (good[1:], good[::2], good.astype(np.float64), good[None], frozen):
        for place in range(3):
            arrays = [good] * 3
            arrays[place] = bad
            with pytest.raises(ValueError, match=r"adamw: \w+ is no plain float32 array"):
                flat["adamw"](params, *arrays, **adamw)
        for place in range(2):
            arrays = [good] * 2
            arrays[place] = bad
            with pytest.raises(ValueError, match=r"sgd: \w+ is no plain float32 array"):
                flat["sgd"](params, *arrays, **sgd)
        for place in range(2):
            arrays = [good] * 2
            arrays[place] = bad
            with pytest.raises(ValueError, match=r"lion: \w+ is no plain float32 array"):
                flat["lion"](params, *arrays, **lion)
    matrix = np.zeros((4, 16), np.float32)
    for bad in (good, matrix.T, matrix[:, 1:], matrix.astype(np.float64), matrix[:0], matrix[None]):
        with pytest.raises(ValueError, match="orthogonalize: x is no plain float32 matrix"):
            flat["orthogonalize"](bad, steps=5)
    for bad in (good[::2], good.astype(np.float64), good[None]):
        with pytest.raises(ValueError, match="squared_norm: x is no plain float32 array"):
            flat["squared_norm"](bad)


# ---- several Python threads


@pytest.mark.parametrize("workers", [1, 2])
def test_two_python_threads_do_not_share_scratch_memory(workers: int) -> None:
    """Each makes products of other sizes, so that scratch memory grows while the other runs."""
    backend = table.build(HARDWARE, "fp32", workers)
    op = backend.ops["linear"].op
    shapes = [(40, 40 * n, 65) for n in range(1, 16)]
    cases = [(array(n, i), Param("w", array(o, i))) for n, i, o in shapes]
    expected = [table.build(HARDWARE, "fp32", 1).ops["linear"].op.forward(context(), *case)[0]
                for case in cases]  # fmt: skip
    wrong: list[str] = []

    def use(order: int) -> None:
        ctx = context()
        for _ in range(20):
            for case, right in list(zip(cases, expected, strict=True))[::order]:
                if op.forward(ctx, *case)[0].tobytes() != right.tobytes():
                    wrong.append(f"{case[0].shape}")

    users = [threading.Thread(target=use, args=(order,)) for order in (1, -1)]
    for user in users:
        user.start()
    for user in users:
        user.join(120)
    assert not wrong
