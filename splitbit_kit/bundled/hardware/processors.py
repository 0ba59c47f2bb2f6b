"""Logical processors and physical cores that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

from splitbit_kit.bundled.hardware.cgroup import Limits, number_list, read


def usable(limits: Limits) -> tuple[set[int], str]:
    """Return the processors of the affinity mask that a container leaves, and their source."""
    mask, source = _affinity()
    if limits.cpuset:
        allowed, path = limits.cpuset
        if mask & allowed and mask - allowed:
            return mask & allowed, f"{source}, within the container's {path}"
    return mask, source


def _affinity() -> tuple[set[int], str]:
    try:
        if mask := os.sched_getaffinity(0):
            return set(mask), "affinity mask"
    except (AttributeError, OSError):  # not every system has masks, nor this way to ask
        pass
    try:
        import psutil

        if numbers := psutil.Process().cpu_affinity():
            return set(numbers), "affinity mask"
    except Exception:
        pass
    return set(range(os.cpu_count() or 1)), "logical processors of the system"


def cores(processors: set[int], root: Path) -> tuple[int, str]:
    """Return the number of physical cores among the processors, and its source."""
    folder = root / "sys/devices/system/cpu"
    siblings = {n: _siblings(folder / f"cpu{n}" / "topology") for n in processors}
    if all(n in group for n, group in siblings.items()):
        efficient = processors & number_list(read(root / "sys/devices/cpu_atom/cpus"))
        aside = f", {len(efficient)} of them efficiency cores" if efficient else ""
        source = f"distinct cores of those threads, by /sys/devices/system/cpu{aside}"
        return len(set(siblings.values())), source
    import psutil

    found = psutil.cpu_count(logical=False)
    if not found or found < 0:
        return len(processors), "not known: as many as threads"
    return min(found, len(processors)), "physical cores of the system, at most one a thread"


def _siblings(topology: Path) -> frozenset[int]:
    """Return the processors of one core; the file's name is new since Linux 5.3."""
    return number_list(read(topology / "core_cpus_list")) or number_list(
        read(topology / "thread_siblings_list")
    )


def within_quota(count: int, source: str, limits: Limits) -> tuple[int, str]:
    """Return the count, less where processor time is limited; and its source.

    A part of a processor does not count: threads that work in step all wait for the one that has
    used up its time.
    """
    if limits.quota is None:
        return count, source
    allowed, path = limits.quota
    whole = max(1, int(allowed))
    if whole >= count:
        return count, source
    return whole, f"container limit of {allowed:g} processors in {path}, below {count} ({source})"
