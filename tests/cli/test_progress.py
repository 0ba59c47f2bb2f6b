"""How far a long reading is, on a terminal and elsewhere."""

from __future__ import annotations

import io

from commandline import TEXT, TINY, Run

from splitbit_kit.cli import console
from splitbit_kit.cli.console import LiveView, TrainingView
from splitbit_kit.cli.progress import Paced


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def paced(every: float) -> tuple[Paced, Clock, list[str]]:
    clock, said = Clock(), []  # type: ignore[var-annotated]
    return (
        Paced(lambda line, share: said.append(line), every, lambda: said.append("done"), clock),
        clock,
        said,
    )


def work(tell: Paced, clock: Clock, seconds: float, what: str = "tokenising") -> None:
    for percent in range(101):
        clock.now += seconds / 100
        tell(what, percent / 100)


def test_what_is_done_soon_is_not_talked_about() -> None:
    tell, clock, said = paced(0.2)
    work(tell, clock, 0.9)
    work(tell, clock, 0.9, "reading text")
    assert said == []


def test_lines_come_at_most_so_often_and_say_what_is_left() -> None:
    tell, clock, said = paced(10.0)
    work(tell, clock, 42.0)
    assert len(said) == 5 and said[-1] == "done"
    assert said[0].startswith("tokenising: 2") and said[0].endswith("left")
    shares = [int(line.split(": ")[1].split("%")[0]) for line in said[:-1]]
    assert shares == sorted(shares)
    assert "0:1" in said[2]
    said.clear()
    work(tell, clock, 15.0, "reading text")
    assert said[0].startswith("reading text: 6") and said[1:] == ["done"]


def test_nothing_done_yet_gives_no_time_that_is_left() -> None:
    tell, clock, said = paced(1.0)
    tell("reading text", 0.0)
    clock.now += 2
    tell("reading text", 0.0)
    assert said == ["reading text: 0%"]


def test_a_plain_view_writes_lines_with_the_time(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    stream = io.StringIO()
    view = TrainingView(stream)
    clock = Clock()
    view.progress._clock = clock
    work(view.progress, clock, 25.0)
    lines = stream.getvalue().splitlines()
    assert [line[8:22] for line in lines] == ["  tokenising: "] * 2


def test_a_live_view_draws_one_line_and_takes_it_away() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    view = LiveView(stream)
    clock = Clock()
    view.progress._clock = clock
    work(view.progress, clock, 5.0)
    view.notify("a line meanwhile")
    view.close()
    text = stream.getvalue()
    assert "tokenising: 5" in text and "\x1b[2K" in text
    assert "a line meanwhile\n" in text
    assert text.rindex("\x1b[?25h") > text.find("\x1b[?25l")
    assert "tokenising" not in text[text.index("a line meanwhile") :]


def test_a_training_tells_every_stage_of_a_long_text(run: Run, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    heard: list[tuple[str, float]] = []
    monkeypatch.setattr(
        console.Paced, "__call__", lambda self, what, share: heard.append((what, share))
    )
    argv = [*TINY, "--set", "tokenizer.kind=bpe", "--set", "tokenizer.vocab_size=300"]
    assert run("train", "text.txt", *argv, "--steps", "1").code == 0
    stages = list(dict.fromkeys(what for what, _ in heard))
    assert stages == ["reading text", "learning the vocabulary", "tokenising"]
    for stage in stages:
        shares = [share for what, share in heard if what == stage]
        assert shares == sorted(shares) and shares[-1] == 1.0
    heard.clear()
    assert run("eval", "runs/tiny-llama-1", "text.txt", "--backend", "numpy").code == 0
    assert {what for what, _ in heard} >= {"reading text"}
    assert TEXT
