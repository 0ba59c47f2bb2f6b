"""The training loop: steps, evaluations, samples, checkpoints, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Any, Protocol

from splitbit_kit.api import (
    CheckpointSaved,
    EvalDone,
    Event,
    RunEnded,
    RunStarted,
    SampleWritten,
    SplitbitError,
    StepDone,
)
from splitbit_kit.compute import Compute
from splitbit_kit.engine.optable import OpTable
from splitbit_kit.evaluate import Evaluation, evaluate
from splitbit_kit.formats import checkpoint, jsonl
from splitbit_kit.formats.checkpoint import Checkpoint
from splitbit_kit.formats.safetensors import Tensors
from splitbit_kit.generate import generate
from splitbit_kit.models.decoder import Decoder
from splitbit_kit.text.batches import Batch, Windows, batch
from splitbit_kit.training.config import Config, to_dict
from splitbit_kit.training.copies import Copies
from splitbit_kit.training.data import Data
from splitbit_kit.training.learner import Learner, NonFiniteError
from splitbit_kit.training.run_folder import ModelHeader, RunFolder, model_tensors

COPY_STATISTICS = ("quantizer", "quantized_model", "quantized_bytes", "quantized_loss")
"""The closing statistics of the best model's copy; None if there is none."""

MOST_SKIPPED = 10  # steps in a row, by the policy "skip", before a run stops all the same


class Interrupted(Exception):
    """The user asked the run to stop; it was saved first."""


class Listener(Protocol):
    """Whoever wants to see the events of a run."""

    def __call__(self, event: Event) -> None:
        """Take note of one event."""


@dataclass
class Progress:
    """How far a run is: all that, besides weights and moments, it needs to go on."""

    step: int = 0
    sample: int = 0  # the data cursor: training samples used, in order
    seconds: float = 0.0
    best_loss: float | None = None
    best_step: int = 0
    last_loss: float | None = None  # of the newest evaluation
    evaluated: int = -1  # the step it was made at
    sampled: int = -1
    skipped: int = 0  # steps in a row


class Trainer:
    """A run in its folder. `run` goes from where `progress` is to the last step."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        data: Data,
        learner: Learner,
        compute: Compute,
        windows: Windows,
        listeners: list[Listener],
        *,
        copies: Copies,
        should_stop: Callable[[], bool] = lambda: False,
        notify: Callable[[str], None] = lambda line: None,
        machine: Mapping[str, Any] | None = None,
        versions: Mapping[str, str] | None = None,
    ) -> None:
        self.config = config
        self.folder = folder
        self.data = data
        self.learner = learner
        self.compute = compute
        self.windows = windows
        self.progress = Progress()
        self._inference = compute.table(train=False)
        self._listeners = [self._write_metrics, *listeners]
        self._should_stop = should_stop
        self._copies = copies
        self._copy: dict[str, Any] = dict.fromkeys(COPY_STATISTICS)
        self._machine = machine or {}
        self._versions = versions or {}
        self._notify = notify
        self._started = time.perf_counter()
        self._saved: tuple[int, int, int] | None = None

    # ---- the loop

    def run(self) -> dict[str, Any]:
        """Train to the last step and return the closing statistics.

        Raises Interrupted once everything is saved, if a stop was asked for; NonFiniteError, with
        no checkpoint replaced, if the training went astray.
        """
        progress, steps = self.progress, self.config.train.steps
        self._started = time.perf_counter() - progress.seconds
        try:
            self._emit(
                RunStarted(
                    self.folder.path,
                    to_dict(self.config),
                    self.learner.params.count,
                    len(self.data.training),
                    self.learner.origins,
                    progress.step,
                    steps,
                    self._machine,
                    self._versions,
                )
            )
            if self._saved is None:
                self._save()  # a run that is killed early knows what text it was begun with
            self._copies.mend()  # it was killed before it made one, or wants another
            while True:
                self._stop_if_asked()
                self._evaluate_if_due()
                self._sample_if_due()
                self._save_if_due()
                if progress.step >= steps:
                    break
                self._one_step()
            checkpoint.replace_model(self.folder.final, self._model())
            self._measure_copy()
        except Interrupted:
            self._save()
            self._emit(RunEnded(progress.step, "interrupted", self.statistics()))
            raise
        except SplitbitError as error:
            with suppress(SplitbitError):  # the first error counts, not that it cannot be noted
                self._emit(RunEnded(progress.step, str(error), self.statistics()))
            raise
        self._emit(RunEnded(progress.step, "finished", self.statistics()))
        return self.statistics()

    def _one_step(self) -> None:
        progress = self.progress
        begun = time.perf_counter()
        batches = self._batches(progress.sample)
        try:
            outcome = self.learner.step(progress.step, batches)
        except NonFiniteError as error:
            self._skip_or_raise(error)
            return
        finally:
            progress.sample += sum(b.starts.size - 1 for b in batches)
        progress.skipped = 0
        progress.step += 1
        self._emit(
            StepDone(
                step=progress.step,
                loss=outcome.loss,
                lr=outcome.lr,
                grad_norm=outcome.grad_norm,
                tokens=outcome.tokens,
                seconds=time.perf_counter() - begun,
            )
        )

    def _batches(self, sample: int) -> list[Batch]:
        train = self.config.train
        firsts = range(sample, sample + train.batch_size * train.grad_accum, train.batch_size)
        found = [batch(self.data.training, self.windows, n, train.batch_size) for n in firsts]
        return [b for b in found if b.ids.size]

    def _skip_or_raise(self, error: NonFiniteError) -> None:
        progress = self.progress
        progress.skipped += 1
        if self.config.train.non_finite == "stop":
            raise NonFiniteError(
                f"{error}; the checkpoints are as they were; try a lower --lr, "
                "or --set train.non_finite=skip"
            )
        if progress.skipped >= MOST_SKIPPED:
            raise NonFiniteError(f"{error}; {MOST_SKIPPED} steps in a row were skipped")
        self._notify(f"{error}; the step is skipped")
        progress.step += 1

    # ---- what happens between steps

    def _due(self, every: int) -> bool:
        return self.progress.step % every == 0 or self.progress.step == self.config.train.steps

    def _evaluate_if_due(self) -> None:
        progress, train = self.progress, self.config.train
        if progress.evaluated == progress.step or not self._due(train.eval_every):
            return
        begun = time.perf_counter()
        found = self._evaluate(self.learner.decoder, self._inference)
        progress.evaluated, progress.last_loss = progress.step, found.loss
        held = inf if progress.best_loss is None else progress.best_loss
        best = progress.step > 0 and found.loss < held
        self._emit(
            EvalDone(
                progress.step,
                found.loss,
                found.perplexity,
                found.bits_per_byte,
                found.tokens,
                time.perf_counter() - begun,
                best,
            )
        )
        if best:
            model = self._model()
            try:
                checkpoint.replace_model(self.folder.best, model)
            except SplitbitError as error:  # some systems do not replace a file that is in use
                self._notify(str(error))
            else:
                progress.best_loss, progress.best_step = found.loss, progress.step
                self._copies.write(model)

    def _evaluate(self, decoder: Decoder, table: OpTable) -> Evaluation:
        train = self.config.train
        return evaluate(
            decoder,
            self.compute,
            table,
            self.data.validation,
            self.data.tokenizer.byte_lengths,
            seq_len=train.seq_len,
            rows=train.batch_size,
            check=self._stop_if_asked,
        )

    def _measure_copy(self) -> None:
        """Evaluate the copy of the best model, as it stands on the disk, like the model itself."""
        self._copies.mend()
        copy, vocabulary = self._copies.of_best, self.data.tokenizer.vocab_size
        try:
            decoder = self._copies.decoder(self.config.model, vocabulary, self.compute.dtype)
            if copy is None or decoder is None:
                return
            loss = self._evaluate(decoder, self.compute.table(train=False)).loss
        except SplitbitError as error:  # the models stand; a plugin's decoding may fail
            self._notify(str(error))
        else:
            row = (self.config.quantize.format, str(copy), copy.stat().st_size, loss)
            self._copy = dict(zip(COPY_STATISTICS, row, strict=True))

    def _sample_if_due(self) -> None:
        progress, sample = self.progress, self.config.sample
        every = sample.every or self.config.train.eval_every
        if progress.sampled == progress.step or not progress.step or not self._due(every):
            return
        text = "".join(
            generate(
                self.learner.decoder,
                self.compute,
                self.data.tokenizer,
                sample.prompt,
                sample.sampling(self.config.train.seed + progress.step),
                seen=self.data.seen,
                table=self._inference,
                check=self._stop_if_asked,
            )
        )
        progress.sampled = progress.step
        self._emit(SampleWritten(progress.step, sample.prompt, text))

    def _save_if_due(self) -> None:
        step, every = self.progress.step, self.config.checkpoint.save_every
        due = self._due(every) or self._copy_due()
        if step and due and self._stage() != self._saved:
            self._save()

    def _copy_due(self) -> bool:
        """Whether a checkpoint that is saved now is packed too."""
        every = self.config.quantize.every
        return bool(every and self.progress.step) and self._due(every)

    def _stage(self) -> tuple[int, int, int]:
        """Return what tells one moment of the run from another, as far as a checkpoint goes."""
        return self.progress.step, self.progress.evaluated, self.progress.sampled

    def _stop_if_asked(self) -> None:
        if self._should_stop():
            raise Interrupted

    # ---- what goes to disk

    def _save(self) -> None:
        progress = self.progress
        progress.seconds = time.perf_counter() - self._started
        state = {
            **vars(progress),
            "seed": self.config.train.seed,
            "tokenizer_sha256": self.data.tokenizer.sha256,
            "data_sha256": self.data.sha256,
        }
        model = self._model()
        tensors = {"model": model, "optimizer": Tensors(self.learner.state, {})}
        if self._copy_due():
            tensors |= self._copies.beside(model)
        path = checkpoint.save(self.folder.checkpoints, tensors, state)
        self._saved = self._stage()
        try:
            checkpoint.prune(self.folder.checkpoints, self.config.checkpoint.keep)
        except SplitbitError as error:  # the new one stands; an old one too many does no harm
            self._notify(str(error))
        best = progress.best_step == progress.step
        self._emit(CheckpointSaved(progress.step, path, best))

    def restore(self, saved: Checkpoint) -> None:
        """Go back to a checkpoint. Raises SplitbitError if it is of other data."""
        for what, mine, fix in (
            ("tokenizer", self.data.tokenizer.sha256, "put its tokenizer.json back"),
            ("data", self.data.sha256, "bring the same text back"),
        ):
            if saved.state.get(f"{what}_sha256") != mine:
                raise SplitbitError(
                    f"{saved.path}: the {what} is not what the run was begun with; "
                    f"{fix}, or begin a new run with --out"
                )
        origin = str(saved.path)
        self.learner.params.load(saved.tensors["model"].arrays, origin)
        for name, array in self.learner.state.items():
            kept = saved.tensors["optimizer"].arrays.get(name)
            if kept is None or kept.shape != array.shape:
                raise SplitbitError(
                    f"{origin}: optimizer state {name} is missing or of other shape"
                )
            array[...] = kept
        self.progress = Progress(**{key: saved.state[key] for key in vars(Progress())})
        self._saved = self._stage()

    def _model(self) -> Tensors:
        header = ModelHeader(
            config=self.config.model,
            vocabulary=self.data.tokenizer.vocab_size,
            tokenizer_sha256=self.data.tokenizer.sha256,
            step=self.progress.step,
            validation_loss=self.progress.last_loss,
            seen=self.data.seen,
        )
        return model_tensors(self.learner.params, header)

    # ---- what is told

    def statistics(self) -> dict[str, Any]:
        """Return the closing statistics; losses are of the validation split."""
        progress, train = self.progress, self.config.train
        seconds = time.perf_counter() - self._started
        tokens = progress.sample * train.seq_len
        return {
            "total_steps": progress.step,
            "epochs": progress.sample / self.windows.per_epoch,
            "best_loss": progress.best_loss,
            "final_loss": progress.last_loss,
            "total_time_s": seconds,
            "tokens_per_second": tokens / seconds if seconds else 0.0,
            **self._copy,
        }

    def _emit(self, event: Event) -> None:
        """Tell everyone, and then raise the first error that telling gave."""
        errors = []
        for listener in self._listeners:
            try:
                listener(event)
            except SplitbitError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _write_metrics(self, event: Event) -> None:
        row = _METRICS[type(event)](event)
        if row is not None:
            jsonl.append(self.folder.metrics, row)


def _row(kind: str) -> Callable[[Any], dict[str, Any]]:
    return lambda event: {"kind": kind, **vars(event)}


_METRICS: dict[type, Callable[[Any], dict[str, Any] | None]] = {
    RunStarted: lambda event: {
        "kind": "run",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "step": event.step,
        "steps": event.steps,
        "parameters": event.parameters,
        "tokens": event.tokens,
        "origins": event.origins,
        "machine": event.machine,
        "versions": event.versions,
    },
    StepDone: _row("train"),
    EvalDone: _row("eval"),
    SampleWritten: _row("sample"),
    CheckpointSaved: lambda event: None,
    RunEnded: lambda event: {
        "kind": "end",
        "step": event.step,
        "reason": event.reason,
        **event.statistics,
    },
}
