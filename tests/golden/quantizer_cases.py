"""Weights to quantise, from formulas that give the same float32 numbers on any machine."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def uniform(shape: tuple[int, ...], stream: int) -> Array:
    """Return numbers in [-1, 1), 24 bits each: splitmix64 of their place and the stream."""
    with np.errstate(over="ignore"):
        z = np.arange(1, np.prod(shape) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z += np.uint64(stream)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    whole = (z >> np.uint64(40)).astype(np.int64) - 2**23
    return (whole.astype(np.float32) / np.float32(2**23)).reshape(shape)


def cases() -> dict[str, Array]:
    """Return name -> weights (O, I), I a multiple of 256."""
    # a sum of twelve is close to a normal distribution, and adding is exact to the bit
    normal = sum(uniform((64, 512), n) for n in range(12)) / np.float32(2)
    u = uniform((64, 512), 99)
    halves = np.arange(-127.5, 128.5, 1, dtype=np.float32)[None]
    halves[0, 0] = 127  # so that the first scale is 1 exactly, and every other weight there a tie
    near = np.zeros((1, 256), np.float32)
    near[0, :3] = 1.0, 0.49999997, -0.49999997
    outlier = normal.copy()
    outlier[::7, 300] = 1e4
    return {
        "normal": normal,
        "small": normal * np.float32(0.02),
        "heavy-tailed": u / (np.float32(1.0001) - np.abs(u)),
        "constant": np.full((2, 256), 0.3, np.float32),
        "zero": np.zeros((2, 256), np.float32),
        "1e-6": normal * np.float32(1e-6),
        "1e-30": normal * np.float32(1e-30),
        "one outlier": outlier,
        "ties": halves,
        "nearly a tie": near,
    }
