"""Ids to batches, by arithmetic alone: the n-th sample of a training is a pure function of n.

Each epoch shifts the windows by an offset of its own and visits them in an order of its own, both
drawn from a counter-based generator keyed by (seed, epoch). So a run that resumes at sample n sees
what it would have seen, and nothing is ever skipped over.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitbit_kit.api.errors import SplitbitError, UsageError

EVALUATED_TOKENS = 1 << 18

Ids = NDArray[np.integer[Any]]
Int32 = NDArray[np.int32]

_SHIFT, _ORDER = 0, 1  # uses of the generator: each has a stream of its own


@dataclass(frozen=True)
class Batch:
    """Windows end to end: N tokens in S sequences, sequence s from starts[s] to starts[s + 1]."""

    ids: Int32  # (N,)
    targets: Int32  # (N,): the id that follows each
    positions: Int32  # (N,): 0, 1, ... within each sequence
    starts: Int32  # (S + 1,)


@dataclass(frozen=True)
class Windows:
    """Where the training samples lie in `count` tokens: `seq_len` inputs each, and one target more.

    `limit` is the number of samples in the whole training; None means without end.
    Raises SplitbitError if there are too few tokens for a window.
    """

    count: int
    seq_len: int
    seed: int
    limit: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 64:
            raise UsageError(f"seed {self.seed}: expected 0 to 2^64 - 1")
        require_tokens(self.seq_len, training=self.count)

    @property
    def per_epoch(self) -> int:
        """Return the number of windows in an epoch: as many as fit wherever the offset falls."""
        return max(1, (self.count - self.seq_len) // self.seq_len)

    def offsets(self, first: int, rows: int) -> NDArray[np.int64]:
        """Return where the samples first, first + 1, ... begin (rows,); fewer at the limit."""
        last = first + rows if self.limit is None else min(first + rows, self.limit)
        return np.array([self._offset(sample) for sample in range(first, last)], np.int64)

    def _offset(self, sample: int) -> int:
        epoch, place = divmod(sample, self.per_epoch)
        # shift + per_epoch * seq_len + 1 <= count: the last target is there too.
        shifts = min(self.seq_len, self.count - self.per_epoch * self.seq_len)
        shift, order = _epoch(self.seed, epoch, shifts, self.per_epoch)
        return shift + int(order[place]) * self.seq_len


def batch(ids: Ids, windows: Windows, first: int, rows: int) -> Batch:
    """Return the samples first to first + rows - 1 of a training, fewer where it ends."""
    offsets = windows.offsets(first, rows)
    width = windows.seq_len
    tokens = np.array(ids[offsets[:, None] + np.arange(width + 1)], np.int32)  # (rows, T + 1)
    return side_by_side(tokens[:, :-1].ravel(), tokens[:, 1:].ravel(), width)


def evaluation_batches(
    ids: Ids, seq_len: int, rows: int, limit: int = EVALUATED_TOKENS, split: str = "validation"
) -> Iterator[Batch]:
    """Yield the windows that every evaluation covers: side by side, from the start, each once.

    All of `ids` up to `limit` targets; the last window may be shorter, the last batch smaller.
    Raises SplitbitError, naming `split`, if there are too few tokens for one window.
    """
    require_tokens(seq_len, **{split: len(ids)})
    total = min(len(ids) - 1, limit)
    for start in range(0, total, rows * seq_len):
        tokens = np.array(ids[start : min(start + rows * seq_len, total) + 1], np.int32)
        yield side_by_side(tokens[:-1], tokens[1:], seq_len)


def require_tokens(seq_len: int, **splits: int) -> None:
    """Check that each split, given by name and number of tokens, has a window of `seq_len`.

    Raises SplitbitError naming the shortest split and a sequence length that would work for all.
    """
    if seq_len < 1:
        raise UsageError(f"seq_len {seq_len}: expected at least 1")
    name, count = min(splits.items(), key=lambda item: item[1])
    if count < seq_len + 1:
        fix = f"use --seq-len {count - 1} or less, or more text" if count > 1 else "use more text"
        raise SplitbitError(
            f"{name} split: {count:,} tokens, seq_len + 1 = {seq_len + 1:,} needed; {fix}"
        )


def samples_for_epochs(epochs: float, windows: Windows) -> int:
    """Return the number of samples in so many epochs, which need not be whole."""
    # rounded first, or 1.1 epochs of 10 windows would be 12 samples
    return math.ceil(round(epochs * windows.per_epoch, 6))


def steps_for_epochs(epochs: float, windows: Windows, rows: int) -> int:
    """Return the number of steps of `rows` samples in so many epochs; the last may be ragged."""
    return math.ceil(samples_for_epochs(epochs, windows) / rows)


def side_by_side(ids: Int32, targets: Int32, width: int) -> Batch:
    """Return a batch of windows of `width` that lie end to end, the last one maybe shorter."""
    count = len(ids)
    positions = np.arange(count, dtype=np.int32) % np.int32(width)
    starts = np.array([*range(0, count, width), count], np.int32)
    return Batch(ids, targets, positions, starts)


@lru_cache(maxsize=4)
def _epoch(seed: int, epoch: int, shifts: int, count: int) -> tuple[int, NDArray[np.intp]]:
    """Return an epoch's shift (below `shifts`) and the order of its windows (count,)."""
    shift = int(_words(seed, epoch, _SHIFT, 1)[0]) % shifts
    order = np.argsort(_words(seed, epoch, _ORDER, count), kind="stable")
    order.flags.writeable = False  # it is shared by all who ask
    return shift, order


def _words(seed: int, epoch: int, use: int, count: int) -> NDArray[np.uint64]:
    """Return random 64-bit words (count,) of the stream that belongs to (seed, epoch, use).

    Raw Philox words: NumPy promises them for ever, but not what its Generator makes of them.
    """
    key = np.array([seed, use], np.uint64)
    return np.random.Philox(key=key, counter=[0, 0, 0, epoch]).random_raw(count)
