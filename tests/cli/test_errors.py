"""How a command line ends when something is wrong: one line, the right code, no traceback."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from commandline import TINY, Run, clean_environment, process

from splitbit_kit import __main__ as program
from splitbit_kit.__main__ import one_line
from splitbit_kit.api import SplitbitError, UsageError
from splitbit_kit.cli.settings import VERBS


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Make `train` raise the exception that is put into the list."""
    raised: list[BaseException] = []

    def fail(*args: object, **more: object) -> None:
        raise raised[0]

    monkeypatch.setattr("splitbit_kit.training.run.train", fail)
    return raised


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (SplitbitError("the disk is full"), 1, "error: the disk is full"),
        (UsageError("train.lr: no"), 2, "error: train.lr: no"),
        (SplitbitError("two\nlines\x1b[2J"), 1, "error: two lines [2J"),
        (
            ZeroDivisionError("by zero"),
            1,
            "unexpected error: ZeroDivisionError: by zero; "
            "run with --debug for the traceback, and please report it",
        ),
        (PermissionError(13, "Permission denied", "r/x"), 1, "error: r/x: Permission denied"),
        (
            MemoryError("9 GiB"),
            1,
            "error: not enough memory; a smaller model or batch needs less (9 GiB)",
        ),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_exception_is_one_line(
    run: Run, failing: list[BaseException], error: BaseException, code: int, line: str
) -> None:
    failing.append(error)
    failed = run("train")
    assert (failed.code, failed.out, failed.err) == (code, "", line + "\n")


@pytest.mark.parametrize("error", [SplitbitError("full"), ZeroDivisionError("by zero")])
@pytest.mark.parametrize("argv", [["--debug", "train"], ["train", "--debug", "--seed", "1"]])
def test_debug_shows_the_traceback_wherever_it_stands(
    run: Run, failing: list[BaseException], error: Exception, argv: list[str]
) -> None:
    failing.append(error)
    failed = run(*argv)
    assert failed.code == 1
    assert "Traceback (most recent call last)" in failed.err
    assert str(error) in failed.err.splitlines()[-1]


def test_a_full_or_closed_standard_error_is_no_reason_to_fail_otherwise(
    failing: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    failing.append(SplitbitError("full"))
    monkeypatch.setattr(sys, "stderr", Closed())
    assert program.main(["train"]) == 1


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["trian"], "did you mean train?; see splitbit-kit --help"),
        (["qqq"], f"there are {', '.join(VERBS)}; see"),
        (["train", "--set"], "--set"),
        (["eval"], "RUN"),
        (["--nonsense"], "--nonsense"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_line_exits_with_2(run: Run, argv: list[str], said: str) -> None:
    failed = run(*argv)
    assert failed.code == 2
    assert said in failed.error


def test_what_follows_two_hyphens_is_no_option_of_ours(run: Run) -> None:
    failed = run("train", *TINY, "--", "--debug")
    assert failed.code == 2
    assert "--debug" in failed.error  # taken for a text that does not exist


def test_one_line_leaves_no_control_characters() -> None:
    assert one_line("a\tb\r\nc\x1b[2J\udc80") == "a b c [2J "


# ---- in processes of their own


def test_a_failing_process_has_the_exit_code_and_no_traceback(place: Path) -> None:
    failed = process("train", "none.txt", "--backend", "numpy")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr.startswith("error: ") and "none.txt" in failed.stderr
    assert len(failed.stderr.splitlines()) == 1


def test_a_reader_that_goes_away_early_is_no_error(trained: Path) -> None:
    text = subprocess.Popen(
        [sys.executable, "-m", "splitbit_kit", "generate", trained, "--max-tokens", "2000",
         "--backend", "numpy", "--threads", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert text.stdout is not None and text.stderr is not None
    text.stdout.read(1)
    text.stdout.close()
    err = text.stderr.read().decode()
    text.stderr.close()
    assert text.wait(60) == program.BROKEN_PIPE
    assert err == f"model: best model of {trained}\n"


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-16"])
def test_any_encoding_of_the_console_will_do(encoding: str, place: Path) -> None:
    (place / "naïve ✓").mkdir()
    (place / "naïve ✓" / "text.txt").write_text("Größe ✓ 文字 " * 400, "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "splitbit_kit", "train", "naïve ✓", *TINY, "--json"],
        env=clean_environment() | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b'"run": "runs' in done.stdout.decode(encoding).encode()
    shown = process("train", "--help", env=clean_environment() | {"PYTHONIOENCODING": encoding})
    assert shown.returncode == 0


@pytest.mark.skipif(os.name == "nt", reason="a shell of POSIX systems")
def test_a_closed_standard_output_is_no_error(place: Path) -> None:
    line = [sys.executable, "-m", "splitbit_kit", "list-plugins"]
    done = subprocess.run(
        f"{shlex.join(line)} >&- <&-", shell=True, stderr=subprocess.PIPE, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(os.name == "nt", reason="pseudo-terminals of POSIX systems")
@pytest.mark.parametrize(("more", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_real_terminal_gets_colours_unless_it_does_not_want_them(
    place: Path, more: dict[str, str], coloured: bool
) -> None:
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "splitbit_kit", "train", "text.txt", *TINY],
        env=clean_environment() | {"TERM": "xterm", **more},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # how Linux says that the other end is closed
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)
    assert process.wait(60) == 0
    assert (b"\x1b[" in shown) == coloured
    assert shown.rstrip().endswith(b'--prompt "The"')
