"""The probe: within the mask, never without an answer, and a tier by the lower of two lookups."""

from __future__ import annotations

import builtins
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from splitbit_kit.api import TIERS, Hardware
from splitbit_kit.bundled import hardware
from splitbit_kit.bundled.hardware import TIER_CORES, TIER_GIGABYTES, probe_hardware, tier


def test_this_machine() -> None:
    found = probe_hardware()
    assert 1 <= found.cores <= found.threads
    assert found.memory_bytes > 10**7
    assert found.tier in TIERS
    assert set(found.sources) == {"threads", "cores", "memory_bytes", "tier"}


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
    assert tier(cores, int(gigabytes * 10**9)) == expected


def test_a_machine_sold_with_8_gib_counts_as_8() -> None:
    assert tier(8, int(7.7 * 2**30)) == "standard"


def test_each_tier_has_its_least() -> None:
    assert len(TIER_CORES) == len(TIER_GIGABYTES) == len(TIERS)
    assert sorted(TIER_CORES) == list(TIER_CORES)
    assert sorted(TIER_GIGABYTES) == list(TIER_GIGABYTES)


def system(folder: Path, siblings: dict[int, str]) -> Path:
    """Make a tree like /sys/devices/system/cpu."""
    for number, text in siblings.items():
        topology = folder / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(text + "\n", encoding="ascii")
    return folder


@pytest.mark.parametrize(
    ("siblings", "mask", "cores"),
    [
        ({0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"}, {0, 1, 4, 5}, 2),
        ({0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"}, {0, 4}, 1),
        ({0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"}, {0, 1}, 2),
        ({0: "0-1", 1: "0-1", 2: "2", 3: "3"}, {0, 1, 2, 3}, 3),  # a hybrid processor
    ],
)
def test_cores_are_counted_within_the_mask(
    tmp_path: Path, siblings: dict[int, str], mask: set[int], cores: int
) -> None:
    assert hardware._cores(mask, system(tmp_path, siblings))[0] == cores


def test_threads_are_those_of_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 3}, raising=False)
    assert probe_hardware().threads == 2


def test_without_anything_to_go_by_there_is_still_an_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = builtins.__import__

    def no_psutil(name: str, *args: Any) -> Any:
        if name == "psutil":
            raise ImportError(name)
        return real(name, *args)

    def no_mask(pid: int) -> set[int]:
        raise OSError("not here")

    monkeypatch.setattr(builtins, "__import__", no_psutil)
    monkeypatch.delitem(sys.modules, "psutil", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", no_mask, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    monkeypatch.setattr(hardware, "Path", lambda _: tmp_path)
    found = probe_hardware()
    assert (found.threads, found.cores, found.tier) == (1, 1, "mobile")
    assert isinstance(found, Hardware)
    assert found.sources["memory_bytes"].startswith("not known")


@pytest.mark.parametrize("answer", [None, 0, 64])
def test_the_systems_cores_are_at_most_the_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: int | None
) -> None:
    monkeypatch.setattr("psutil.cpu_count", lambda logical: answer)
    assert hardware._cores({0, 1}, tmp_path)[0] == 2
