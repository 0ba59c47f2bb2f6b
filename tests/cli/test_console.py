"""What a training shows, on a terminal and elsewhere, without one being trained."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from splitbit_kit.api import (
    CheckpointSaved,
    EvalDone,
    Event,
    RunEnded,
    RunStarted,
    SampleWritten,
    StepDone,
)
from splitbit_kit.cli.console import (
    LiveView,
    Pace,
    TrainingView,
    by_origin,
    is_plain,
    printable,
    set_apart,
    training_view,
)
from splitbit_kit.training.config import Config, to_dict

STATISTICS = {
    "total_steps": 200,
    "epochs": 1.5,
    "best_loss": 2.0,
    "final_loss": None,
    "total_time_s": 75.0,
    "tokens_per_second": 1234.5,
    "quantizer": None,
    "quantized_model": None,
    "quantized_bytes": None,
    "quantized_loss": None,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def ticks(every: float) -> Any:
    times: Iterator[float] = (n * every for n in count())
    return lambda: next(times)


def started(step: int = 0, steps: int = 200, **changes: Any) -> RunStarted:
    config = to_dict(Config().with_keys(**changes))
    ops = {"linear": "numpy"}
    return RunStarted(Path("runs/my run"), config, 1_234_567, 400_000, ops, step, steps)


def step(n: int) -> StepDone:
    return StepDone(n, 3.0, 1e-3, 0.5, 256, 0.125)


def evaluation(n: int, loss: float, best: bool = False) -> EvalDone:
    return EvalDone(n, loss, 9.0, 1.5, 4096, 0.5, best)


def shown(*events: Event, view: TrainingView | None = None) -> list[str]:
    """Return the lines of a plain view, without their times."""
    stream = io.StringIO()
    view = view or TrainingView(stream, ticks(0.01))
    for event in events:
        view(event)
    return [line[10:] for line in stream.getvalue().splitlines()]


def test_header_says_what_was_chosen() -> None:
    text = "\n".join(shown(started(train__batch_size=4, train__grad_accum=2, train__seq_len=32)))
    for part in ("tiny-llama: 1,234,567 parameters", "built-in corpus", "200 steps of 256 tokens"):
        assert part in text


def test_a_resumed_run_says_where_it_begins_and_claims_no_best() -> None:
    lines = shown(started(step=100), evaluation(120, 1.0))
    assert "from step 100" in "\n".join(lines)
    assert "best so far" not in lines[-1]


def test_best_is_said_where_the_event_says_so() -> None:
    lines = shown(started(), evaluation(1, 4.0, best=True), evaluation(2, 4.5))[-2:]
    assert ["best so far" in line for line in lines] == [True, False]


def test_step_lines_are_every_2_percent_or_few_seconds_whichever_is_rarer() -> None:
    def spoken(seconds_a_step: float, steps: int) -> list[int]:
        stream = io.StringIO()
        now = [0.0]
        view = TrainingView(stream, lambda: now[0])
        view(started(steps=steps))
        for n in range(1, steps + 1):
            now[0] += seconds_a_step
            view(step(n))
        lines = [line for line in stream.getvalue().splitlines() if "step " in line[:20]]
        return [int(line.split("step")[1].split("/")[0]) for line in lines]

    assert spoken(0.5, 1000)[:3] == [1, 21, 41]  # 2 % are 10 s
    assert spoken(0.125, 1000)[:3] == [1, 25, 49]  # 2 % are 2.5 s: every 3 s
    assert spoken(60, 10) == list(range(1, 11))
    assert spoken(1e-6, 1000) == [1, 1000]


def test_a_step_line_has_loss_validation_loss_time_left_speed_and_rate() -> None:
    lines = shown(started(), evaluation(0, 5.0), step(1))
    for part in (
        "step   1/200",
        "loss 3.0000",
        "val 5.0000",
        "left",
        "2,048 tokens/s",
        "lr 1.0e-03",
    ):
        assert part in lines[-1]


def test_a_sample_stands_behind_a_margin_without_control_characters() -> None:
    lines = shown(started(), SampleWritten(5, "Once ", "upon\x1b[2J\r a\ntime\x07"))
    assert lines[-2:] == ["    | Once upon�[2J", "    |  a", "    | time�"][-2:]
    assert "\x1b" not in "".join(lines)
    assert set_apart("") == ["    | "]


@pytest.mark.parametrize(
    ("reason", "last"),
    [
        ("finished", """next: splitbit-kit generate 'runs/my run' --prompt "The\""""),
        ("interrupted", "saved; go on with: splitbit-kit train --resume 'runs/my run'"),
        ("disk full", "stopped after step 200, 1.50 epochs, 1:15; 1,234 tokens/s in all"),
    ],
)
def test_the_last_line_says_what_to_type_next(reason: str, last: str) -> None:
    assert shown(started(), RunEnded(200, reason, STATISTICS))[-1] == last


def test_the_loss_of_a_quantised_copy_stands_under_the_models() -> None:
    copy = {
        "quantizer": "q8_0",
        "quantized_model": "runs/my run/best/model-q8_0.safetensors",
        "quantized_bytes": 3_972_000,
        "quantized_loss": 2.0004,
    }
    lines = shown(started(), RunEnded(200, "finished", {**STATISTICS, **copy}))
    assert lines[-3:-1] == [
        "validation loss: best 2.0000, final not measured",
        "best as q8_0: loss 2.0004, 4.0 MB, runs/my run/best/model-q8_0.safetensors",
    ]


def test_a_prompt_with_quotes_can_be_pasted() -> None:
    begun = started(sample__prompt='say "$HOME"\nnow')
    lines = shown(begun, RunEnded(200, "finished", STATISTICS))
    assert lines[-1].endswith("""--prompt 'say "$HOME"'""")


def test_a_stream_nobody_reads_silences_the_view_and_stops_nothing() -> None:
    class Broken(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    stream = Broken()
    shown(
        started(),
        step(1),
        CheckpointSaved(1, Path("step-000001"), False),
        view=TrainingView(stream),
    )
    assert "saved" not in stream.getvalue()


def test_a_signal_in_the_midst_of_a_write_is_told_after_it() -> None:
    class Interrupting(io.StringIO):
        def write(self, text: str) -> int:
            if "saved" in text:
                view.notify("stopping")
            return super().write(text)

    stream = Interrupting()
    view = TrainingView(stream)
    view(CheckpointSaved(1, Path("step-000001"), False))
    assert [line[10:] for line in stream.getvalue().splitlines()] == [
        "saved step-000001",
        "stopping",
    ]


def test_a_terminal_gets_a_line_that_moves_and_a_visible_cursor_at_the_end() -> None:
    stream = Terminal()
    view = LiveView(stream, ticks(1.0))
    for event in (
        started(),
        evaluation(0, 5.0),
        step(1),
        SampleWritten(1, "", "[bold]not markup[/bold]"),
        step(2),
        RunEnded(2, "finished", STATISTICS),
    ):
        view(event)
    view.close()
    text = stream.getvalue()
    assert "\x1b[2K" in text  # a line drawn over
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert "[bold]not markup[/bold]" in text
    assert text.endswith('--prompt "The"\n')


@pytest.mark.parametrize(
    ("stream", "environ", "plain"),
    [
        (Terminal(), {"TERM": "xterm"}, False),
        (Terminal(), {"TERM": "dumb"}, True),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, True),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": ""}, False),
        (io.StringIO(), {"TERM": "xterm"}, True),
    ],
)
def test_what_gets_plain_lines(stream: io.StringIO, environ: dict[str, str], plain: bool) -> None:
    assert is_plain(stream, environ) == plain


def test_the_view_suits_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert isinstance(training_view(Terminal()), LiveView)
    assert not isinstance(training_view(io.StringIO()), LiveView)


def test_pace_is_of_the_newest_steps() -> None:
    pace = Pace(ticks(2.0))
    pace.begin()
    for n in range(1, 30):
        pace.step(step(n))
    assert pace.tokens_per_second() == 2048
    assert pace.seconds_a_step() == 2.0


def test_origins_name_what_differs_from_most() -> None:
    assert by_origin({}) == ""
    assert by_origin({"linear": "numpy", "add": "numpy"}) == "numpy"
    mixed = {"linear": "numba", "add": "numpy", "gelu": "numba"}
    assert by_origin(mixed) == "numba, but numpy (add)"


def test_printable_keeps_words_of_any_language() -> None:
    assert printable("naïve 文字 \t\n") == "naïve 文字 \t\n"
    assert printable("a\x1b[31m\x00") == "a�[31m�"
