"""What happens in a run, as plain data; hooks and trackers get these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class RunStarted:
    """A training run begins, or goes on from `step` when resumed."""

    folder: Path
    config: Mapping[str, Any]
    """section -> key -> value, resolved"""
    parameters: int
    """how many numbers are trained"""
    tokens: int
    """in the training split"""
    origins: Mapping[str, str]
    """op -> the backend that serves it; several with commas between where sites differ"""
    step: int
    """how many steps are made already"""
    steps: int
    """how many there will be in all"""
    machine: Mapping[str, Any] = field(default_factory=dict)
    """fact -> value: processor, architecture, system, and what the hardware probe found"""
    versions: Mapping[str, str] = field(default_factory=dict)
    """distribution -> version: ours, Python's, and those of all that can change the numbers"""


@dataclass(frozen=True)
class StepDone:
    """One optimizer step was made. `step` counts from 1."""

    step: int
    loss: float
    """mean nats a token over the step's batch, before the update"""
    lr: float
    grad_norm: float
    """global norm before clipping"""
    tokens: int
    """in the step's batch"""
    seconds: float
    """wall-clock time of the step"""


@dataclass(frozen=True)
class EvalDone:
    """The validation split was evaluated after `step` steps."""

    step: int
    loss: float
    """mean nats a token"""
    perplexity: float
    """exp(loss)"""
    bits_per_byte: float
    tokens: int
    """that were predicted"""
    seconds: float
    """wall-clock time of the evaluation"""
    best: bool
    """whether no earlier evaluation of the run, the one before training aside, was lower"""


@dataclass(frozen=True)
class SampleWritten:
    """The model wrote a text after `step` steps."""

    step: int
    prompt: str
    text: str


@dataclass(frozen=True)
class CheckpointSaved:
    """A checkpoint was committed to disk."""

    step: int
    path: Path
    best: bool
    """whether it is the model with the lowest validation loss so far"""


@dataclass(frozen=True)
class RunEnded:
    """The run is over: finished, interrupted or failed."""

    step: int
    reason: str
    """ "finished", "interrupted" or one line that says what failed"""
    statistics: Mapping[str, Any]
    """the run's closing numbers, as `train --json` has them"""


Event = RunStarted | StepDone | EvalDone | SampleWritten | CheckpointSaved | RunEnded


class Tracker(Protocol):
    """Sees every event of a run. An exception in it is reported once and stops nothing."""

    def event(self, event: Event) -> None:
        """Take note of one event; called at most a few times a step."""
        ...

    def close(self) -> None:
        """Finish; called once, after RunEnded, and without it where a run ends otherwise."""
        ...


@dataclass(frozen=True)
class TrackerOffer:
    """A tracker by name, used only in runs that ask for it."""

    name: str
    summary: str
    build: Callable[..., Tracker]
    """build(folder, **options): folder, a Path, is the tracker's own in the run's, and exists"""
    needs: tuple[str, ...] = ()
