"""How errors are put, on one line each."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str:
    """Return how an error about an unknown name ends: the nearest known one, and all there are."""
    names = sorted(known)
    if not names:
        return "; there are none"
    lowered = {each.lower(): each for each in names}
    close = get_close_matches(name.lower(), lowered, n=1)
    hint = f"; did you mean {lowered[close[0]]}?" if close else ""
    return f"{hint}{' There' if hint else '; there'} are: {', '.join(names)}"


def say(error: BaseException) -> str:
    """Return an exception as one line, even if it cannot be printed."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    name = type(error).__name__
    return f"{name}: {text}" if text else name
