"""Whether options lie in their range; what is wrong is said by name."""

from __future__ import annotations

from math import isfinite


def check_share(name: str, value: float) -> None:
    """Raise ValueError unless 0 <= value < 1."""
    if not 0 <= value < 1:
        raise ValueError(f"{name}: {value} does not lie in 0 .. 1 (1 excluded)")


def check_positive(name: str, value: float, usual: str) -> None:
    """Raise ValueError, naming the usual value, unless it is a finite number above 0."""
    if not (isfinite(value) and value > 0):
        raise ValueError(f"{name}: {value} is not a positive number; {usual} is usual")


def check_decay(value: float) -> None:
    """Raise ValueError unless a weight decay is a finite number from 0 up."""
    if not (isfinite(value) and value >= 0):
        raise ValueError(f"weight_decay: {value} is not a number from 0 up; 0 turns decay off")
