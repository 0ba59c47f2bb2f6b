"""What a machine's tier picks, from tiers.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from splitbit_kit.api import UsageError
from splitbit_kit.models.presets import preset

DEFAULT = "light"
"""The tier where none is said and no machine is asked."""

_OF_THE_MACHINE = {"train": ("steps", "batch_size", "grad_accum"), "optimizer": ("lr",)}
"""Keys that a tier decides for a preset that leaves them out. All else is the model's affair."""


@dataclass(frozen=True)
class Pick:
    """What a tier picks. `format` is a quantised format's name."""

    preset: str
    format: str

    @property
    def batch_size(self) -> int:
        """Sequences in a micro-batch."""
        size: int = preset(self.preset)["train"]["batch_size"]
        return size

    def beside(self, name: str) -> dict[str, dict[str, Any]]:
        """Return section -> key -> value: what holds where preset `name` says nothing itself."""
        own = preset(self.preset)
        return {
            section: {key: own[section][key] for key in keys if key in own[section]}
            for section, keys in _OF_THE_MACHINE.items()
            if name != self.preset
        }


@cache
def _all() -> Mapping[str, Pick]:
    text = files("splitbit_kit.models").joinpath("tiers.toml").read_text("utf-8")
    return {name: Pick(**row) for name, row in tomllib.loads(text).items()}


def pick(tier: str) -> Pick:
    """Return what a tier picks. Raises UsageError if there is no such tier."""
    if tier not in _all():
        near = get_close_matches(tier, _all(), 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_all())}"
        raise UsageError(f"tier {tier!r} is not known; {hint}")
    return _all()[tier]
