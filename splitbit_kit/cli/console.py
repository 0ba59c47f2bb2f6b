"""How a training shows itself: a live line on a terminal, plain lines with the time elsewhere."""

from __future__ import annotations

import os
import shlex
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from splitbit_kit.api import (
    CheckpointSaved,
    EvalDone,
    Event,
    RunEnded,
    RunStarted,
    SampleWritten,
    StepDone,
)
from splitbit_kit.cli.progress import Paced
from splitbit_kit.quantities import counted, duration, size

REDRAWN_EVERY = 0.2  # seconds, on a terminal
LINES = 50  # step lines in a whole run, elsewhere
LINE_EVERY = 3.0  # seconds between two of them, at least
RECENT = 20  # steps that rate and time left are taken from


def is_plain(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether nothing but plain lines should be written to a stream. See https://no-color.org."""
    dumb = environ.get("TERM", "") in ("dumb", "unknown")
    return dumb or bool(environ.get("NO_COLOR")) or not stream.isatty()


def printable(text: str) -> str:
    """Return text without control characters other than line ends and tabs."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


class TrainingView:
    """A listener that writes plain lines, each with the time. `close` it when the run is over.

    A stream that nobody reads any more silences the view; the training goes on.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.perf_counter) -> None:
        self._stream = stream
        self._clock = clock
        self._pace = Pace(clock)
        self._busy = False
        self._unread = False
        self._waiting: list[str] = []
        self._steps = 0
        self._spoken_step = 0
        self._spoken_at = clock()
        self.started: RunStarted | None = None
        self.ended: RunEnded | None = None
        self._validation: float | None = None
        self.progress = self._paced()
        """A `text.progress.Progress`: shows how far work on text is that takes long."""

    def __call__(self, event: Event) -> None:
        """Show one event."""
        match event:
            case RunStarted():
                self.started, self._steps = event, event.steps
                self._spoken_step = event.step
                self._pace.begin()
                self._say(*header(event))
                self._begin(event)
            case StepDone():
                self._pace.step(event)
                self._step(event)
            case EvalDone():
                self._validation = event.loss
                self._say(self._evaluation(event))
            case SampleWritten():
                self._say(f"sample at step {event.step}:", *set_apart(event.prompt + event.text))
            case CheckpointSaved():
                self._say(f"saved {event.path.name}")
            case RunEnded():
                self.close()
                self.ended = event
                if self.started is not None:
                    self._say(*closing(event, self.started))

    def notify(self, line: str) -> None:
        """Show a line. May be called from a signal handler, in the midst of another output."""
        if self._busy:  # a stream cannot be written to while it is being written to
            self._waiting.append(line)
        else:
            self._say(line)

    def close(self) -> None:
        """Finish; nothing moves any more."""

    # ---- how it is written

    def _paced(self) -> Paced:
        return Paced(lambda line, share: self._say(line), every=10.0)

    def _begin(self, event: RunStarted) -> None:
        pass

    def _step(self, event: StepDone) -> None:
        """Write a line for one step in many: every 2 % or every few seconds, whichever is rarer."""
        now = self._clock()
        steps, seconds = event.step - self._spoken_step, now - self._spoken_at
        often_enough = steps * LINES >= self._steps and seconds >= LINE_EVERY
        if often_enough or event.step == 1 or event.step == self._steps:
            self._spoken_step, self._spoken_at = event.step, now
            self._say(self._step_line(event))

    def _write(self, line: str) -> None:
        self._stream.write(f"{time.strftime('%H:%M:%S')}  {line}\n")

    def _guarded(self, write: Callable[[], None]) -> None:
        if self._unread:
            return
        self._busy = True
        try:
            write()
            while self._waiting:
                self._write(printable(self._waiting.pop(0)))
            self._stream.flush()
        except OSError:
            self._unread = True
        finally:
            self._busy = False

    def _say(self, *lines: str) -> None:
        def write() -> None:
            for line in lines:
                self._write(printable(line))

        self._guarded(write)

    # ---- what is written

    def _step_line(self, event: StepDone) -> str:
        return "  ".join([f"step {self._place(event)}", *self._figures(event)])

    def _place(self, event: StepDone) -> str:
        return f"{event.step:{len(str(self._steps))}}/{self._steps}"

    def _figures(self, event: StepDone) -> list[str]:
        """Return what there is to say of a step, the most wanted first."""
        left = self._pace.seconds_a_step() * (self._steps - event.step)
        validation = [] if self._validation is None else [f"val {self._validation:.4f}"]
        return [
            f"loss {event.loss:.4f}",
            *validation,
            f"{duration(left)} left",
            f"{self._pace.tokens_per_second():,.0f} tokens/s",
            f"lr {event.lr:.1e}",
        ]

    def _evaluation(self, event: EvalDone) -> str:
        return (
            f"evaluation at step {event.step}: loss {event.loss:.4f}, "
            f"perplexity {event.perplexity:.2f}, {event.bits_per_byte:.4f} bits per byte "
            f"({counted(event.tokens, 'token')}, {event.seconds:.1f} s)"
            + ("  best so far" if event.best else "")
        )


class LiveView(TrainingView):
    """A listener for a terminal: one line at the bottom moves, the others stay."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.perf_counter) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        super().__init__(stream, clock)
        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._progress = Progress(
            BarColumn(bar_width=8),
            TextColumn("{task.description}", markup=False),
            console=self._console,
            auto_refresh=False,  # no thread: we redraw after steps, and compute undisturbed
            transient=True,
        )
        self._task = self._progress.add_task("", visible=False)
        self._drawn_at = 0.0

    def _paced(self) -> Paced:
        def draw(line: str, share: float) -> None:
            self._guarded(lambda: self._show_bar(line, share))

        return Paced(draw, REDRAWN_EVERY, done=lambda: self._guarded(self._hide_bar))

    def _show_bar(self, line: str, share: float) -> None:
        self._progress.update(
            self._task, total=1.0, completed=share, description=line, visible=True
        )
        self._progress.start()
        self._console.show_cursor(True)  # nobody could bring it back after a kill
        self._progress.refresh()

    def _hide_bar(self) -> None:
        self._progress.update(self._task, visible=False, refresh=True)

    def close(self) -> None:
        """Take the moving line away."""
        self._guarded(self._progress.stop)

    def _begin(self, event: RunStarted) -> None:
        def start() -> None:
            self._progress.update(
                self._task,
                total=event.steps,
                completed=event.step,
                description="evaluating",  # the first thing that is done
                visible=True,
            )
            self._progress.start()
            self._console.show_cursor(True)  # nobody could bring it back after a kill

        self._guarded(start)

    def _step(self, event: StepDone) -> None:
        now = self._clock()
        if now - self._drawn_at < REDRAWN_EVERY and event.step != self._steps:
            return
        self._drawn_at = now
        line = "  ".join([self._place(event), *self._figures(event)])
        self._guarded(
            lambda: self._progress.update(
                self._task, completed=event.step, description=line, refresh=True
            )
        )

    def _write(self, line: str) -> None:
        style = "cyan" if line.startswith(MARGIN) else None
        self._console.print(line, markup=False, style=style)


def training_view(stream: TextIO) -> TrainingView:
    """Return the view that suits a stream."""
    return TrainingView(stream) if is_plain(stream) else LiveView(stream)


class Pace:
    """How fast the newest steps were made."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ends: deque[float] = deque(maxlen=RECENT + 1)
        self._steps: deque[tuple[int, float]] = deque(maxlen=RECENT)  # tokens, seconds

    def begin(self) -> None:
        """Start the clock."""
        self._ends.append(self._clock())

    def step(self, event: StepDone) -> None:
        """Take note of a step."""
        self._ends.append(self._clock())
        self._steps.append((event.tokens, event.seconds))

    def tokens_per_second(self) -> float:
        """Return the rate of the steps alone, without evaluations and samples."""
        tokens, seconds = map(sum, zip(*self._steps, strict=True))
        return tokens / seconds if seconds else 0.0

    def seconds_a_step(self) -> float:
        """Return the time a step takes with all that happens between steps."""
        return (self._ends[-1] - self._ends[0]) / max(1, len(self._ends) - 1)


# ---- texts


MARGIN = "    | "


def set_apart(text: str) -> list[str]:
    """Return the lines of a sample, each behind a margin."""
    return [MARGIN + line for line in text.splitlines() or [""]]


def header(event: RunStarted) -> list[str]:
    """Return the lines that say what was chosen."""
    c: Mapping[str, Mapping[str, Any]] = {
        name: keys for name, keys in event.config.items() if isinstance(keys, Mapping)
    }
    model, train, compute = c["model"], c["train"], c["compute"]
    per_step = train["batch_size"] * train["grad_accum"] * train["seq_len"]
    texts = c["data"]["paths"]
    corpus = texts[0] if len(texts) == 1 else f"{len(texts)} paths" if texts else "built-in corpus"
    begun = f", from step {event.step}" if event.step else ""
    return [
        f"model    {event.config['preset']}: {counted(event.parameters, 'parameter')}, "
        f"{model['family']}, {counted(model['layers'], 'layer')}, width {model['width']}",
        f"text     {corpus}, {counted(event.tokens, 'training token')}, "
        f"vocabulary {c['tokenizer']['vocab_size']:,} ({c['tokenizer']['kind']})",
        f"compute  backend {compute['backend']}, {compute['precision']}, "
        f"{counted(compute['threads'], 'thread')}; ops: {by_origin(event.origins)}",
        f"run      {event.folder}: {counted(event.steps, 'step')} of "
        f"{counted(per_step, 'token')}{begun}",
    ]


def by_origin(origins: Mapping[str, str]) -> str:
    """Return where ops come from: "numpy", or "numba (linear, rotary), numpy (the others)"."""
    groups: dict[str, list[str]] = {}
    for op, origin in origins.items():
        groups.setdefault(origin, []).append(op)
    if len(groups) < 2:
        return "".join(groups)
    most = max(groups, key=lambda origin: len(groups[origin]))
    parts = [f"{o} ({', '.join(ops)})" for o, ops in groups.items() if o != most]
    return f"{most}, but {', '.join(parts)}"


def closing(event: RunEnded, started: RunStarted) -> list[str]:
    """Return the closing statistics and, last, what to type next."""
    s, folder = event.statistics, shlex.quote(str(started.folder))
    ended = event.reason in ("finished", "interrupted")
    how = event.reason if ended else "stopped"
    lines = [
        f"{how} after step {s['total_steps']:,}, {s['epochs']:.2f} epochs, "
        f"{duration(s['total_time_s'])}; {s['tokens_per_second']:,.0f} tokens/s in all",
        f"validation loss: best {_loss(s['best_loss'])}, final {_loss(s['final_loss'])}",
    ]
    if s["quantizer"]:
        lines += _copy(s)
    if event.reason == "finished":
        prompt = (started.config["sample"]["prompt"] or "The").splitlines()[0]
        lines.append(f"next: splitbit-kit generate {folder} --prompt {_quoted(prompt)}")
    elif event.reason == "interrupted":
        lines.append(f"saved; go on with: splitbit-kit train --resume {folder}")
    return lines if ended else lines[:-1]  # the reason is the error, which comes by itself


def _copy(statistics: Mapping[str, Any]) -> list[str]:
    """Return the lines on the best model's quantised copy."""
    s = statistics
    return [
        f"best as {s['quantizer']}: loss {_loss(s['quantized_loss'])}, "
        f"{size(s['quantized_bytes'])}, {s['quantized_model']}"
    ]


def _loss(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.4f}"


def _quoted(text: str) -> str:
    """Return text for a command line, in the double quotes that every shell knows if they do."""
    return shlex.quote(text) if set(text) & set('"$`\\!') else f'"{text}"'
