"""Text from a model, token by token: what it sees, which id is chosen, where the text ends.

Everything random comes from (seed, place of the token): the same seed gives the same text, whatever
was generated before, as long as the backend computes the same scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from secrets import randbits
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitbit_kit.api import CacheMaker, KVCache, OpSpec, SplitbitError, UsageError
from splitbit_kit.compute import Compute
from splitbit_kit.engine.optable import CacheStub, OpTable, Planner, Stub
from splitbit_kit.engine.tape import Tape
from splitbit_kit.models.decoder import Decoder
from splitbit_kit.text.tokenizer import Tokenizer

Array = np.ndarray[Any, np.dtype[Any]]
Mask = NDArray[np.bool_]

WHEN_FULL = ("slide", "refuse")

_DRAWS = 2  # use of the generator: 0 and 1 are the training data's shifts and orders


@dataclass(frozen=True)
class Sampling:
    """How a text is drawn. Raises UsageError naming the first setting that makes no sense.

    In this order: repetition_penalty divides positive scores and multiplies negative ones of ids
    that are in the text already (Keskar et al. 2019, https://arxiv.org/abs/1909.05858; 1 is off).
    temperature divides all scores; 0 takes the best id each time. top_k keeps that many of the
    likeliest (0: all), top_p the fewest that together have this probability (Holtzman et al. 2020,
    https://arxiv.org/abs/1904.09751; 1: all), min_p those with at least this share of the
    likeliest one's probability (Nguyen et al. 2024, https://arxiv.org/abs/2407.01082; 0: all). The
    likeliest id is always kept.

    The text ends after max_tokens, at end-of-text, or before the first of the strings in `stop`.

    when_full says what happens when the model's context is full. "slide": the newest half of the
    context is kept and the text goes on from there, so that it may be as long as wanted; of a
    prompt that is too long the last context - 1 tokens are used. "refuse": a prompt that does not
    leave room for max_tokens is an error, before anything is generated.
    """

    max_tokens: int = 200
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None  # None: another text each time
    stop: tuple[str, ...] = ()
    when_full: str = "slide"

    def __post_init__(self) -> None:
        for name in ("max_tokens", "temperature", "top_k"):
            value = getattr(self, name)
            if not 0 <= value < inf:
                raise UsageError(f"{name}: {value} is not a number from 0 on")
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise UsageError(f"{name}: {value} is not between 0 and 1")
        if not 0 < self.repetition_penalty < inf:
            raise UsageError(
                f"repetition_penalty: {self.repetition_penalty} is not above 0; 1 is off"
            )
        if self.seed is not None and not 0 <= self.seed < 1 << 64:
            raise UsageError(f"seed: {self.seed} is not between 0 and 2^64 - 1")
        if self.when_full not in WHEN_FULL:
            raise UsageError(f"when_full: {self.when_full!r} is not one of {', '.join(WHEN_FULL)}")
        object.__setattr__(
            self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        )
        if "" in self.stop:
            raise UsageError("stop: an empty string would end every text before it begins")


def generate(
    decoder: Decoder,
    compute: Compute,
    tokenizer: Tokenizer,
    prompt: str,
    sampling: Sampling,
    *,
    seen: Mask,  # (V,)
    check: Callable[[], None] = lambda: None,
    table: OpTable | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> Iterator[str]:
    """Return an iterator over the text that follows the prompt, in pieces of whole characters.

    An empty prompt is the beginning of a document. seen: the ids of the training text; no others
    are chosen. check() is called before each token and may raise to give up. table: an inference
    table to use, if there is one already. Raises UsageError at once if the prompt has no room (see
    `Sampling.when_full`).
    """
    tokens = tokenizer.encode(prompt).tolist()
    context = decoder.config.context
    first = _fitted(tokens or beginning(tokenizer, seen), context, sampling, notify)
    if sampling.seed is None:
        sampling = replace(sampling, seed=randbits(64))
    size = min(context, len(first) + sampling.max_tokens)
    window = Window(decoder, compute, table or compute.table(train=False), size)
    allowed = np.zeros(decoder.tok.shape[0], np.bool_)
    allowed[: tokenizer.vocab_size] = seen[: tokenizer.vocab_size]  # not the padding
    history = first if tokens else []  # what we put before a document is not text
    ids = _ids(window, first, history, sampling, allowed, tokenizer.end_of_text, check)
    return _texts(ids, tokenizer, sampling.stop)


def beginning(tokenizer: Tokenizer, seen: Mask) -> list[int]:
    """Return the ids before the first word of a document: end-of-text, which stands between them.

    Where the training text was a single document there was no end-of-text to learn from; a new line
    takes its place.
    """
    newline: list[int] = tokenizer.encode("\n").tolist()
    if not seen[tokenizer.end_of_text] and seen[newline].all():
        return newline
    return [tokenizer.end_of_text]


def _fitted(
    tokens: list[int], context: int, sampling: Sampling, notify: Callable[[str], None]
) -> list[int]:
    """Return the part of the prompt that the model will see."""
    if sampling.when_full == "refuse" and len(tokens) + sampling.max_tokens > context:
        room = context - len(tokens)
        fix = f"use --max-tokens {room} or less" if room > 0 else "use a shorter prompt"
        raise UsageError(
            f"the prompt's {len(tokens)} tokens and {sampling.max_tokens} new ones exceed the "
            f"model's context of {context}; {fix}, or let the window slide"
        )
    if len(tokens) <= context:
        return tokens
    kept = max(1, context - 1)
    notify(
        f"the prompt's {len(tokens)} tokens exceed the model's context of {context}; "
        f"the last {kept} are used"
    )
    return tokens[-kept:]


def _ids(
    window: Window,
    first: list[int],
    history: list[int],
    sampling: Sampling,
    allowed: Mask,
    end_of_text: int,
    check: Callable[[], None],
) -> Iterator[int]:
    """Yield the ids that are chosen, up to end-of-text."""
    assert sampling.seed is not None
    history, unread = list(history), first
    for place in range(sampling.max_tokens):
        check()
        logits = window.read(unread)
        number = choose(logits, history, sampling, draw(sampling.seed, place), allowed)
        if number == end_of_text:
            return
        yield number
        history.append(number)
        unread = [number]


def _texts(ids: Iterator[int], tokenizer: Tokenizer, stops: tuple[str, ...]) -> Iterator[str]:
    """Yield the text of ids in pieces, up to the first stop string."""
    characters, gate = tokenizer.stream(), StopGate(stops)
    for number in ids:
        if piece := gate.feed(characters.feed(number)):
            yield piece
        if gate.closed:
            return
    if piece := gate.feed(characters.flush()) + gate.flush():
        yield piece


# ---- which id


def draw(seed: int, place: int) -> float:
    """Return the random number in 0 .. 1 (1 excluded) of the token at a place, from 0 on.

    From a raw Philox word: NumPy promises those for ever, but not what its Generator makes of them.
    """
    philox = np.random.Philox(key=np.array([seed, _DRAWS], np.uint64), counter=[0, 0, 0, place])
    return int(philox.random_raw() >> 11) * 2.0**-53  # all the bits that a float64 holds


def choose(
    logits: Array,  # (V,)
    history: Sequence[int],
    sampling: Sampling,
    uniform: float,
    allowed: Mask,  # (V,)
) -> int:
    """Return the next id, one of those allowed; a pure function, computed in float64.

    history: the ids that the repetition penalty is for. uniform: a random number in 0 .. 1 (1
    excluded); the share of it that an id has is its probability. Ties are for the lower id. Raises
    SplitbitError if nothing is allowed or the scores are not finite.
    """
    scores = np.where(allowed, _penalised(logits, history, sampling.repetition_penalty), -inf)
    best = int(np.argmax(scores))  # of NaN, if there is one
    if not isfinite(scores[best]):
        raise SplitbitError(_no_choice(scores[best], allowed))
    if sampling.temperature == 0:
        return best
    order = np.argsort(-scores, kind="stable")
    with np.errstate(over="ignore", under="ignore"):
        # less the best: exp(710) overflows; a low temperature may take the others to -inf
        weights = np.exp((scores[order] - scores[best]) / sampling.temperature)
        totals = np.cumsum(weights[: _kept(weights, sampling)])
    # uniform is at most 1 - 2^-53, so the product rounds to less than the total
    return int(order[np.searchsorted(totals, uniform * totals[-1], side="right")])


def _penalised(logits: Array, history: Sequence[int], penalty: float) -> Array:
    scores = logits.astype(np.float64)
    if penalty != 1:
        used = np.unique(np.asarray(history, np.intp))
        with np.errstate(over="ignore", under="ignore"):
            scores[used] = np.where(
                scores[used] > 0, scores[used] / penalty, scores[used] * penalty
            )
    return scores


def _kept(weights: Array, sampling: Sampling) -> int:
    """Return how many of the weights (V,), which fall, may be drawn: at least one."""
    count = min(len(weights), sampling.top_k or len(weights))
    if sampling.top_p < 1:
        totals = np.cumsum(weights[:count])
        count = 1 + int(np.count_nonzero(totals[:-1] < sampling.top_p * totals[-1]))
    if sampling.min_p:
        count = min(count, int(np.count_nonzero(weights >= sampling.min_p * weights[0])))
    return count


def _no_choice(best: float, allowed: Mask) -> str:
    if not allowed.any():
        return "no id can be chosen: none was seen in training; was the model trained at all?"
    return (
        f"no id can be chosen: the best score is {best}, a finite one is expected; the model's "
        "weights are damaged, or its training went astray"
    )


# ---- what the model sees


@dataclass(frozen=True)
class Tokens:
    """Rows that go through the model together, all of one sequence."""

    ids: Array  # (N,)
    positions: Array  # (N,)
    starts: Array  # (2,)


def one_sequence(ids: Sequence[int] | NDArray[np.integer[Any]], first: int = 0) -> Tokens:
    """Return ids (N,) as a batch of one sequence whose first token is at position `first`."""
    count = len(ids)
    positions = np.arange(first, first + count, dtype=np.int32)
    return Tokens(np.asarray(ids, np.int32), positions, np.array([0, count], np.int32))


class Window:
    """What the model sees while it writes: at most `size` tokens, with their keys and values.

    size: at most the model's context. tokens: the ids that are in it, the oldest first.
    """

    def __init__(self, decoder: Decoder, compute: Compute, table: OpTable, size: int) -> None:
        self.size = size
        self.tokens: list[int] = []
        self._decoder = decoder
        self._tape = Tape(table, compute.context())
        self._caches = new_caches(decoder, table, compute.dtype, size)

    def read(self, ids: Sequence[int]) -> Array:  # ids (N,) -> (V,)
        """Take in N more tokens, 1 at least, and return the scores of the one after them.

        If they are too many, the newest ones that fill half the window are kept, and read anew:
        positions have shifted, and with them every key and value.
        """
        if len(self.tokens) + len(ids) > self.size:
            ids = [*self.tokens, *ids][-max(1, self.size // 2) :]
            self.tokens = []
            for cache in self._caches:
                cache.truncate(0)
        batch = one_sequence(ids, first=len(self.tokens))
        last = np.array([len(ids) - 1])
        with np.errstate(all="ignore"):  # `choose` says so if a score is not finite
            logits = self._decoder.logits(self._tape, batch, self._caches, rows=last)
        self.tokens += ids
        row: Array = logits[0]
        return row


def new_caches(
    decoder: Decoder, table: OpTable, dtype: np.dtype[Any], capacity: int
) -> list[KVCache]:
    """Return an empty cache for each layer, made by whoever owns the layer's attention."""
    ids: Any = Stub(np.dtype(np.int32))
    planner = _CachePlanner(table)
    stubs = Tokens(ids, ids, ids)
    unmade: Any = [CacheStub()] * decoder.config.layers
    decoder.logits(planner, stubs, unmade)
    config = decoder.config
    return [
        make(
            sequences=1,
            capacity=capacity,
            kv_heads=config.kv_heads,
            head_size=config.head_size,
            dtype=dtype,
        )
        for make in planner.makers
    ]


class _CachePlanner(Planner):
    """Notes who makes the caches, layer by layer, while it resolves the sites."""

    def __init__(self, table: OpTable) -> None:
        super().__init__(table)
        self.makers: list[CacheMaker] = []

    def call(self, spec: OpSpec, operands: tuple[Any, ...], static: dict[str, Any]) -> Any:
        resolved = self.table.resolve(spec, operands, static)
        if resolved.op is not None and "cache" in resolved.site.operands:
            if resolved.make_cache is None:
                raise SplitbitError(
                    f"backend {resolved.origin}: {spec.name} takes a cache but makes none "
                    "(OpOffer.make_cache)"
                )
            self.makers.append(resolved.make_cache)
        return super().call(spec, operands, static)


# ---- where the text ends


class StopGate:
    """Lets text through up to the first stop string, however that is cut into pieces.

    What may yet become a stop string is held back. Of several, the one that is complete first
    counts, so that the pieces make no difference.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.closed = False
        self._stops = stops
        self._held = ""

    def feed(self, piece: str) -> str:
        """Return what is certain to stand before any stop string."""
        if self.closed:
            return ""
        text = self._held + piece
        places = [(text.find(stop), stop) for stop in self._stops]
        found = [(start + len(stop), start) for start, stop in places if start >= 0]
        if found:
            self.closed, self._held = True, ""
            return text[: min(found)[1]]
        certain = len(text) - self._unsure(text)
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """Return what was held back, now that nothing more comes."""
        text, self._held = self._held, ""
        return text

    def _unsure(self, text: str) -> int:
        """Return the length of the longest end of the text with which a stop string begins."""
        longest = max(map(len, self._stops), default=0)
        for count in range(min(longest - 1, len(text)), 0, -1):
            if any(len(stop) > count and text.endswith(stop[:count]) for stop in self._stops):
                return count
        return 0
