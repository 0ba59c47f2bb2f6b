"""PyTorch's side of a comparison: a worker that needs torch and nothing else.

A step is forward, backward, clipping of the global norm at 1 and fused AdamW: what nanoGPT does.
Standing alone it measures one mode by itself:

    python torch_peer.py '{"model": {"family": "gpt2", "layers": 4, "heads": 4, "width": 128,
    "context": 64, "bias": false}, "vocabulary": 65, "batch": 12, "threads": 2, "mode": "eager"}'
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from turns import serve

WARM_UP = 3  # steps; compilation happens in the first
CUBE = 4096  # rows and columns of the limit's multiply
BATCHES = 16  # distinct ones: on a single batch the loss would vanish, and denormals are slow


class Gpt2Block(nn.Module):
    """Layer norm, attention of one fused projection, GELU."""

    def __init__(self, width: int, heads: int, hidden: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (nn.LayerNorm(width, bias=bias) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, C) -> (B, T, C)
        b, t, c = x.shape
        qkv = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in qkv)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class LlamaBlock(nn.Module):
    """RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int, context: int) -> None:
        super().__init__()
        size = width // heads
        self.heads, self.kv_heads = heads, kv_heads
        self.norm1, self.norm2 = (nn.RMSNorm(width, eps=1e-5) for _ in range(2))
        self.q = nn.Linear(width, heads * size, bias=False)
        self.k, self.v = (nn.Linear(width, kv_heads * size, bias=False) for _ in range(2))
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)
        frequencies = 10_000.0 ** (-torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(context).float(), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: Tensor) -> Tensor:  # (B, T, C) -> (B, T, C)
        b, t, c = x.shape
        h = self.norm1(x)
        q, k, v = (
            project(h).view(b, t, heads, -1).transpose(1, 2)
            for project, heads in (
                (self.q, self.heads),
                (self.k, self.kv_heads),
                (self.v, self.kv_heads),
            )
        )
        q, k = self._rotated(q), self._rotated(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))

    def _rotated(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return (x * self.cos + torch.cat((-b, a), -1) * self.sin).to(x.dtype)


class Decoder(nn.Module):
    """Either family, with a tied head."""

    def __init__(
        self,
        vocabulary: int,
        *,
        family: str,
        layers: int,
        heads: int,
        width: int,
        context: int,
        hidden: int = 0,
        kv_heads: int = 0,
        bias: bool = False,
    ) -> None:
        super().__init__()
        blocks: list[nn.Module]
        if family == "llama":
            blocks = [LlamaBlock(width, heads, kv_heads, hidden, context) for _ in range(layers)]
            self.norm, self.pos = nn.RMSNorm(width, eps=1e-5), None
        else:
            blocks = [Gpt2Block(width, heads, hidden or 4 * width, bias) for _ in range(layers)]
            self.norm, self.pos = nn.LayerNorm(width, bias=bias), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(blocks)
        self.tok = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tok.weight
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:  # (B, T), (B, T) -> ()
        x = self.tok(ids)
        if self.pos is not None:
            x = x + self.pos.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def build(task: dict[str, Any]) -> tuple[Callable[[], None], dict[str, Any]]:
    """Return a training step in the mode that the task names, warmed up; or the limit's multiply"""
    torch.set_num_threads(task["threads"])
    torch.manual_seed(0)
    if task["mode"] == "limit":
        return limit(getattr(torch, task["dtype"]))
    model = Decoder(task["vocabulary"], **task["model"])
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=True
    )
    forward = torch.compile(model) if "compile" in task["mode"] else model
    bf16 = "bf16" in task["mode"]
    cast = torch.autocast("cpu", dtype=torch.bfloat16) if bf16 else nullcontext()
    shape = (BATCHES, 2, task["batch"], task["model"]["context"])
    batches = cycle(torch.randint(0, task["vocabulary"], shape))

    def step() -> None:
        ids, targets = next(batches)
        with cast:
            loss = forward(ids, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(WARM_UP):
        step()
    count = sum(p.numel() for p in model.parameters())
    return step, {"version": f"torch {torch.__version__}", "parameters": count}


def limit(dtype: torch.dtype) -> tuple[Callable[[], None], dict[str, Any]]:
    """Return a square multiply, large enough for any machine, and its floating-point operations."""
    a, b, out = (torch.zeros(CUBE, CUBE, dtype=dtype) for _ in range(3))

    def multiply() -> None:
        torch.mm(a, b, out=out)

    return multiply, {"work": 2.0 * CUBE**3}


if __name__ == "__main__":
    serve(build)
