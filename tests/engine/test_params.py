"""The flat parameter store and the flat gradient."""

from __future__ import annotations

import numpy as np
import pytest

from splitbit_kit.api import LowRank, Param, SplitbitError
from splitbit_kit.engine.params import GradientBuffer, ParameterStore, ParamSpec
from splitbit_kit.engine.workspace import ALIGNMENT

SPECS = [
    ParamSpec("bias", (5,), fill=0.5),
    ParamSpec("decayed", (3, 7), std=0.1, decay=True),
    ParamSpec("plain", (2, 2), std=0.2),
    ParamSpec("scale", (1,), fill=1.0),
    ParamSpec("decayed too", (4, 4), std=0.3, decay=True),
]
BOTH = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def offset(params: ParameterStore, name: str) -> int:
    """Return the byte at which a parameter begins in the flat buffer."""
    return params[name].array.ctypes.data - params.values.ctypes.data


def gaps(params: ParameterStore) -> np.ndarray:
    """Return which entries of a flat array belong to no parameter."""
    used = params.zeros()
    for param in params:
        params.view(used, param)[...] = 1
    return used == 0


@BOTH
def test_decayed_matrices_come_first_and_vectors_last(dtype: type) -> None:
    params = ParameterStore(SPECS, dtype)
    assert [p.name for p in params] == ["decayed", "decayed too", "plain", "bias", "scale"]
    assert [p.decay for p in params] == [True, True, False, False, False]
    size = np.dtype(dtype).itemsize
    assert params.decayed * size == offset(params, "plain")
    assert params.matrices * size == offset(params, "bias")
    assert params.count == 5 + 21 + 4 + 1 + 16


@BOTH
def test_parameters_are_aligned_views_and_the_gaps_are_zero(dtype: type) -> None:
    params = ParameterStore(SPECS, dtype)
    params.initialise(SPECS, seed=1)
    for param in params:
        assert param.array.ctypes.data % ALIGNMENT == 0
        assert np.shares_memory(param.array, params.values)
        assert param.array.dtype == dtype
    assert gaps(params).sum() == params.values.size - params.count > 0
    assert not params.values[gaps(params)].any()


def test_a_store_may_lack_matrices_or_vectors() -> None:
    vectors = ParameterStore([ParamSpec("v", (3,))])
    assert (vectors.decayed, vectors.matrices) == (0, 0)
    matrices = ParameterStore([ParamSpec("m", (3, 3))])
    assert (matrices.decayed, matrices.matrices) == (0, matrices.values.size)
    assert ParameterStore([]).values.size == 0


def test_weights_depend_on_seed_and_name_alone() -> None:
    def values(specs: list[ParamSpec], seed: int, dtype: type = np.float32) -> dict[str, bytes]:
        params = ParameterStore(specs, dtype)
        params.initialise(specs, seed)
        return {p.name: p.array.astype(np.float32).tobytes() for p in params}

    one = values(SPECS, seed=1)
    assert one == values(SPECS[::-1], seed=1)
    assert one == values(SPECS, seed=1, dtype=np.float64)
    other = values(SPECS, seed=2)
    assert [name for name in one if one[name] != other[name]] == ["decayed", "decayed too", "plain"]
    assert one["decayed"] != one["decayed too"]


def test_fp64_starts_from_the_weights_of_fp32() -> None:
    # a deviation that is a NumPy number would take the product to float64
    specs = [ParamSpec("w", (9, 9), std=0.02 / np.sqrt(6)), ParamSpec("v", (9, 9), std=0.02)]
    single, double = ParameterStore(specs, np.float32), ParameterStore(specs, np.float64)
    for params in (single, double):
        params.initialise(specs, seed=1)
    np.testing.assert_array_equal(single.values[:81], double.values[:81])
    np.testing.assert_array_equal(single["v"].array, double["v"].array)


def test_initialisation_has_the_deviation_asked_for() -> None:
    specs = [ParamSpec("w", (300, 300), std=0.02)]
    params = ParameterStore(specs)
    params.initialise(specs, seed=1)
    assert params["w"].array.std() == pytest.approx(0.02, rel=0.02)
    assert abs(params["w"].array.mean()) < 0.001


def test_versions_rise_with_every_change() -> None:
    params = ParameterStore(SPECS)
    arrays = {spec.name: np.ones(spec.shape, np.float32) for spec in SPECS}
    changes = (
        lambda: params.initialise(SPECS, seed=1),
        lambda: params.load(arrays, "x"),
        params.updated,
    )
    for change in changes:
        before = params.version
        change()
        assert params.version == before + 1
        assert {p.version for p in params} == {params.version}


def test_load_copies_by_name_and_keeps_the_gaps_zero() -> None:
    params = ParameterStore(SPECS)
    arrays = {spec.name: np.full(spec.shape, i, np.float64) for i, spec in enumerate(SPECS)}
    params.load(arrays, "some file")
    assert params["plain"].array.tolist() == [[2, 2], [2, 2]]
    assert not params.values[gaps(params)].any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"plain": None}, "some file: tensor plain is missing"),
        ({"stranger": np.zeros(2)}, "some file.*stranger"),
        ({"plain": np.zeros((2, 2), np.int64)}, "some file.*plain.*int64"),
        ({"plain": np.zeros((2, 3))}, r"some file: tensor plain has shape \(2, 3\).*\(2, 2\)"),
    ],
)
def test_load_names_what_does_not_fit(change: dict, message: str) -> None:
    arrays = {spec.name: np.zeros(spec.shape) for spec in SPECS} | change
    arrays = {name: array for name, array in arrays.items() if array is not None}
    with pytest.raises(SplitbitError, match=message):
        ParameterStore(SPECS).load(arrays, "some file")


def test_frozen_parameters_lie_beside_the_buffer() -> None:
    frozen = Param("plain", np.ones((2, 2), np.float32), trainable=False)
    params = ParameterStore(SPECS, frozen={"plain": frozen})
    params.initialise(SPECS, seed=1)
    assert params["plain"] is params.get("plain") is frozen
    assert "plain" not in [p.name for p in params]
    assert params.count == 5 + 21 + 1 + 16
    assert frozen.array.tolist() == [[1, 1], [1, 1]]
    assert params.get("no such") is None
    with pytest.raises(KeyError):
        params["no such"]


def test_a_low_rank_handle_has_the_shape_of_its_base() -> None:
    a, b = Param("a", np.zeros((2, 7))), Param("b", np.zeros((3, 2)))
    low_rank = Param("w", LowRank(Param("base", np.zeros((3, 7))), a, b, 0.5))
    assert low_rank.shape == (3, 7)
    with pytest.raises(TypeError, match="w: an array is needed, not LowRank"):
        low_rank.array  # noqa: B018


# ---- gradients


def test_parts_are_runs_of_neighbours_with_everything_in_its_place() -> None:
    specs = [
        ParamSpec("tok", (5, 3), decay=True),
        ParamSpec("a", (2, 2), decay=True, hidden=True),
        ParamSpec("b", (3, 7), decay=True, hidden=True),
        ParamSpec("head", (5, 3), decay=True),
        ParamSpec("table", (4, 4)),
        ParamSpec("norm", (3,)),
    ]
    params = ParameterStore(specs)
    params.initialise([ParamSpec(s.name, s.shape, std=1.0) for s in specs], 1)
    other = np.arange(params.values.size)
    for chosen in (lambda p: p.hidden, lambda p: not p.hidden, lambda p: p.name != "head"):
        parts = params.parts(chosen)
        assert [p for _, part in parts for p in part] == [p for p in params if chosen(p)]
        for place, part in parts:
            assert np.shares_memory(part.values, params.values)
            assert np.array_equal(part.values, params.values[place])
            decayed = np.arange(params.values.size)[place] < params.decayed
            assert part.decayed == decayed.sum()
            assert part.matrices == (other[place] < params.matrices).sum()
            assert part.version == params.version
            for param in part:
                assert np.array_equal(part.view(part.values, param), param.array)
                assert np.array_equal(part.view(other[place], param), params.view(other, param))
    (_, head), (_, rest) = params.parts(lambda p: not p.hidden)
    assert [len(list(part)) for part in (head, rest)] == [1, 3]
    ((place, inner),) = rest.parts(lambda p: p.name == "table")  # a part has parts too
    assert np.array_equal(inner.values, rest.values[place])
    assert params.parts(lambda p: False) == []


def test_only_matrices_are_hidden() -> None:
    with pytest.raises(ValueError, match=r"b: hidden is a matrix, not shape \(3,\)"):
        ParameterStore([ParamSpec("b", (3,), hidden=True)])


def test_the_first_contribution_overwrites_and_later_ones_add() -> None:
    params = ParameterStore(SPECS)
    grads = GradientBuffer(params)
    grads.flat[...] = np.nan  # rubbish of an earlier step
    for _ in range(2):
        grads.begin()
        for expected in (1.0, 2.0, 3.0):
            place = grads.into(params["plain"])
            assert place is not None
            view, accumulate = place
            assert accumulate is (expected > 1)
            if accumulate:
                view += 1
            else:
                view[...] = 1
            grads.add(params["bias"], np.ones(5, np.float32))
            assert grads["plain"].tolist() == [[expected] * 2] * 2
            assert grads["bias"].tolist() == [expected] * 5


def test_begin_touches_no_memory() -> None:
    params = ParameterStore(SPECS)
    grads = GradientBuffer(params)
    grads.flat[...] = 7
    grads.begin()
    assert (grads.flat == 7).all()


def test_finish_clears_what_nobody_wrote_and_nothing_else() -> None:
    params = ParameterStore(SPECS)
    grads = GradientBuffer(params)
    for param in params:
        grads[param.name][...] = np.nan
    grads.begin()
    grads.add(params["decayed"], np.ones((3, 7), np.float32))
    grads.finish()
    assert grads["decayed"].sum() == 21
    assert np.count_nonzero(grads.flat) == 21
    assert not grads.flat[gaps(params)].any()


def test_frozen_parameters_take_no_gradient() -> None:
    frozen = Param("plain", np.ones((2, 2), np.float32), trainable=False)
    params = ParameterStore(SPECS, frozen={"plain": frozen})
    grads = GradientBuffer(params)
    grads.begin()
    assert grads.into(frozen) is None
    grads.add(frozen, np.ones((2, 2)))
    grads.finish()
    assert not grads.flat.any()


def test_the_first_bad_gradient_is_named() -> None:
    params = ParameterStore(SPECS)
    grads = GradientBuffer(params)
    assert grads.first_bad() is None
    grads["bias"][2] = np.inf
    grads["plain"][0, 0] = np.nan
    assert grads.first_bad() == "plain"
