"""One optimizer step: batches to loss, loss to gradients, gradients to weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any

import numpy as np

from splitbit_kit.api import Context, Optimizer, Schedule, SplitbitError, State
from splitbit_kit.compute import Compute
from splitbit_kit.engine.optable import CacheStub, OpTable, Planner, Stub
from splitbit_kit.engine.params import GradientBuffer, ParameterStore
from splitbit_kit.engine.tape import Tape
from splitbit_kit.models.decoder import Decoder, parameter_specs
from splitbit_kit.registry import Registry
from splitbit_kit.text.batches import Batch
from splitbit_kit.training.config import Config

Array = np.ndarray[Any, np.dtype[Any]]


class NonFiniteError(SplitbitError):
    """The loss or a gradient is not finite; the message names the step and the first bad tensor."""


@dataclass(frozen=True)
class Outcome:
    """What one step did. loss is in mean nats a token, before the update."""

    loss: float
    grad_norm: float  # before clipping
    lr: float
    tokens: int


class Learner:
    """A model with its gradients and its optimizer.

    ctx: what ops are given; its seed is that of the dropouts. grad_clip: the greatest global norm
    of the gradient; 0 clips nothing.
    """

    def __init__(
        self,
        decoder: Decoder,
        table: OpTable,
        ctx: Context,
        optimizer: Optimizer,
        schedule: Schedule,
        *,
        grad_clip: float = 1.0,
    ) -> None:
        self.decoder = decoder
        self.params = decoder.params
        self.grads = GradientBuffer(self.params)
        self.optimizer = optimizer
        self.schedule = schedule
        self.state: State = optimizer.init(self.params)
        self.grad_clip = grad_clip
        self._table = table
        self._flat_ops = table.flat
        self._ctx = ctx
        self._unchecked: Array | None = self.params.values  # no raw view of it is an operand
        self._shares = np.empty(0, self.params.dtype)
        plan(decoder, table)

    @property
    def origins(self) -> dict[str, str]:
        """Which backend serves each op, with commas between several."""
        found: dict[str, list[str]] = {}
        for resolved in self._table.resolved:
            if resolved.op is not None:
                found.setdefault(resolved.site.op, []).append(resolved.origin)
        return {op: ",".join(dict.fromkeys(origins)) for op, origins in found.items()}

    def step(self, step: int, micro_batches: Sequence[Batch]) -> Outcome:
        """Make optimizer step `step` (the first is 0) on all micro-batches together.

        Raises NonFiniteError, with the weights untouched, if the loss or a gradient is not finite.
        """
        tokens = sum(batch.ids.size for batch in micro_batches)
        with np.errstate(all="ignore"):  # what overflows is found just below, and named
            loss = self.gradients(step, micro_batches)
            norm = sqrt(self._flat_ops["squared_norm"](self.grads.flat))
        if not (isfinite(loss) and isfinite(norm)):
            raise NonFiniteError(self._what_is_bad(step, loss, norm))
        lr = self.schedule(step)
        self.optimizer.update(
            self.params,
            self.grads.flat,
            self.state,
            lr=lr,
            grad_scale=min(1.0, self.grad_clip / norm) if self.grad_clip and norm else 1.0,
            ops=self._flat_ops,
        )
        self.params.updated()
        return Outcome(loss, norm, lr, tokens)

    def gradients(self, step: int, micro_batches: Sequence[Batch]) -> float:
        """Fill the gradients of the mean loss over all micro-batches' tokens; return that loss."""
        # one weight for every token of the step: accumulation then equals the large batch
        share = 1.0 / sum(batch.ids.size for batch in micro_batches)
        loss = 0.0
        self.grads.begin()
        for i, batch in enumerate(micro_batches):
            self._ctx.step, self._ctx.micro_batch = step, i
            weights = self._weights(batch.ids.size, share)
            tape = Tape(self._table, self._ctx, flat=self._unchecked)
            nll = self.decoder.loss(tape, batch, batch.targets, weights)
            self._unchecked = None  # every step makes the same calls
            loss += share * float(np.add.reduce(nll, dtype=np.float64))
            tape.backward(nll, weights, self.grads)
        self.grads.finish()
        return loss

    def _weights(self, count: int, share: float) -> Array:
        if self._shares.size != count or self._shares[0] != self.params.dtype.type(share):
            self._shares = np.full(count, share, self.params.dtype)
        return self._shares

    def _what_is_bad(self, step: int, loss: float, norm: float) -> str:
        for param in self.params:
            if not np.isfinite(param.array).all():
                tensor = f"parameter {param.name}"
                break
        else:
            bad = self.grads.first_bad()
            tensor = f"gradient of {bad}" if bad else "none; the sum overflows"
        what = f"the loss is {loss}" if not isfinite(loss) else f"the gradient norm is {norm}"
        return f"step {step + 1}: {what}; first tensor that is not finite: {tensor}"


def build_learner(
    config: Config, vocabulary: int, compute: Compute, registry: Registry, *, sketch: bool = False
) -> Learner:
    """Return the learner that a resolved configuration means, before its first step.

    sketch: any small weights will do, in a tenth of the time.
    """
    specs = parameter_specs(config.model, vocabulary)
    params = ParameterStore(specs, compute.dtype)
    if sketch:
        noise = np.random.default_rng(0).normal(0, 0.02, 4099)
        params.values[...] = np.resize(noise.astype(params.dtype), params.values.shape)
        params.updated()
    else:
        params.initialise(specs, config.train.seed)
    optimizer, scheduler = config.optimizer, config.scheduler
    return Learner(
        Decoder(config.model, params),
        compute.table(train=True),
        compute.context(grad=True, seed=config.train.seed),
        registry.build("optimizer", optimizer.name, **optimizer.options),
        registry.build(
            "scheduler",
            scheduler.name,
            lr=optimizer.lr,
            steps=config.train.steps,
            **scheduler.options,
        ),
        grad_clip=config.train.grad_clip,
    )


def plan(decoder: Decoder, table: OpTable) -> None:
    """Resolve every site that the model has, so that nothing is left to look up in a step."""
    ids: Any = Stub(np.dtype(np.int32))
    weights: Any = Stub(decoder.params.dtype)
    batch = Batch(ids=ids, targets=ids, positions=ids, starts=ids)
    ops = Planner(table)
    decoder.loss(ops, batch, batch.targets, weights, train=table.train)
    if not table.train:
        decoder.logits(ops, batch)
        caches: Any = [CacheStub()] * len(decoder.layers)
        decoder.logits(ops, batch, caches)
