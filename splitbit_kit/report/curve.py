"""A curve of any length in bounded memory: buckets of steps that keep their extremes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BUCKETS = 800
"""The most that a curve is drawn with: about one a pixel."""

GREATEST = 1e300
"""Beyond it, sums overflow; such a value counts as not finite."""

SMOOTHED_OVER = 1 / 25
"""The share of a curve's buckets on either side that a smoothed value is the mean of."""

Floats = NDArray[np.float64]


@dataclass(slots=True)
class Bucket:
    """The values of some steps next to each other."""

    first: int
    last: int
    low: float
    high: float
    total: float
    count: int

    def join(self, other: Bucket) -> None:
        """Take in another bucket's values."""
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.total += other.total
        self.count += other.count


class Points(NamedTuple):
    """A curve to be drawn, one entry a bucket, each (B,)."""

    step: Floats
    """the middle of the bucket's steps"""
    mean: Floats
    low: Floats
    high: Floats
    smooth: Floats
    """the mean over the neighbourhood"""


class Curve:
    """Values by step. Memory is bounded: where there are too many, two buckets become one."""

    def __init__(self) -> None:
        self._buckets: dict[int, Bucket] = {}  # step // width -> bucket
        self._width = 1
        self.lost: list[int] = []
        """the first few steps whose value is not finite"""
        self.lost_count = 0

    def add(self, step: int, value: float) -> None:
        """Take one value. The order does not matter."""
        if not -GREATEST < value < GREATEST:  # NaN too
            self.lost_count += 1
            if len(self.lost) < 3:
                self.lost.append(step)
            return
        self._put(Bucket(step, step, value, value, value, 1))
        while len(self._buckets) > BUCKETS:
            self._width *= 2
            buckets, self._buckets = self._buckets, {}
            for bucket in buckets.values():
                self._put(bucket)

    def _put(self, bucket: Bucket) -> None:
        place = bucket.first // self._width
        held = self._buckets.setdefault(place, bucket)
        if held is not bucket:
            held.join(bucket)

    def __len__(self) -> int:
        return len(self._buckets)

    @property
    def exact(self) -> bool:
        """Whether each bucket is a single value."""
        return all(bucket.count == 1 for bucket in self._buckets.values())

    def points(self) -> Points:
        """Return the curve in the order of steps."""
        found = [self._buckets[place] for place in sorted(self._buckets)]
        total = _column(found, "total")
        count = _column(found, "count")
        return Points(
            step=(_column(found, "first") + _column(found, "last")) / 2,
            mean=total / count,
            low=_column(found, "low"),
            high=_column(found, "high"),
            smooth=smooth(total, count, int(len(found) * SMOOTHED_OVER)),
        )


def _column(buckets: list[Bucket], name: str) -> Floats:
    return np.array([getattr(bucket, name) for bucket in buckets], np.float64)


def smooth(total: Floats, count: Floats, reach: int) -> Floats:
    """Return the means over the `reach` buckets on either side, (B,).

    The window is centred, so that the curve does not lag. It narrows towards the start, where a
    loss falls fastest and one-sided means would flatter it; at the end it only loses its right.
    """
    n = np.arange(total.size)
    left = np.minimum(reach, n)
    right = np.minimum(left, total.size - 1 - n)
    ends: tuple[Any, Any] = (n - left, n + right + 1)
    sums, counts = (np.concatenate(([0.0], np.cumsum(x))) for x in (total, count))
    means: Floats = (sums[ends[1]] - sums[ends[0]]) / (counts[ends[1]] - counts[ends[0]])
    return means
