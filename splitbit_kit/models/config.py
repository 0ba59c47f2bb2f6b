"""The shape of a model, checked when it is read."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from splitbit_kit.api import UsageError

FAMILIES = ("gpt2", "llama")
MOST = 1 << 20  # of anything: positions are 32-bit, and no machine here holds more


@dataclass(frozen=True)
class ModelConfig:
    """A decoder's shape. Raises UsageError, with values that would work, where parts do not fit.

    gpt2: layer norm, learned positions, GELU. llama: RMSNorm, rotary positions, SwiGLU, and
    grouped-query attention where kv_heads is below heads.
    """

    family: str = "llama"
    layers: int = 4
    heads: int = 4
    kv_heads: int = 0  # 0: as many as heads
    width: int = 256
    hidden: int = 0  # 0: 4 width for gpt2; for llama 8/3 width, rounded up to a multiple of 256
    context: int = 256
    bias: bool = False  # in linear layers and layer norms; gpt2 only
    tied: bool = True  # the head is the token embedding
    dropout: float = 0.0  # after the embedding and at the end of each block, as GPT-2
    norm_eps: float = 1e-5
    rotary_base: float = 10_000.0

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise UsageError(f"model.family: {self.family!r} is not one of {', '.join(FAMILIES)}")
        for key in ("layers", "heads", "width", "context"):
            if not 1 <= getattr(self, key) <= MOST:
                raise UsageError(f"model.{key}: {getattr(self, key)} is not in 1 .. {MOST}")
        if not 0.0 <= self.dropout < 1.0:
            raise UsageError(f"model.dropout: {self.dropout} is not in 0 .. 1 (1 excluded)")
        for key in ("norm_eps", "rotary_base"):
            if not 0 < getattr(self, key) < inf:
                raise UsageError(f"model.{key}: {getattr(self, key)} is not a number above 0")
        if self.bias and self.family == "llama":
            raise UsageError("model.bias: the llama family has no biases; use family gpt2")
        self._check_heads()
        if self.kv_heads == 0:
            object.__setattr__(self, "kv_heads", self.heads)
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            fits = [n for n in range(1, self.heads + 1) if self.heads % n == 0]
            raise UsageError(
                f"model.kv_heads: {self.kv_heads} does not divide {self.heads} heads; "
                f"use one of {', '.join(map(str, fits))}"
            )
        if self.hidden == 0:
            llama = -(-8 * self.width // (3 * 256)) * 256
            object.__setattr__(self, "hidden", llama if self.family == "llama" else 4 * self.width)
        if not 1 <= self.hidden <= MOST:
            raise UsageError(f"model.hidden: {self.hidden} is not in 1 .. {MOST}")

    def _check_heads(self) -> None:
        step = 2 * self.heads if self.family == "llama" else self.heads
        if self.width % step == 0:
            return
        below, above = self.width // step * step, -(-self.width // step) * step
        widths = " or ".join(str(w) for w in (below, above) if w)
        heads = [
            n
            for n in range(1, self.width + 1)
            if self.width % n == 0 and (self.family == "gpt2" or self.width // n % 2 == 0)
        ]
        near = sorted(sorted(heads, key=lambda n: abs(n - self.heads))[:3])
        even = "an even head size (rotary positions)" if step > self.heads else "whole heads"
        fix = f"; or {', '.join(map(str, near))} heads" if near else ""
        raise UsageError(
            f"model.width: {self.width} with {self.heads} heads does not give {even}; "
            f"use width {widths}{fix}"
        )

    @property
    def head_size(self) -> int:
        """The width of one attention head."""
        return self.width // self.heads
