"""What is taken out of a command line before click looks at it."""

from __future__ import annotations

import pytest

from splitbit_kit.api import UsageError
from splitbit_kit.cli.settings import Settings, take_debug, take_plugin_options

CASES = {
    "nothing": ([], (), True, []),
    "rest": (["train", "--steps", "2"], (), True, ["train", "--steps", "2"]),
    "before the verb": (["-p", "no:a", "train"], ("a",), True, ["train"]),
    "after": (["train", "-p", "no:a", "x.txt"], ("a",), True, ["train", "x.txt"]),
    "in one word": (["train", "-pno:a"], ("a",), True, ["train"]),
    "several": (["-p", "no:a", "t", "-pno:b-c"], ("a", "b-c"), True, ["t"]),
    "of a distribution": (["-p", "no:dist:a"], ("dist:a",), True, []),
    "none": (["train", "--no-plugins"], (), False, ["train"]),
    "after the end": (
        ["g", "--", "-p", "no:a", "--no-plugins"],
        *((), True),
        ["g", "--", "-p", "no:a", "--no-plugins"],
    ),
    "other words": (["-please", "--preset", "x"], (), True, ["-please", "--preset", "x"]),
}


@pytest.mark.parametrize("case", CASES)
def test_plugin_options_are_taken_from_anywhere(case: str) -> None:
    argv, without, third_party, rest = CASES[case]
    assert take_plugin_options(argv) == (Settings(without, third_party), rest)


@pytest.mark.parametrize(
    "argv", [["-p"], ["-p", "a"], ["-p", "no:"], ["-p", "no"], ["-pno:"], ["-p", "./a.py"]]
)
def test_a_p_without_a_name_is_refused(argv: list[str]) -> None:
    with pytest.raises(UsageError, match="expected no:NAME"):
        take_plugin_options(["train", *argv])


def test_debug_is_taken_from_before_the_end() -> None:
    assert take_debug(["train", "--debug", "--", "--debug"]) == (True, ["train", "--", "--debug"])
    assert take_debug(["train", "--", "--debug"]) == (False, ["train", "--", "--debug"])
