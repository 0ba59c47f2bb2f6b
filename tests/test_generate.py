"""Which id is chosen, and where a text ends: the parts that need no model."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from splitbit_kit.api import SplitbitError, UsageError
from splitbit_kit.generate import Sampling, StopGate, choose, draw

Array = np.ndarray[Any, np.dtype[Any]]

V = 12
EVERY = np.ones(V, np.bool_)

scores = arrays(np.float32, V, elements=st.floats(-100, 100, width=32))
uniforms = st.floats(0, 1, exclude_max=True)
masks = arrays(np.bool_, V).filter(lambda mask: bool(mask.any()))
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 5e-324, 1e-3, 0.8, 1.0, 1e300]),
    top_k=st.sampled_from([0, 1, 3, V, 10 * V]),
    top_p=st.sampled_from([0.0, 1e-300, 0.5, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.3]),
)


def draws(logits: Array, sampling: Sampling, n: int = 4000, allowed: Array = EVERY) -> Array:
    """Return how often each id was chosen in n draws, as shares."""
    chosen = [choose(logits, [], sampling, draw(7, i), allowed) for i in range(n)]
    return np.bincount(chosen, minlength=len(logits)) / n


# ---- settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", -1),
        ("temperature", -0.1),
        ("temperature", nan),
        ("temperature", inf),
        ("top_k", -1),
        ("top_p", -0.1),
        ("top_p", 1.1),
        ("top_p", nan),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", inf),
        ("seed", -1),
        ("seed", 1 << 64),
        ("stop", ("end", "")),
        ("when_full", "grow"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=name) as error:
        Sampling(**{name: value})
    assert "\n" not in str(error.value)


def test_one_stop_string_may_stand_alone() -> None:
    assert Sampling(stop="end").stop == ("end",)  # type: ignore[arg-type]
    assert Sampling(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]


# ---- the choice


@given(scores, st.lists(st.integers(0, V - 1)), samplings, uniforms, masks)
def test_what_is_chosen_is_allowed_whatever_the_settings(
    logits: Array, history: list[int], sampling: Sampling, uniform: float, allowed: Array
) -> None:
    before = logits.copy()
    chosen = choose(logits, history, sampling, uniform, allowed)
    assert allowed[chosen]
    assert chosen == choose(logits, history, sampling, uniform, allowed)
    assert np.array_equal(logits, before)


@given(scores, uniforms, masks)
@pytest.mark.parametrize("setting", [{"temperature": 0}, {"top_k": 1}, {"top_p": 0.0}])
def test_three_ways_to_the_best_id(
    setting: dict[str, Any], logits: Array, uniform: float, allowed: Array
) -> None:
    best = int(np.argmax(np.where(allowed, logits, -inf)))
    assert choose(logits, [], Sampling(**setting), uniform, allowed) == best


@given(scores, uniforms)
def test_min_p_of_1_keeps_only_the_best(logits: Array, uniform: float) -> None:
    chosen = choose(logits, [], Sampling(min_p=1.0, temperature=1.0), uniform, EVERY)
    assert logits[chosen] == pytest.approx(logits.max(), abs=1e-12)


@given(scores, uniforms, st.integers(V, 10 * V))
def test_top_k_above_the_vocabulary_and_top_p_of_1_are_off(
    logits: Array, uniform: float, top_k: int
) -> None:
    wide = Sampling(top_k=top_k, top_p=1.0, min_p=0.0)
    assert choose(logits, [], wide, uniform, EVERY) == choose(
        logits, [], Sampling(), uniform, EVERY
    )


@given(scores, uniforms, st.integers(1, V))
def test_top_k_keeps_k_even_where_scores_are_equal(logits: Array, uniform: float, k: int) -> None:
    tied = np.round(logits / 50)
    best = np.argsort(-tied, kind="stable")[:k]
    assert choose(tied, [], Sampling(top_k=k, temperature=50.0), uniform, EVERY) in best


def test_frequencies_are_the_probabilities() -> None:
    p = np.array([0.5, 0.25, 0.15, 0.1])
    shares = draws(np.log(p), Sampling(temperature=1.0), allowed=EVERY[:4])
    assert shares == pytest.approx(p, abs=0.03)
    half = p**0.5 / (p**0.5).sum()
    assert draws(np.log(p), Sampling(temperature=2.0), allowed=EVERY[:4]) == pytest.approx(
        half, abs=0.03
    )


@pytest.mark.parametrize(
    ("setting", "kept"),
    [
        ({"top_k": 2}, 2),
        ({"top_p": 0.5}, 1),
        ({"top_p": 0.51}, 2),
        ({"top_p": 0.89}, 3),
        ({"min_p": 0.4}, 2),
        ({"top_k": 3, "top_p": 0.8}, 2),  # of the three: 0.5 + 0.25 is 83 %
        ({"top_k": 3, "min_p": 0.4}, 2),
    ],
)
def test_what_the_filters_keep(setting: dict[str, Any], kept: int) -> None:
    logits = np.log([0.5, 0.25, 0.15, 0.1])
    shares = draws(logits, Sampling(temperature=1.0, **setting), allowed=EVERY[:4])
    assert np.count_nonzero(shares) == kept
    assert shares[:kept].all()


def test_ids_that_are_not_allowed_are_never_chosen_however_good() -> None:
    logits = np.zeros(V)
    logits[:4] = 50
    allowed = EVERY.copy()
    allowed[:4] = False
    shares = draws(logits, Sampling(temperature=5.0), allowed=allowed)
    assert not shares[:4].any()
    assert shares[4:].all()


def test_each_id_has_its_share_of_the_random_numbers() -> None:
    below = np.nextafter(0.5, 0)
    chosen = [choose(np.zeros(2), [], Sampling(), u, EVERY[:2]) for u in (0.0, below, 0.5)]
    assert chosen == [0, 0, 1]


def test_an_allowed_id_without_any_probability_is_never_chosen() -> None:
    logits = np.where(np.arange(V) == 3, 0.0, -inf)
    for uniform in (0.0, 0.5, 1 - 2**-53):
        assert choose(logits, [], Sampling(temperature=1e300), uniform, EVERY) == 3


def test_the_repetition_penalty_divides_what_is_above_0_and_multiplies_what_is_below() -> None:
    greedy = Sampling(temperature=0, repetition_penalty=2.0)
    logits = np.array([3.0, 2.0, -1.0])
    assert choose(logits, [], greedy, 0.0, EVERY[:3]) == 0
    assert choose(logits, [0, 0], greedy, 0.0, EVERY[:3]) == 1  # 1.5 against 2: once, not twice
    assert choose(np.array([-3.0, -2.0]), [1], greedy, 0.0, EVERY[:2]) == 0  # -4
    assert choose(logits, [0], Sampling(temperature=0), 0.0, EVERY[:3]) == 0  # 1 is off


@given(scores, st.sampled_from([nan, inf]), st.integers(0, V - 1), samplings, uniforms)
def test_scores_that_are_no_numbers_are_an_error(
    logits: Array, bad: float, place: int, sampling: Sampling, uniform: float
) -> None:
    logits[place] = bad
    with pytest.raises(SplitbitError, match="finite"):
        choose(logits, [], sampling, uniform, EVERY)


@pytest.mark.parametrize("allowed", [EVERY, ~EVERY])
def test_nothing_to_choose_from_is_an_error(allowed: Array) -> None:
    with pytest.raises(SplitbitError, match="no id can be chosen"):
        choose(np.full(V, -inf), [], Sampling(), 0.5, allowed)


def test_a_penalty_beyond_all_numbers_is_an_error() -> None:
    with pytest.raises(SplitbitError, match="no id can be chosen"):
        choose(np.full(V, -1e10), range(V), Sampling(repetition_penalty=1e308), 0.5, EVERY)


# ---- the random numbers


def test_random_numbers_are_a_function_of_seed_and_place() -> None:
    # recorded: the same seed has to give the same text tomorrow
    assert [draw(1, 0), draw(1, 1), draw(2**64 - 1, 10**9)] == [
        0.30931491118583454,
        0.575300433347867,
        0.958166958615248,
    ]
    many = np.array([draw(5, i) for i in range(2000)])
    assert (many >= 0).all()
    assert (many < 1).all()
    assert many.mean() == pytest.approx(0.5, abs=0.02)
    assert len(set(many)) == len(many)


# ---- stop strings


def reference(text: str, stops: list[str]) -> str:
    """Return the text before the stop string that is complete first, the longest of those."""
    for end in range(len(text) + 1):
        found = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(found)]
    return text


letters = st.text("abé", max_size=30)


@given(letters, st.lists(st.text("abé", min_size=1, max_size=5), max_size=3), st.data())
def test_text_ends_before_a_stop_string_however_it_is_cut(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    gate, out, rest = StopGate(tuple(stops)), "", text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        out += gate.feed(rest[:size])
        assert reference(text, stops).startswith(out)  # nothing is shown that is taken back
        rest = rest[size:]
    out += gate.flush()
    assert out == reference(text, stops)
    assert not any(stop in out for stop in stops)
    assert gate.closed == any(stop in text for stop in stops)


def test_of_two_stop_strings_the_one_that_is_complete_first_counts() -> None:
    for pieces in (["xabc"], ["xa", "bc"], ["xab", "c"]):
        gate = StopGate(("abc", "b"))
        assert "".join(map(gate.feed, pieces)) + gate.flush() == "xa"


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    gate = StopGate(("END", "NN"))
    assert [gate.feed(c) for c in "xEENx"] == ["x", "", "E", "", "ENx"]
    assert gate.feed("EN") == ""
    assert gate.flush() == "EN"
    assert StopGate(()).feed("all") == "all"


def test_after_a_stop_string_nothing_comes() -> None:
    gate = StopGate(("b",))
    assert (gate.feed("abc"), gate.feed("d"), gate.flush()) == ("a", "", "")
