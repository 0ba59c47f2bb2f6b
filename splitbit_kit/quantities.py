"""Sizes, times and counts in words, the same wherever people read them."""

from __future__ import annotations

import math

NONE = "–"
"""Where there is no such quantity."""


def size(nbytes: float) -> str:
    """Return 5_245_952 as "5.2 MB": decimal units; a dash for what is no size."""
    if not math.isfinite(nbytes) or nbytes < 0:
        return NONE
    units = ("", "kB", "MB", "GB", "TB")
    scale = 0
    while nbytes >= 999.5 and scale < len(units) - 1:
        nbytes, scale = nbytes / 1000, scale + 1
    if not scale:
        return counted(round(nbytes), "byte")
    return f"{nbytes:,.{1 if nbytes < 99.95 else 0}f} {units[scale]}"


def duration(seconds: float) -> str:
    """Return 75.2 as "1:15", hours before that if there are any; a dash for what is no time."""
    if not math.isfinite(seconds) or seconds < 0:
        return NONE
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:,}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def counted(n: int, thing: str) -> str:
    """Return "1 core", "2,000 cores"."""
    return f"{n:,} {thing}{'s' if n != 1 else ''}"
