"""Curves: what is kept when there are more values than pixels."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitbit_kit.report.curve import BUCKETS, Curve, smooth


def filled(pairs):
    curve = Curve()
    for step, value in pairs:
        curve.add(step, value)
    return curve


def test_a_short_curve_is_kept_as_it_is():
    curve = filled([(3, 1.0), (1, 5.0), (2, -4.0)])
    points = curve.points()
    assert curve.exact
    assert points.step.tolist() == [1, 2, 3]
    assert points.mean.tolist() == points.low.tolist() == points.high.tolist() == [5, -4, 1]


def test_nothing_is_a_curve_of_no_points():
    assert Curve().points().step.size == 0


def test_a_long_curve_keeps_its_extremes_its_mean_and_little_else():
    values = np.random.default_rng(1).normal(size=50_000)
    values[[12_345, 40_001]] = 90, -80
    curve = filled(enumerate(values.tolist()))
    points = curve.points()
    assert BUCKETS / 2 <= points.step.size <= BUCKETS
    assert not curve.exact
    assert (points.high.max(), points.low.min()) == (90, -80)
    peak = points.step[points.high.argmax()]
    assert abs(peak - 12_345) <= 50_000 / points.step.size
    # every bucket but the last has as many values
    assert np.average(points.mean[:-1]) == pytest.approx(values[:49_920].mean(), abs=1e-3)
    assert (points.low <= points.mean).all() and (points.mean <= points.high).all()
    assert (np.diff(points.step) > 0).all()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**53), st.floats(-1e9, 1e9)), max_size=60))
def test_any_steps_in_any_order(pairs):
    points = filled(pairs).points()
    assert points.step.size <= len(pairs)
    if pairs:
        values = [value for _, value in pairs]
        assert (points.low.min(), points.high.max()) == (min(values), max(values))


def test_steps_far_apart_take_no_room():
    curve = filled([(step**4, float(step)) for step in range(3_000)])
    assert len(curve) <= BUCKETS
    assert curve.points().high.max() == 2999


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308])
def test_what_is_not_finite_is_counted_and_named(value):
    curve = filled([(1, 2.0), *((step, value) for step in range(2, 9))])
    assert curve.points().mean.tolist() == [2.0]
    assert (curve.lost, curve.lost_count) == ([2, 3, 4], 7)


def test_smoothing_is_a_centred_mean_and_does_not_lag():
    line = np.arange(100.0)
    found = smooth(line, np.ones(100), 10)
    np.testing.assert_allclose(found[:90], line[:90])  # a straight line stays where it is
    assert found[-1] == np.mean(line[89:])
    noisy = np.random.default_rng(2).normal(size=2_000)
    assert smooth(noisy, np.ones(2_000), 50)[50:].std() < 0.15 * noisy.std()


def test_smoothing_weighs_buckets_by_their_counts():
    totals, counts = np.array([10.0, 0.0, 0.0]), np.array([1.0, 4.0, 5.0])
    assert smooth(totals, counts, 1)[1] == pytest.approx(1.0)
