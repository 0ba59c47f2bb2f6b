"""Both model families and our dropout once more, in PyTorch: the outside witness of ours.

Written from the papers and from the definitions in `splitbit_kit.api.ops`, with PyTorch's own
functions wherever it has one. A model is a function of a dictionary of tensors, under our names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from splitbit_kit.models.config import ModelConfig

_LOW_WORD = 0xFFFFFFFF


def philox4x32(counters: np.ndarray, key: tuple[int, int]) -> np.ndarray:  # (n, 4) -> (n, 4)
    """Return ten rounds of Philox on each row of 32-bit counters. Salmon et al. 2011."""
    x = counters.astype(np.uint64)
    k0, k1 = key
    for _ in range(10):
        product0, product1 = x[:, 0] * 0xD2511F53, x[:, 2] * 0xCD9E8D57
        x = np.stack(
            [
                product1 >> 32 ^ x[:, 1] ^ np.uint64(k0),
                product1 & _LOW_WORD,
                product0 >> 32 ^ x[:, 3] ^ np.uint64(k1),
                product0 & _LOW_WORD,
            ],
            axis=1,
        )
        k0, k1 = k0 + 0x9E3779B9 & _LOW_WORD, k1 + 0xBB67AE85 & _LOW_WORD
    return x


@dataclass(frozen=True)
class Dropout:
    """The dropouts of one step. rate 0 drops nothing."""

    rate: float
    seed: int
    step: int
    micro_batch: int

    def __call__(self, x: Tensor, site: int) -> Tensor:
        """Return x with the elements dropped that the seed, the step and the site say."""
        if not self.rate:
            return x
        blocks = -(-x.numel() // 4)
        counters = np.zeros((blocks, 4), np.uint64)
        counters[:, 0] = np.arange(blocks)
        counters[:, 1:] = site, self.step, self.micro_batch
        words = philox4x32(counters, (self.seed & _LOW_WORD, self.seed >> 32))
        kept = words.ravel()[: x.numel()] >= int(self.rate * 2**32)
        return x * torch.from_numpy(kept).view(x.shape) / (1 - self.rate)


def mean_loss(
    config: ModelConfig, w: Mapping[str, Tensor], ids: Tensor, targets: Tensor, drop: Dropout
) -> Tensor:  # ids (B, T), targets (B, T) -> ()
    """Return the mean loss over all targets, in nats."""
    x = F.embedding(ids, w["tok.weight"])
    if config.family == "gpt2":
        x = x + w["pos.weight"][: ids.shape[1]]
    x = drop(x, site=0)
    for i in range(config.layers):
        layer = {k.removeprefix(f"layers.{i}."): v for k, v in w.items()}
        x = x + drop(_attention(config, layer, _norm(config, layer, "attn_norm", x)), 2 * i + 1)
        x = x + drop(_mlp(config, layer, _norm(config, layer, "mlp_norm", x)), 2 * i + 2)
    head = w["tok.weight"] if config.tied else w["head.weight"]
    logits = _norm(config, w, "norm", x) @ head.T
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _norm(config: ModelConfig, w: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    weight, shape = w[f"{name}.weight"], (config.width,)
    if config.family == "llama":
        return F.rms_norm(x, shape, weight, config.norm_eps)
    return F.layer_norm(x, shape, weight, w.get(f"{name}.bias"), config.norm_eps)


def _linear(w: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def _attention(config: ModelConfig, w: Mapping[str, Tensor], x: Tensor) -> Tensor:
    b, t, _ = x.shape
    q, k, v = (
        _linear(w, f"attn.{name}", x).view(b, t, -1, config.head_size).transpose(1, 2)
        for name in "qkv"
    )
    if config.family == "llama":
        q, k = _rotated(q, config.rotary_base), _rotated(k, config.rotary_base)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return _linear(w, "attn.o", y.transpose(1, 2).reshape(b, t, -1))


def _rotated(x: Tensor, base: float) -> Tensor:  # (B, H, T, D) -> (B, H, T, D)
    t, d = x.shape[-2:]
    exponents = torch.arange(0, d, 2, dtype=torch.float64) / d
    angles = torch.outer(torch.arange(t, dtype=torch.float64), base**-exponents)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _mlp(config: ModelConfig, w: Mapping[str, Tensor], x: Tensor) -> Tensor:
    up = _linear(w, "mlp.up", x)
    if config.family == "llama":
        return _linear(w, "mlp.down", F.silu(_linear(w, "mlp.gate", x)) * up)
    return _linear(w, "mlp.down", F.gelu(up, approximate="tanh"))
