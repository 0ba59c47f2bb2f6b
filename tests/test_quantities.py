"""Sizes, times and counts in words."""

import pytest

from splitbit_kit.quantities import counted, duration, size


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (69_240, "69.2 kB"),
        (999_400, "999 kB"),
        (999_600, "1.0 MB"),
        (99_960_000, "100 MB"),
        (25_276_502_016, "25.3 GB"),
        (5e15, "5,000 TB"),
        (float("inf"), "–"),
        (float("nan"), "–"),
        (-1, "–"),
    ],
)
def test_sizes(nbytes, said):
    assert size(nbytes) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.2, "0:00"),
        (59.9, "1:00"),
        (75.2, "1:15"),
        (3661, "1:01:01"),
        (4e6, "1,111:06:40"),
        (float("inf"), "–"),
        (float("nan"), "–"),
        (-1.0, "–"),
    ],
)
def test_durations(seconds, said):
    assert duration(seconds) == said


def test_counts():
    assert [counted(n, "step") for n in (0, 1, 2000)] == ["0 steps", "1 step", "2,000 steps"]
