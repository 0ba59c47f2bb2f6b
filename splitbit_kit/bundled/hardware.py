"""What the machine offers: the affinity mask's processors, their cores, the memory, the tier.

Container limits are not looked at yet.
"""

from __future__ import annotations

import os
from pathlib import Path

from splitbit_kit.api import TIERS, Hardware, hookimpl

TIER_CORES = (1, 1, 2, 4, 8, 16, 64, 256)
TIER_GIGABYTES = (1, 2, 4, 8, 16, 64, 256, 1024)
"""The least cores and memory of each of `TIERS`. A gigabyte is 10^9 bytes here: firmware and kernel
keep some per cent to themselves, so that a machine sold with 8 GiB shows less than that."""


def tier(cores: int, memory_bytes: int) -> str:
    """Return the lower of the tiers that the cores and the memory each reach; at least the first"""
    by_cores = sum(cores >= least for least in TIER_CORES)
    by_memory = sum(memory_bytes >= least * 10**9 for least in TIER_GIGABYTES)
    return TIERS[max(0, min(by_cores, by_memory) - 1)]


@hookimpl
def probe_hardware() -> Hardware:
    """Return what could be found out; where a fact is not to be had, the least is assumed."""
    processors, threads_source = _processors()
    cores, cores_source = _cores(processors, Path("/sys/devices/system/cpu"))
    memory, memory_source = _memory()
    return Hardware(
        threads=len(processors),
        cores=cores,
        memory_bytes=memory,
        tier=tier(cores, memory),
        sources={
            "threads": threads_source,
            "cores": cores_source,
            "memory_bytes": memory_source,
            "tier": f"the lower of what {cores} cores and {memory / 1e9:.1f} GB reach",
        },
    )


def _processors() -> tuple[set[int], str]:
    try:
        return os.sched_getaffinity(0), "affinity mask"
    except (AttributeError, OSError):  # not every system has masks
        return set(range(os.cpu_count() or 1)), "logical processors of the system"


def _cores(processors: set[int], system: Path) -> tuple[int, str]:
    """Count the physical cores among the processors: those with the same siblings are one."""
    try:
        cores = {
            (system / f"cpu{n}" / "topology" / "thread_siblings_list").read_text(encoding="ascii")
            for n in processors
        }
        return len(cores), "distinct thread siblings within the affinity mask"
    except (OSError, ValueError):
        pass
    try:
        import psutil

        found = psutil.cpu_count(logical=False)
    except Exception:
        found = None
    if not found:
        return len(processors), "not known: as many as threads"
    return min(found, len(processors)), "physical cores of the system, at most one a thread"


def _memory() -> tuple[int, str]:
    try:
        import psutil

        return int(psutil.virtual_memory().total), "memory of the system"
    except Exception:
        return 10**9, "not known: 1 GB is assumed"
