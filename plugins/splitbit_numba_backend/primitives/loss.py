"""cross_entropy of logits that exist already; `blocks.head` never makes them all."""

from __future__ import annotations

from typing import Any

from splitbit_kit.api import Context, Gradients
from splitbit_kit.api.backend import Array
from splitbit_numba_backend.kernels.loss import cross_entropy
from splitbit_numba_backend.runtime import NULL, Program, Runtime, address
from splitbit_numba_backend.simd.pointers import argument, float32_pointer, int32_pointer

ROWS, VOCABULARY, LOGITS, TARGETS, WEIGHTS, NLL, DLOGITS = range(7)


def _cross_entropy(thread: int, threads: int, args: int) -> None:
    vocabulary = argument(args, VOCABULARY)
    cross_entropy(
        thread, threads, float32_pointer(argument(args, LOGITS)),
        int32_pointer(argument(args, TARGETS)), float32_pointer(argument(args, WEIGHTS)),
        float32_pointer(argument(args, NLL)), float32_pointer(argument(args, DLOGITS)),
        argument(args, ROWS), vocabulary, vocabulary, vocabulary,
    )  # fmt: skip


CROSS_ENTROPY = Program(_cross_entropy, _cross_entropy)


class CrossEntropy:
    """log(sum(exp(logits))) - logits[target], in nats."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def forward(self, ctx: Context, logits: Array, targets: Array) -> tuple[Array, Any]:
        """Return each target's negative log-likelihood (N,)."""
        rows, vocabulary = logits.shape
        nll = ctx.workspace.take((rows,), logits.dtype)
        args = (rows, vocabulary, address(logits), address(targets), NULL, address(nll), NULL)
        self.runtime.run(CROSS_ENTROPY, args)
        return nll, (logits, targets)

    def backward(self, ctx: Context, dout: Array, saved: Any, grads: Gradients) -> tuple[Array]:
        """Return (dout (softmax - onehot) (N, V),)."""
        logits, targets = saved
        dlogits = ctx.workspace.take(logits.shape, logits.dtype)
        where = (address(logits), address(targets), address(dout), NULL, address(dlogits))
        self.runtime.run(CROSS_ENTROPY, (*logits.shape, *where))
        return (dlogits,)
