"""Schedules: exact at both ends, pure, and clear about bad options."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitbit_kit.bundled.schedulers import constant, cosine


def test_warm_up_peak_and_end() -> None:
    # mlx#2617, nanoGPT#443: warm-up 100, cosine over 1,000
    lr, floor = 6e-4, 6e-5
    schedule = cosine(lr, 1000, warmup_steps=100, min_lr=floor)
    assert schedule(0) == lr / 100
    assert schedule(49) == lr * 0.5
    assert schedule(99) == schedule(100) == lr
    assert schedule(98) < lr > schedule(101)
    assert schedule(999) == floor
    assert schedule(1000) == schedule(10**9) == floor


def test_half_way_down_is_the_mean() -> None:
    assert cosine(1.0, 1001, warmup_steps=0, min_lr=0.5)(500) == pytest.approx(0.75)
    # a quarter of the way: (1 + cos(pi / 4)) / 2
    assert cosine(1.0, 1001, warmup_steps=0, min_lr=0.0)(250) == pytest.approx(0.8535533905932737)


def test_defaults_are_a_tenth() -> None:
    assert cosine(1.0, 50)(49) == pytest.approx(0.1)
    assert [cosine(1.0, 50)(n) for n in (0, 3, 4, 5)] == [0.2, 0.8, 1.0, 1.0]
    assert cosine(1.0, 10**6)(98) == 0.99  # at most 100 steps of warm-up
    assert cosine(1.0, 9)(0) == 1.0


def test_constant_stays() -> None:
    schedule = constant(0.3, 10, warmup_steps=2)
    assert [schedule(n) for n in (0, 1, 2, 9, 100)] == [0.15, 0.3, 0.3, 0.3, 0.3]


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("warmup", [0, 1, 2, 3, 5])
def test_runs_of_a_few_steps(steps: int, warmup: int) -> None:
    schedule = cosine(1.0, steps, warmup_steps=warmup, min_lr=0.1)
    rates = [schedule(n) for n in range(steps)]
    assert rates[0] > 0
    assert max(rates) == (1.0 if warmup <= steps else steps / warmup)
    if steps > max(1, warmup):
        assert rates[-1] == 0.1


@given(
    lr=st.floats(1e-9, 10),
    steps=st.integers(1, 3000),
    warmup=st.integers(0, 400),
    share=st.floats(0, 1),
)
def test_the_rate_rises_then_falls_between_its_bounds(
    lr: float, steps: int, warmup: int, share: float
) -> None:
    floor = lr * share
    schedule = cosine(lr, steps, warmup_steps=warmup, min_lr=floor)
    rates = [schedule(n) for n in range(steps + 2)]
    rising, falling = rates[:warmup], rates[warmup:]
    assert rising == sorted(rising)
    assert all(0 < rate <= lr for rate in rising)
    slack = lr * 1e-15  # rounding of the weighted sum
    assert all(floor - slack <= rate <= lr + slack for rate in falling)
    if steps > warmup + 1:
        assert rates[warmup] == lr  # to the bit, at both ends
        assert rates[steps - 1] == floor
    assert all(b <= a + slack for a, b in pairwise(falling))


@pytest.mark.parametrize("build", [cosine, constant])
def test_a_schedule_is_a_pure_function_of_the_step(build: Callable[..., Any]) -> None:
    forwards = build(1e-3, 30, warmup_steps=7)
    backwards = build(1e-3, 30, warmup_steps=7)
    rates = [forwards(n) for n in range(30)]
    assert [backwards(n) for n in reversed(range(30))] == rates[::-1]
    assert [forwards(n) for n in range(30)] == rates


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lr", {"lr": 0.0}),
        ("lr", {"lr": -1e-3}),
        ("lr", {"lr": math.nan}),
        ("lr", {"lr": math.inf}),
        ("steps", {"steps": 0}),
        ("warmup_steps", {"warmup_steps": -1}),
        ("min_lr", {"min_lr": -1e-6}),
        ("min_lr", {"min_lr": 2e-3}),
        ("min_lr", {"min_lr": math.nan}),
    ],
)
def test_options_out_of_range_are_refused_by_name(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{name}: "):
        cosine(**{"lr": 1e-3, "steps": 10, **options})
    if name != "min_lr":
        with pytest.raises(ValueError, match=f"^{name}: "):
            constant(**{"lr": 1e-3, "steps": 10, **options})
