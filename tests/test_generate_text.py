"""Whole texts from small models: the cache, the window, characters, and how a text ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine.chains import chain
from hypothesis import given
from hypothesis import strategies as st

from splitbit_kit.api import (
    OPS,
    Backend,
    Context,
    Op,
    OpOffer,
    PackedTensor,
    Site,
    SplitbitError,
    UsageError,
)
from splitbit_kit.compute import Compute
from splitbit_kit.engine.params import ParameterStore
from splitbit_kit.engine.tape import Tape
from splitbit_kit.generate import Sampling, Window, beginning, generate, one_sequence
from splitbit_kit.models.config import ModelConfig
from splitbit_kit.models.decoder import Decoder, parameter_specs
from splitbit_kit.text.tokenizer import Tokenizer

Array = np.ndarray[Any, np.dtype[Any]]

CONTEXT = 16
BYTES = Tokenizer.train("byte", [])
V = BYTES.vocab_size
EVERY = np.ones(V, np.bool_)
GPT2 = ModelConfig("gpt2", layers=2, heads=2, width=16, context=CONTEXT, bias=True)
LLAMA = ModelConfig("llama", layers=2, heads=4, kv_heads=2, width=16, hidden=24, context=CONTEXT)
FAMILIES = pytest.mark.parametrize("config", [GPT2, LLAMA], ids=lambda config: config.family)
GREEDY = Sampling(temperature=0)


def unpack(packed: PackedTensor, start: int, stop: int) -> Array:
    raise NotImplementedError


def numpy_compute(precision: str = "fp64", *ahead: tuple[str, Backend]) -> Compute:
    """Return the NumPy backend as a computation, with other backends ahead of it if given."""
    return Compute((*ahead, *chain("numpy", precision)), precision, 1, unpack)


COMPUTE = numpy_compute()


def random_decoder(config: ModelConfig, vocabulary: int = V) -> Decoder:
    """Return a model with weights so large that its scores differ clearly."""
    specs = parameter_specs(config, vocabulary)
    params = ParameterStore(specs, np.float64)
    params.initialise([replace(spec, std=10 * spec.std) for spec in specs], seed=3)
    return Decoder(config, params)


def scripted_decoder(script: list[int], vocabulary: int = V) -> Decoder:
    """Return a model that puts script[p] after the token at position p, whatever that is."""
    n = len(script) + 1  # a layer norm of width 1 would leave nothing
    config = ModelConfig("gpt2", layers=1, heads=1, width=n, context=n, tied=False)
    specs = parameter_specs(config, vocabulary)
    params = ParameterStore(specs, np.float64)
    params.initialise([replace(spec, std=0.0, fill=spec.fill) for spec in specs], seed=0)
    params["pos.weight"].array[...] = np.eye(n)
    params["head.weight"].array[script, range(len(script))] = 9.0
    return Decoder(config, params)


def uncached(decoder: Decoder, ids: list[int]) -> Array:  # -> (N, V)
    """Return the scores after each token, computed without a cache."""
    table = COMPUTE.table(train=False)
    return decoder.logits(Tape(table, COMPUTE.context()), one_sequence(ids))


def text(decoder: Decoder, prompt: str, sampling: Sampling, **more: Any) -> str:
    more = {"seen": EVERY, **more}
    return "".join(generate(decoder, COMPUTE, BYTES, prompt, sampling, **more))


# ---- the cache


@FAMILIES
@pytest.mark.parametrize("length", [1, CONTEXT - 1, CONTEXT, CONTEXT + 1, 2 * CONTEXT])
def test_scores_with_the_cache_are_those_without(config: ModelConfig, length: int) -> None:
    decoder = random_decoder(config)
    ids = np.random.default_rng(length).integers(0, V, length + 20).tolist()
    window = Window(decoder, COMPUTE, COMPUTE.table(train=False), CONTEXT)
    window_of_prompt = ids[:length] if length <= CONTEXT else ids[length - CONTEXT // 2 : length]
    fed = ids[:length]
    for i in range(20):  # far enough for the window to slide twice
        found = window.read(fed)
        assert len(window.tokens) <= CONTEXT
        assert window.tokens == ids[: length + i][-len(window.tokens) :]
        if i == 0:
            assert window.tokens == window_of_prompt
        expected = uncached(decoder, window.tokens)[-1]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
        fed = [ids[length + i]]


@FAMILIES
@pytest.mark.parametrize("length", [CONTEXT - 1, CONTEXT, CONTEXT + 1, 2 * CONTEXT])
def test_prompts_about_as_long_as_the_context(config: ModelConfig, length: int) -> None:
    decoder = random_decoder(config)
    prompt = "".join(map(chr, np.random.default_rng(length).integers(65, 90, length)))
    notices: list[str] = []
    found = text(decoder, prompt, Sampling(3, 0, when_full="slide"), notify=notices.append)

    used = prompt if length <= CONTEXT else prompt[-(CONTEXT - 1) :]
    assert len(notices) == (length > CONTEXT)
    assert all(f"{length} tokens" in line and f"last {CONTEXT - 1}" in line for line in notices)
    window = BYTES.encode(used).tolist()
    chosen = []
    for _ in range(3):
        chosen.append(int(np.argmax(uncached(decoder, window)[-1])))
        window.append(chosen[-1])
        if len(window) > CONTEXT:
            window = window[-(CONTEXT // 2) :]
    expected = BYTES.stream()
    assert found == "".join(map(expected.feed, chosen))


@FAMILIES
def test_a_text_goes_on_past_the_context(config: ModelConfig) -> None:
    decoder = random_decoder(config)
    ascii_only = EVERY & (np.arange(V) < 128)
    found = text(decoder, "once", Sampling(5 * CONTEXT, seed=1), seen=ascii_only)
    assert len(found) == 5 * CONTEXT


def test_a_context_of_one_token_slides() -> None:
    decoder = random_decoder(replace(LLAMA, context=1))
    ascii_only = EVERY & (np.arange(V) < 128)
    assert len(text(decoder, "once", Sampling(4, seed=1), seen=ascii_only)) == 4


def test_when_full_refuse_is_an_error_before_anything_is_generated() -> None:
    decoder = random_decoder(LLAMA)
    calls: list[int] = []
    with pytest.raises(UsageError, match=f"context of {CONTEXT}; use --max-tokens 6 or less"):
        generate(  # not even begun
            decoder,
            COMPUTE,
            BYTES,
            "x" * 10,
            Sampling(7, when_full="refuse"),
            seen=EVERY,
            check=lambda: calls.append(1),
        )
    with pytest.raises(UsageError, match="shorter prompt"):
        text(decoder, "x" * (CONTEXT + 1), Sampling(1, when_full="refuse"))
    assert not calls
    ascii_only = EVERY & (np.arange(V) < 128)
    fits = Sampling(6, seed=1, when_full="refuse")
    assert len(text(decoder, "x" * 10, fits, seen=ascii_only)) == 6


class OtherCache:
    """A cache of another backend's attention, which counts how often it is made."""

    made = 0

    def __new__(cls, **shape: Any) -> Any:
        cls.made += 1
        (_, numpy), *_ = chain("numpy", "fp64")
        make = numpy.ops["attention"].make_cache
        assert make is not None
        return make(**shape)


def attention_only(make_cache: Any, op: str = "attention") -> Backend:
    """Return a backend whose attention, or whole attention block, is NumPy's, with a cache only."""

    def accepts(site: Site) -> str | None:
        return None if "cache" in site.operands else "only with a cache"

    def forward(ctx: Context, *operands: Any, **static: Any) -> tuple[Array, None]:
        tape = Tape(COMPUTE.table(train=False), ctx)
        return tape.call(OPS[op], operands, static), None

    return Backend({op: OpOffer(Op(forward, None), accepts, make_cache)}, {}, "fp64")


@pytest.mark.parametrize("op", ["attention", "attention_block"])
def test_caches_come_from_whoever_owns_the_attention(op: str) -> None:
    compute = numpy_compute("fp64", ("other", attention_only(OtherCache, op)))
    decoder, before = random_decoder(LLAMA), OtherCache.made
    pieces = generate(decoder, compute, BYTES, "a", Sampling(9, seed=1), seen=EVERY)
    assert "".join(pieces) == text(decoder, "a", Sampling(9, seed=1))
    assert OtherCache.made == before + LLAMA.layers


def test_an_offer_that_takes_a_cache_and_makes_none_is_named() -> None:
    compute = numpy_compute("fp64", ("other", attention_only(None)))
    with pytest.raises(SplitbitError, match="backend other: attention takes a cache"):
        generate(random_decoder(LLAMA), compute, BYTES, "a", Sampling(2), seen=EVERY)


def test_a_given_table_is_used() -> None:
    table = COMPUTE.table(train=False)
    text(random_decoder(LLAMA), "a", Sampling(1), table=table)
    assert table.resolved


# ---- what is drawn


@FAMILIES
def test_the_same_seed_gives_the_same_text(config: ModelConfig) -> None:
    decoder = random_decoder(config)
    one, again, other = (text(decoder, "a", Sampling(40, seed=seed)) for seed in (1, 1, 2))
    assert one == again != other
    assert text(decoder, "a", Sampling(40)) != text(decoder, "a", Sampling(40))


def test_the_beginning_does_not_depend_on_how_much_is_asked_for() -> None:
    decoder = random_decoder(LLAMA)
    assert text(decoder, "a", Sampling(40, seed=1)).startswith(
        text(decoder, "a", Sampling(10, seed=1))
    )


def test_temperature_0_takes_the_best_whatever_the_seed() -> None:
    decoder = random_decoder(LLAMA)
    assert text(decoder, "a", replace(GREEDY, seed=1)) == text(
        decoder, "a", replace(GREEDY, seed=2)
    )


def test_ids_that_were_not_in_the_training_text_never_come() -> None:
    decoder = random_decoder(LLAMA)
    seen = np.zeros(V, np.bool_)
    seen[[ord(c) for c in "abc"]] = True
    found = text(decoder, "xyz é", Sampling(300, temperature=5.0, seed=1), seen=seen)
    assert set(found) == set("abc")


def test_padded_ids_never_come() -> None:
    padded = V + 7
    decoder = scripted_decoder([V + 3] * 8, padded)  # a padded id is the best by far
    seen = np.ones(padded, np.bool_)
    assert 0 < len(text(decoder, "a", Sampling(50, temperature=9.0, seed=1), seen=seen)) <= 50


def test_the_repetition_penalty_reaches_prompt_and_text() -> None:
    decoder = scripted_decoder(list(b"aaaa"))
    seen = EVERY & np.isin(np.arange(V), list(b"abc"))
    penalty = replace(GREEDY, max_tokens=3, repetition_penalty=1e6)
    decoder.params["head.weight"].array[ord("b"), :2] = 1.0  # the next best
    assert text(decoder, "x", replace(penalty, repetition_penalty=1.0), seen=seen) == "aaa"
    assert text(decoder, "x", replace(penalty, max_tokens=2), seen=seen) == "ab"
    assert text(decoder, "a", replace(penalty, max_tokens=1), seen=seen) == "b"


# ---- how it begins and ends


def test_an_empty_prompt_begins_after_end_of_text() -> None:
    decoder = random_decoder(LLAMA)
    best = int(np.argmax(uncached(decoder, [BYTES.end_of_text])[-1][:128]))
    ascii_only = EVERY & ((np.arange(V) < 128) | (np.arange(V) == BYTES.end_of_text))
    assert text(decoder, "", replace(GREEDY, max_tokens=1), seen=ascii_only) == chr(best)


def test_what_stands_before_a_document_is_no_repetition() -> None:
    decoder = scripted_decoder([BYTES.end_of_text, *b"abc"])
    decoder.params["head.weight"].array[ord("b"), :2] = 1.0  # the next best
    assert text(decoder, "", replace(GREEDY, repetition_penalty=1e6)) == ""


def test_where_end_of_text_was_never_seen_a_new_line_begins() -> None:
    seen = EVERY.copy()
    assert beginning(BYTES, seen) == [BYTES.end_of_text]
    seen[BYTES.end_of_text] = False
    assert beginning(BYTES, seen) == [ord("\n")]
    seen[ord("\n")] = False
    assert beginning(BYTES, seen) == [BYTES.end_of_text]


def test_end_of_text_ends_it_and_is_not_shown() -> None:
    decoder = scripted_decoder([*b"abc", BYTES.end_of_text, *b"def"])
    assert text(decoder, "x", GREEDY) == "abc"


def test_no_tokens_are_no_text() -> None:
    assert text(random_decoder(LLAMA), "a", Sampling(0)) == ""


def test_characters_of_many_bytes_come_whole() -> None:
    said = "é €uro 日本 🙂!"
    script = list(said.encode())
    decoder = scripted_decoder(script)
    pieces = list(
        generate(decoder, COMPUTE, BYTES, "x", replace(GREEDY, max_tokens=len(script)), seen=EVERY)
    )
    assert pieces == list(said)
    cut = replace(GREEDY, max_tokens=4)  # in the middle of the euro sign
    assert text(decoder, "x", cut) == "é "


@given(st.text("abé€", min_size=1, max_size=15), st.lists(st.text("abé€", min_size=1), max_size=3))
def test_a_stop_string_ends_the_text_before_it(said: str, stops: list[str]) -> None:
    script = list(said.encode())
    decoder = scripted_decoder(script)
    greedy = replace(GREEDY, max_tokens=len(script))
    whole = text(decoder, "x", greedy)
    assert whole == said
    found = text(decoder, "x", replace(greedy, stop=tuple(stops)))
    ends = [(said.index(s) + len(s), said.index(s)) for s in stops if s in said]
    assert found == (said[: min(ends)[1]] if ends else said)


def test_stop_strings_in_the_prompt_do_not_count() -> None:
    assert text(scripted_decoder(list(b"..abc")), "ab", replace(GREEDY, max_tokens=2, stop=("ab",)))


def test_after_a_stop_string_nothing_is_computed() -> None:
    calls: list[int] = []
    stop = replace(GREEDY, stop=("b",))
    decoder = scripted_decoder(list(b"abcdef"))
    assert text(decoder, "x", stop, check=lambda: calls.append(1)) == "a"
    assert len(calls) == 2


def test_check_is_asked_before_each_token_and_may_end_it() -> None:
    calls: list[int] = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt

    pieces = generate(
        scripted_decoder(list(b"abcdefgh")), COMPUTE, BYTES, "x", GREEDY, seen=EVERY, check=check
    )
    assert [next(pieces) for _ in range(3)] == ["a", "b", "c"]
    with pytest.raises(KeyboardInterrupt):
        next(pieces)


def test_weights_that_went_astray_are_an_error() -> None:
    decoder = random_decoder(LLAMA)
    decoder.params["norm.weight"].array[0] = np.nan
    with pytest.raises(SplitbitError, match="finite"):
        text(decoder, "a", Sampling(1))
