"""The probe: the least of all limits, at least 1, never without an answer, and its sources."""

from __future__ import annotations

import builtins
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from splitbit_kit.api import TIERS, Hardware
from splitbit_kit.bundled.hardware import (
    cgroup,
    memory,
    probe,
    probe_hardware,
    processors,
    software,
)

CGROUP = {
    "proc/self/cgroup": "0::/box\n",
    "proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
}
MEMORY, TIME, SET = (f"sys/fs/cgroup/box/{n}" for n in ("memory.max", "cpu.max", "cpuset.cpus"))
FIELDS = {
    *("threads", "cores", "memory_bytes", "tier", "instruction_sets", "blas", "disk_free_bytes"),
}
BY_TOPOLOGY = "distinct cores of those threads, by /sys/devices/system/cpu"


def test_this_machine() -> None:
    found = probe_hardware()
    assert 1 <= found.cores <= found.threads
    assert found.memory_bytes > 10**7
    assert found.tier in TIERS
    assert set(found.sources) == FIELDS
    assert all(found.sources.values())
    assert found.blas
    assert found.disk_free_bytes is None or found.disk_free_bytes > 0


# ---- limits below the machine's: psutil#2100, llama.cpp#28625


def test_without_limits_all_counts(machine) -> None:
    found = machine({})
    assert (found.threads, found.cores, found.tier) == (8, 8, "full")
    assert found.memory_bytes == pytest.approx(64e9, rel=1e-6)
    assert found.sources["threads"] == "affinity mask"
    assert found.sources["memory_bytes"] == "memory of the system"
    assert found.sources["tier"] == "the lower of what 8 cores (full) and 64.0 GB (maximum) reach"


def test_a_containers_limits_below_the_hosts_count(machine) -> None:
    limited = {MEMORY: "4100000000\n", TIME: "250000 100000\n"}
    found = machine(CGROUP | limited, set(range(96)), 512)
    assert (found.threads, found.cores, found.memory_bytes) == (2, 2, 4_100_000_000)
    assert found.tier == "light"
    limit = f"container limit of 2.5 processors in /{TIME}, below 96"
    assert found.sources["threads"] == f"{limit} (affinity mask)"
    assert found.sources["cores"] == f"{limit} ({BY_TOPOLOGY})"
    assert found.sources["memory_bytes"] == (
        f"container limit in /{MEMORY}, below the 512.0 GB of the system"
    )


def test_a_limit_above_what_there_is_is_none(machine) -> None:
    found = machine(CGROUP | {MEMORY: f"{2**63 - 4096}\n", TIME: "9600000 100000\n"})
    assert (found.threads, found.cores) == (8, 8)
    assert found.sources["cores"] == BY_TOPOLOGY
    assert found.sources["memory_bytes"] == "memory of the system"


@pytest.mark.parametrize(
    ("time", "cores"),
    [("10000 100000", 1), ("99000 100000", 1), ("199999 100000", 1), ("765000 100000", 7)],
)
def test_parts_of_a_processor_do_not_count_but_one_always_does(machine, time, cores) -> None:
    found = machine(CGROUP | {TIME: time})
    assert (found.threads, found.cores) == (cores, cores)


def test_the_groups_processors_are_within_the_mask(machine) -> None:
    found = machine(CGROUP | {SET: "2-5\n"}, {0, 1, 2, 3})
    assert (found.threads, found.cores) == (2, 2)
    assert found.sources["threads"] == f"affinity mask, within the container's /{SET}"
    nonsense = machine(CGROUP | {SET: "100-103\n"}, {0, 1, 2, 3})
    assert nonsense.threads == 4  # the kernel would not have it so: the mask is the truth


def test_the_least_of_time_mask_and_set(machine) -> None:
    limited = CGROUP | {SET: "0-5\n", TIME: "300000 100000"}
    assert machine(limited, {0, 1, 2, 3, 6, 7}).threads == 3
    assert machine(limited, {0, 1, 6}).threads == 2


SMT = {0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"}
HYBRID = {n: f"{n // 2 * 2}-{n // 2 * 2 + 1}" for n in range(8)} | {n: str(n) for n in range(8, 12)}


@pytest.mark.parametrize(
    ("siblings", "mask", "cores"),
    [
        (SMT, {0, 1, 4, 5}, 2),
        (SMT, {0, 4}, 1),
        (SMT, {0, 1}, 2),
        (HYBRID, set(range(12)), 8),  # 4 with two threads, 4 with one
        (HYBRID, {0, 1, 2, 8}, 3),
        ({n: str(n) for n in range(20)}, set(range(20)), 20),  # hybrid without second threads
    ],
)
def test_cores_are_counted_within_the_mask(machine, siblings, mask, cores) -> None:
    found = machine({}, mask, siblings=siblings)
    assert (found.threads, found.cores) == (len(mask), cores)


def test_efficiency_cores_are_told(machine) -> None:
    found = machine({"sys/devices/cpu_atom/cpus": "8-11\n"}, set(range(12)), siblings=HYBRID)
    assert found.sources["cores"] == f"{BY_TOPOLOGY}, 4 of them efficiency cores"


def test_time_for_two_on_two_cores_with_two_threads_each_is_two_cores(machine) -> None:
    found = machine(CGROUP | {TIME: "200000 100000"}, {0, 1, 4, 5}, siblings=SMT)
    assert (found.threads, found.cores) == (2, 2)


def test_the_older_name_of_the_siblings(machine) -> None:
    place = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    files = {place.format(n): "0-1\n" for n in (0, 1)}
    assert machine(files, {0, 1}, siblings={}).cores == 1


@pytest.mark.parametrize("answer", [None, 0, -1, 1, 64])
@pytest.mark.parametrize("siblings", [{}, {0: "x", 1: "y"}, {0: "5", 1: "6"}, {0: "0"}])
def test_without_sound_siblings_the_systems_cores_count_at_most_one_a_thread(
    machine, monkeypatch, siblings, answer
) -> None:
    monkeypatch.setattr("psutil.cpu_count", lambda logical: answer)
    assert machine({}, {0, 1}, siblings=siblings).cores == (1 if answer == 1 else 2)


# ---- other systems


def test_a_system_whose_mask_psutil_knows(monkeypatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)

    class Process:
        def cpu_affinity(self) -> list[int]:
            return [1, 3]

    monkeypatch.setattr("psutil.Process", Process)
    assert processors.usable(cgroup.Limits()) == ({1, 3}, "affinity mask")


def test_a_system_without_masks(monkeypatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr("psutil.Process", object)  # as on macOS: no cpu_affinity
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    mask, source = processors.usable(cgroup.Limits())
    assert (mask, source) == ({0, 1, 2}, "logical processors of the system")


def test_memory_without_proc_is_what_psutil_says(monkeypatch, tmp_path) -> None:
    class Memory:
        total = 5 * 10**9

    monkeypatch.setattr("psutil.virtual_memory", lambda: Memory)
    assert memory.usable(cgroup.Limits(), tmp_path) == (5 * 10**9, "memory of the system")


def test_the_shells_limit_counts(monkeypatch, machine) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (3 * 10**9, resource.RLIM_INFINITY))
    found = machine({})
    assert found.memory_bytes == 3 * 10**9
    assert found.sources["memory_bytes"].startswith("address space that ulimit -v allows, below")


def test_instruction_sets_come_from_linux_where_llvm_is_not(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    (tmp_path / "proc").mkdir()
    for line, sets in {
        "flags\t\t: fpu sse4_2 avx2 fma amx_tile avx512_bf16": (
            *("sse4.2", "fma", "avx2", "avx512bf16", "amx-tile"),
        ),
        "Features\t: fp asimd asimddp sve": ("neon", "dotprod", "sve"),
        "rubbish": (),
    }.items():
        (tmp_path / "proc/cpuinfo").write_text(f"processor : 0\n{line}\n", "utf-8")
        assert software.instruction_sets(tmp_path)[0] == sets


def test_linux_and_llvm_agree_on_this_processor(monkeypatch) -> None:
    if not Path("/proc/cpuinfo").exists():
        pytest.skip("not Linux")
    by_llvm, _ = software.instruction_sets(Path("/"))
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    by_linux, source = software.instruction_sets(Path("/"))
    assert source == "/proc/cpuinfo"
    old = {"avx", "fma", "avx2", "avx512f", "neon"}  # any kernel has heard of these
    assert old & set(by_llvm) == old & set(by_linux)


def test_a_matrix_library_that_is_not_known_is_named_by_numpy(monkeypatch) -> None:
    monkeypatch.setattr("threadpoolctl.threadpool_info", list)
    name, source = software.blas()
    assert name and source == "what NumPy was built with"


# ---- never without an answer


def test_in_an_empty_world_there_is_still_an_answer(monkeypatch, tmp_path) -> None:
    real = builtins.__import__

    def no_others(name: str, *args: Any) -> Any:
        if name.split(".")[0] in ("psutil", "threadpoolctl", "llvmlite", "resource"):
            raise ImportError(name)
        return real(name, *args)

    def no_mask(pid: int) -> set[int]:
        raise OSError("not here")

    monkeypatch.setattr(builtins, "__import__", no_others)
    monkeypatch.setattr(os, "sched_getaffinity", no_mask, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    found = probe(tmp_path / "none", tmp_path / "none")
    assert (found.threads, found.cores, found.tier) == (1, 1, "mobile")
    assert (found.memory_bytes, found.instruction_sets, found.blas) == (10**9, (), "")
    assert found.disk_free_bytes is None
    assert isinstance(found, Hardware)
    assert set(found.sources) == FIELDS
    assert {name for name, text in found.sources.items() if text.startswith("not known")} == {
        *("cores", "memory_bytes", "instruction_sets", "blas", "disk_free_bytes")
    }


@pytest.mark.parametrize(
    ("home", "name"),
    [
        (cgroup, "limits"),
        (processors, "usable"),
        (processors, "cores"),
        (memory, "usable"),
        (memory, "disk"),
        (software, "instruction_sets"),
        (software, "blas"),
    ],
)
def test_a_part_that_fails_stops_nothing(machine, monkeypatch, home, name) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(home, name, fail)
    found = machine({})
    assert min(found.threads, found.cores, found.memory_bytes) >= 1


def test_garbage_everywhere(machine) -> None:
    rubbish = bytes(range(256))
    names = (
        *("proc/self/cgroup", "proc/self/mountinfo", "proc/cpuinfo", "proc/meminfo"),
        *("sys/fs/cgroup/memory.max", "sys/fs/cgroup/cpu.max", "sys/devices/cpu_atom/cpus"),
    )
    siblings = dict.fromkeys(range(4), "\x00")
    found = machine(dict.fromkeys(names, rubbish), set(range(4)), None, siblings)
    assert found.threads == 4
    assert 1 <= found.cores <= 4
    assert found.memory_bytes >= 1
