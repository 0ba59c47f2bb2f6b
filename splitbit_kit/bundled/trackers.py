"""TensorBoard: a run's curves and samples as event files, by tensorboardX."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from splitbit_kit.api import (
    CheckpointSaved,
    EvalDone,
    Event,
    RunEnded,
    RunStarted,
    SampleWritten,
    StepDone,
    TrackerOffer,
    hookimpl,
)

SHOWN_EVERY = 10.0  # seconds until what was written can be seen


class TensorBoard:
    """A tracker that writes event files, to be seen by `tensorboard --logdir runs`.

    every: steps between two points of the curves that could have one a step. Each start of a run, a
    resume included, has a file of its own, which hides what earlier ones tell of later steps.
    Raises ValueError unless every >= 1.
    """

    def __init__(self, folder: Path, *, every: int = 1) -> None:
        if every < 1:
            raise ValueError(f"every: {every}; at least 1 is expected")
        # The parts, not its SummaryWriter: that one writes in a thread, whose errors nobody hears.
        from tensorboardX import event_file_writer, summary
        from tensorboardX.proto import event_pb2

        self._every = every
        self._summary = summary
        self._protocol = event_pb2
        # its own names differ by the second, and the later of two would wipe out the earlier
        self._writer = event_file_writer.EventsWriter(
            str(folder / "events"), f".{time.time_ns()}.splitbit"
        )
        self._shown = time.monotonic()

    def event(self, event: Event) -> None:
        """Write what the event tells."""
        step = event.step
        match event:
            case RunStarted():
                self._purge(step + 1)
                self._text("run/configuration", _listed(event.config), step)
                self._text("run/machine", _listed({**event.machine, **event.versions}), step)
            case StepDone() if step % self._every == 0:
                speed = event.tokens / event.seconds if event.seconds else 0.0
                self._scalars(
                    step,
                    {
                        "train/loss": event.loss,
                        "train/lr": event.lr,
                        "train/grad_norm": event.grad_norm,
                        "perf/tokens_per_s": speed,
                    },
                )
            case EvalDone():
                self._scalars(
                    step,
                    {
                        "eval/loss": event.loss,
                        "eval/perplexity": event.perplexity,
                        "eval/bits_per_byte": event.bits_per_byte,
                    },
                )
            case SampleWritten():
                self._text("sample", event.prompt + event.text, step)
            case RunEnded():
                figures = event.statistics
                if (loss := figures.get("quantized_loss")) is not None:
                    self._scalars(step, {f"eval/loss_{figures['quantizer']}": loss})
                self._text("run/end", _listed({"reason": event.reason, **figures}), step)
        if isinstance(event, CheckpointSaved) or time.monotonic() - self._shown > SHOWN_EVERY:
            self._writer.flush()
            self._shown = time.monotonic()

    def close(self) -> None:
        """Write what still waits."""
        self._writer.close()

    def _purge(self, step: int) -> None:
        log = self._protocol.SessionLog(status=self._protocol.SessionLog.START)
        self._write(step, session_log=log)

    def _scalars(self, step: int, values: Mapping[str, float]) -> None:
        for tag, value in values.items():
            self._write(step, summary=self._summary.scalar(tag, value))

    def _text(self, tag: str, text: str, step: int) -> None:
        # indented, it is code to Markdown, which then shows it as it stands, whatever is in it
        shown = "\n".join(f"    {line}" for line in text.splitlines())
        self._write(step, summary=self._summary.text(tag, shown))

    def _write(self, step: int, **content: Any) -> None:
        event = self._protocol.Event(step=step, wall_time=time.time(), **content)
        self._writer.write_event(event)


def _listed(facts: Mapping[str, Any]) -> str:
    lines = []
    for key, value in facts.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{key}]", *(f"{name} = {item!r}" for name, item in value.items())]
        else:
            lines.append(f"{key} = {value!r}")
    return "\n".join(lines)


@hookimpl
def trackers() -> Sequence[TrackerOffer]:
    """Return our trackers."""
    return [
        TrackerOffer(
            "tensorboard",
            "event files for TensorBoard; pip install 'splitbit-kit[tensorboard]'",
            TensorBoard,
            needs=("tensorboardX",),
        )
    ]
