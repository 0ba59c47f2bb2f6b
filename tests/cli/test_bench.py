"""The verb `bench`: what it refuses. Its figures are no matter for tests."""

from __future__ import annotations

import pytest
from commandline import Run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["C9"], "C9: there is no such size; there are C1, C2, C3, C4"),
        (["C1", "--modes", "eager,fast"], "--modes: 'fast' is not one of eager, bf16"),
        (["C1", "--rounds", "0"], "--rounds: 0 is not above 0"),
        (["C1", "--seconds", "nan"], "--seconds: nan is not above 0"),
    ],
)
def test_a_wrong_request_is_one_line(run: Run, words: list[str], said: str) -> None:
    done = run("bench", *words)
    assert done.code == 2
    assert said in done.error
