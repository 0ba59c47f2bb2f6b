"""Tiers by their two lookups, and what a probe may not answer."""

from __future__ import annotations

import pytest

from splitbit_kit.api import TIERS, Hardware, tier_floor, tier_of


@pytest.mark.parametrize(
    ("cores", "gigabytes", "expected"),
    [
        (1, 0.5, "mobile"),
        (1, 1, "mobile"),
        (1, 1000, "minimal"),
        (64, 1.9, "mobile"),
        (2, 2, "minimal"),
        (2, 4, "light"),
        (3, 64, "light"),
        (4, 8, "standard"),
        (4, 7.9, "light"),
        (8, 16, "full"),
        (16, 64, "maximum"),
        (64, 256, "datacenter"),
        (256, 1024, "supercomputer"),
        (256, 1023, "datacenter"),
        (10**6, 10**6, "supercomputer"),
        (0, 0, "mobile"),
    ],
)
def test_the_tier_is_the_lower_of_two(cores: int, gigabytes: float, expected: str) -> None:
    assert tier_of(cores, int(gigabytes * 10**9)) == expected


def test_a_machine_sold_with_8_gib_counts_as_8() -> None:
    assert tier_of(8, int(7.7 * 2**30)) == "standard"


@pytest.mark.parametrize("tier", TIERS)
def test_the_least_machine_of_a_tier_is_of_that_tier(tier: str) -> None:
    cores, memory = tier_floor(tier)
    assert tier_of(cores, memory) == tier
    below = TIERS[max(0, TIERS.index(tier) - 1)]
    assert tier_of(cores, memory - 1) == below


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tier": "lite"}, "tier 'lite' is not one of mobile, "),
        ({"threads": 0}, "threads: 0 is below 1"),
        ({"cores": -1}, "cores: -1 is below 1"),
        ({"memory_bytes": 0}, "memory_bytes: 0 is below 1"),
    ],
)
def test_what_no_machine_can_be_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Hardware(**{"threads": 1, "cores": 1, "memory_bytes": 1, "tier": "light"} | changes)
