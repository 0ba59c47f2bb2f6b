"""Charts: axes on which everything is seen, and what is said to those who do not see."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitbit_kit.report.chart import Axis, Layer, chart, figure


def layer(values, name="loss", **more):
    y = np.array(values, np.float64)
    return Layer(name, 0, np.arange(1.0, y.size + 1), y, **more)


def places(element):
    """Return all numbers of all paths of a chart."""
    paths = [path.get("d").strip("MZ") for path in element.iter("path")]
    return [float(n) for path in paths for point in path.split("L") for n in point.split()]


sizes = st.floats(-1e300, 1e300, allow_nan=False)


@settings(deadline=None)
@given(st.lists(sizes, min_size=1, max_size=8), st.booleans(), st.booleans())
def test_any_values_are_drawn_inside_the_chart(values, from_zero, may_be_log):
    drawn = chart("t", [layer(values)], from_zero=from_zero, may_be_log=may_be_log)
    assert all(-0.1 <= place <= 1000.1 for place in places(drawn))
    labels = list(drawn.iter("text"))
    assert 1 <= len(labels) <= 16
    for label in labels:
        assert "nan" not in label.text and "inf" not in label.text


@pytest.mark.parametrize(
    ("axis", "ticks"),
    [
        (Axis(0, 10), [0, 2, 4, 6, 8, 10]),
        (Axis(0.13, 0.86), [0.2, 0.4, 0.6, 0.8]),
        (Axis(-1, 1), [-1, -0.5, 0, 0.5, 1]),
        (Axis(0.7, 16, log=True), [1, 2, 5, 10]),
        (Axis(0.05, 5000, log=True), [0.1, 1, 10, 100, 1000]),
        (Axis(1e-9, 1e9, log=True), [1e-9, 1e-5, 1e-1, 1e3, 1e7]),
    ],
)
def test_ticks_are_round(axis, ticks):
    assert axis.ticks() == pytest.approx(ticks)


def test_a_log_axis_only_where_the_values_span_decades():
    spread, close, negative = [0.1, 1, 50], [1, 2, 3], [-1, 1, 50]
    for values, log in ((spread, True), (close, False), (negative, False)):
        drawn = chart("Norm", [layer(values)], may_be_log=True)
        assert ("logarithmic" in "".join(drawn.itertext())) == log


def test_a_band_holds_its_extremes():
    y = np.array([2.0, 2.0])
    band = Layer("raw", 0, np.array([1.0, 2.0]), y, band=(y - 1, y + 5))
    drawn = chart("Loss", [band])
    ys = places(drawn)[1::2]
    low, high = 1 - 6 * 0.06, 7 + 6 * 0.06
    expected = [1000 * (1 - (v - low) / (high - low)) for v in (7, 7, 1, 1)]
    assert ys == pytest.approx(expected, abs=0.1)


def test_it_says_in_words_and_in_data_what_it_shows():
    drawn = chart("Loss", [layer([5, 2, 3])])
    svg = next(drawn.iter("svg"))
    assert (svg.get("role"), svg.find("title").text) == ("img", "Loss")
    said = "loss: 5 at step 1, 3 at step 3, lowest 2 at step 2."
    assert svg.find("desc").text == said
    (told,) = json.loads(svg.get("data-layers"))
    assert told == {"name": "loss", "x": [1, 2, 3], "y": ["5", "2", "3"]}


def test_a_single_value_is_a_dot_with_its_number():
    drawn = chart("Loss", [layer([2.5])])
    (dot,) = drawn.iter("circle")
    assert dot.find("title").text == "loss at step 1: 2.500"
    assert list(drawn.iter("path")) == []


def test_no_values_at_all():
    assert "No values." in "".join(chart("Loss", [layer([])]).itertext())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (2.34567, "2.346"),
        (7, "7"),
        (0.003, "0.003"),
        (0.00012345, "0.000123"),
        (-4.5, "-4.500"),
        (12345.6, "12,346"),
        (3e12, "3e+12"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_figures_have_four_digits(value, text):
    assert figure(value) == text
