"""How far a long piece of work on text is."""

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of it that is, 0 to 1; often, so it must be quick"""


def unheard(what: str, share: float) -> None:
    """Tell nobody."""
