"""Schedules: those of PyTorch and the papers, exact at both ends, pure, clear about bad options."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitbit_kit.bundled.schedulers import (
    constant,
    cosine,
    inverse_sqrt,
    linear,
    schedulers,
    wsd,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "schedules.json"
RECORDED = json.loads(GOLDEN.read_text("utf-8"))["rates"]
BUILD = {offer.name: offer.build for offer in schedulers()}
ALL = pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
ENDING = pytest.mark.parametrize("build", [cosine, linear, wsd])

# as in tests/golden/record_schedules.py
STEPS, WARMUP, DECAY, LR, FLOOR = 20, 4, 6, 3e-3, 2e-4
OPTIONS: dict[str, dict[str, Any]] = {
    "cosine": {"min_lr": FLOOR},
    "linear": {"min_lr": FLOOR},
    "wsd": {"min_lr": FLOOR, "decay_steps": DECAY, "decay": "linear"},
    "constant": {},
}


@pytest.mark.parametrize("name", RECORDED)
def test_twenty_steps_are_those_of_pytorch(name: str) -> None:
    schedule = BUILD[name](LR, STEPS, warmup_steps=WARMUP, **OPTIONS[name])
    assert [schedule(n) for n in range(STEPS)] == pytest.approx(RECORDED[name], rel=1e-12)


def test_inverse_sqrt_is_that_of_the_paper() -> None:
    # lr = d^-0.5 min(s^-0.5, s W^-1.5) for s from 1 on; here from the end of the warm-up on step n
    # is the paper's s = n, as in fairseq, so that the first after the warm-up has the peak too
    width, warmup = 512, 4
    peak = width**-0.5 * warmup**-0.5
    paper = [width**-0.5 * min(s**-0.5, s * warmup**-1.5) for s in range(1, 21)]
    schedule = inverse_sqrt(peak, 20, warmup_steps=warmup)
    rates = [schedule(n) for n in range(21)]
    assert rates == pytest.approx([*paper[:warmup], *paper[warmup - 1 :]], rel=1e-12)
    assert schedule(warmup - 1) == schedule(warmup) == peak
    assert schedule(4 * warmup) == pytest.approx(peak / 2)


def test_wsd_decays_as_the_papers_do() -> None:
    def last(decay: Any, floor: float) -> list[float]:
        schedule = wsd(1.0, 20, warmup_steps=2, decay_steps=8, decay=decay, min_lr=floor)
        assert [schedule(n) for n in range(1, 12)] == [1.0] * 11
        return [schedule(n) for n in range(12, 20)]

    # MiniCPM: f = 0.5^((s - S) / T); here T = 2 steps, which makes 0.5^4 in eight
    assert last("exponential", 0.5**4) == pytest.approx([0.5 ** (k / 2) for k in range(1, 9)])
    # Hägele et al.: f = 1 - sqrt((n - (N - N_decay)) / N_decay)
    assert last("1-sqrt", 0.0) == pytest.approx([1 - math.sqrt(k / 8) for k in range(1, 9)])


def test_wsd_is_alike_in_runs_of_any_length_until_it_decays() -> None:
    short, long = wsd(1.0, 50, warmup_steps=5), wsd(1.0, 500, warmup_steps=5)
    assert [short(n) for n in range(40)] == [long(n) for n in range(40)]
    assert [n for n in range(50) if short(n) < 1][4:] == list(range(40, 50))  # a fifth


def test_wsd_may_decay_not_at_all_or_all_the_time() -> None:
    assert [wsd(1.0, 5, warmup_steps=2, decay_steps=0)(n) for n in range(5)] == [0.5, 1, 1, 1, 1]
    schedule = wsd(1.0, 5, warmup_steps=2, decay_steps=2, decay="linear", min_lr=0.5)
    assert [schedule(n) for n in range(6)] == [0.5, 1.0, 1.0, 0.75, 0.5, 0.5]


@ENDING
def test_warm_up_peak_and_end(build: Callable[..., Any]) -> None:
    # mlx#2617, nanoGPT#443: warm-up 100, cosine over 1,000
    lr, floor = 6e-4, 6e-5
    schedule = build(lr, 1000, warmup_steps=100, min_lr=floor)
    assert schedule(0) == lr / 100
    assert schedule(49) == lr * 0.5
    assert schedule(99) == schedule(100) == lr
    assert schedule(98) < lr > schedule(801)
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
@pytest.mark.parametrize("build", [cosine, linear])
def test_runs_of_a_few_steps(build: Callable[..., Any], steps: int, warmup: int) -> None:
    schedule = build(1.0, steps, warmup_steps=warmup, min_lr=0.1)
    rates = [schedule(n) for n in range(steps)]
    assert rates[0] > 0
    assert max(rates) == (1.0 if warmup <= steps else steps / warmup)
    if steps > max(1, warmup):
        assert rates[-1] == 0.1


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 9])
@ALL
def test_defaults_suit_runs_of_a_few_steps(build: Callable[..., Any], steps: int) -> None:
    rates = [build(1.0, steps)(n) for n in range(steps + 1)]
    assert rates[0] == 1.0  # steps // 10 is 0: there is no warm-up
    assert all(0.1 - 1e-15 <= rate <= 1 for rate in rates)


@given(
    build=st.sampled_from([cosine, linear]),
    lr=st.floats(1e-9, 10),
    steps=st.integers(1, 3000),
    warmup=st.integers(0, 400),
    share=st.floats(0, 1),
)
def test_the_rate_rises_then_falls_between_its_bounds(
    build: Callable[..., Any], lr: float, steps: int, warmup: int, share: float
) -> None:
    floor = lr * share
    schedule = build(lr, steps, warmup_steps=warmup, min_lr=floor)
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


@given(
    lr=st.floats(1e-9, 10),
    steps=st.integers(1, 300),
    warmup=st.integers(0, 400),
    last=st.integers(0, 300),
    share=st.floats(0.001, 1),
    decay=st.sampled_from(["linear", "1-sqrt", "exponential"]),
)
def test_wsd_falls_between_its_bounds(
    lr: float, steps: int, warmup: int, last: int, share: float, decay: Any
) -> None:
    floor, last = lr * share, min(last, max(0, steps - warmup - 1))
    schedule = wsd(lr, steps, warmup_steps=warmup, decay_steps=last, decay=decay, min_lr=floor)
    rates = [schedule(n) for n in range(max(steps, warmup) + 1)]
    assert rates[:warmup] == sorted(rates[:warmup])
    assert rates[0] > 0
    slack = lr * 1e-12  # rounding
    assert all(floor - slack <= rate <= lr + slack for rate in rates[warmup:])
    assert all(b <= a + slack for a, b in pairwise(rates[warmup:]))
    if steps > warmup:
        assert all(rate == lr for rate in rates[warmup : steps - last])
        assert last == 0 or rates[steps - 1] == floor


@ALL
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
    ],
)
@ALL
def test_options_out_of_range_are_refused_by_name(
    build: Callable[..., Any], name: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=f"^{name}: "):
        build(**{"lr": 1e-3, "steps": 10, **options})


@pytest.mark.parametrize("floor", [-1e-6, 2e-3, math.nan])
@ENDING
def test_a_floor_out_of_range_is_refused(build: Callable[..., Any], floor: float) -> None:
    with pytest.raises(ValueError, match=r"^min_lr: "):
        build(1e-3, 10, min_lr=floor)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decay_steps": -1}, r"decay_steps: -1 does not lie in 0 \.\. 7, what 2 steps of warm-up"),
        ({"decay_steps": 8}, "decay_steps: 8 does not lie"),
        ({"decay": "sudden"}, "decay: 'sudden' is not one of exponential, linear, 1-sqrt"),
        ({"decay": "exponential", "min_lr": 0.0}, "min_lr: an exponential decay never comes to 0"),
    ],
)
def test_options_of_wsd(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wsd(1e-3, 10, warmup_steps=2, **options)


def test_inverse_sqrt_without_a_warm_up_is_refused() -> None:
    with pytest.raises(ValueError, match=r"warmup_steps: 0, but .* give 1 or more"):
        inverse_sqrt(1e-3, 10, warmup_steps=0)
