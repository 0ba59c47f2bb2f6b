"""Every hook that a plugin can implement.

Offers are cheap plain data; whatever is heavy is imported in an offer's `build`. A hook
implementation takes only the arguments that it names. Hooks are never called in a kernel loop:
once a step is the finest grain. Extra verbs of the command line are not hooks but entry points of
the group `splitbit_kit.commands`, so that `--help` can list them without importing them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from splitbit_kit.api.backend import BackendOffer
from splitbit_kit.api.events import (
    CheckpointSaved,
    EvalDone,
    RunEnded,
    RunStarted,
    SampleWritten,
    StepDone,
    TrackerOffer,
)
from splitbit_kit.api.hardware import Hardware
from splitbit_kit.api.learning import OptimizerOffer, SchedulerOffer
from splitbit_kit.api.quantization import QuantizerOffer

hookspec = pluggy.HookspecMarker("splitbit_kit")


@hookspec
def backends() -> Sequence[BackendOffer]:  # type: ignore[empty-body]
    """Return the backends this plugin brings: tables of forward and backward kernels."""


@hookspec
def optimizers() -> Sequence[OptimizerOffer]:  # type: ignore[empty-body]
    """Return the optimizers this plugin brings."""


@hookspec
def schedulers() -> Sequence[SchedulerOffer]:  # type: ignore[empty-body]
    """Return the learning-rate schedules this plugin brings."""


@hookspec
def quantizers() -> Sequence[QuantizerOffer]:  # type: ignore[empty-body]
    """Return the weight formats this plugin brings."""


@hookspec
def trackers() -> Sequence[TrackerOffer]:  # type: ignore[empty-body]
    """Return the trackers this plugin brings; a run uses those it names."""


@hookspec(firstresult=True)
def probe_hardware() -> Hardware | None:
    """Return what the machine offers, or None to leave the answer to another probe."""


@hookspec
def run_started(event: RunStarted) -> None:
    """Take note that a run begins, after its first checkpoint folder exists."""


@hookspec
def step_done(event: StepDone) -> None:
    """Take note of one optimizer step."""


@hookspec
def eval_done(event: EvalDone) -> None:
    """Take note of an evaluation."""


@hookspec
def sample_written(event: SampleWritten) -> None:
    """Take note of a text that the model wrote while training."""


@hookspec
def checkpoint_saved(event: CheckpointSaved) -> None:
    """Take note of a committed checkpoint."""


@hookspec
def run_ended(event: RunEnded) -> None:
    """Take note of a run's end, whatever its reason."""
