"""How well a model predicts a text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitbit_kit.compute import Compute
from splitbit_kit.engine.optable import OpTable
from splitbit_kit.engine.tape import Tape
from splitbit_kit.models.decoder import Decoder
from splitbit_kit.text.batches import EVALUATED_TOKENS, evaluation_batches


@dataclass(frozen=True)
class Evaluation:
    """Loss in mean nats a token; bits a byte compare models whose tokenizers differ."""

    loss: float
    perplexity: float
    bits_per_byte: float
    tokens: int


def evaluate(
    decoder: Decoder,
    compute: Compute,
    table: OpTable,
    ids: NDArray[np.integer[Any]],
    byte_lengths: NDArray[np.int32],
    *,
    seq_len: int,
    rows: int = 8,
    limit: int = EVALUATED_TOKENS,
    check: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Return how well a model predicts ids (N,), over non-overlapping windows of seq_len.

    All of the text up to `limit` tokens, the same windows every time, `rows` of them at once.
    byte_lengths (V,) says how many bytes each id stands for. check() is called before each batch
    and may raise to give up.
    """
    total, tokens, size = 0.0, 0, 0
    ctx = compute.context()
    for batch in evaluation_batches(ids, seq_len, rows, limit):
        check()
        weights = np.zeros(batch.ids.size, compute.dtype)  # no gradient is wanted
        with np.errstate(all="ignore"):  # a loss that is not finite says so itself
            nll = decoder.loss(Tape(table, ctx), batch, batch.targets, weights, train=False)
        total += float(np.sum(nll, dtype=np.float64))
        tokens += batch.ids.size
        size += int(byte_lengths[batch.targets].sum())
    loss = total / tokens
    perplexity = exp(loss) if loss < 700 else inf
    bits = total / log(2) / size if size else inf
    return Evaluation(loss, perplexity, bits, tokens)
