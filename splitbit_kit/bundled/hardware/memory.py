"""Main memory and disk that this process may use."""

from __future__ import annotations

import shutil
from pathlib import Path

from splitbit_kit.bundled.hardware.cgroup import Limits, read


def usable(limits: Limits, root: Path) -> tuple[int, str]:
    """Return the least of the system's memory and what limits it, in bytes, and its source."""
    size = _total(root)
    found = [(size, "memory of the system")]
    if limits.memory:
        number, path = limits.memory
        found.append((number, f"container limit in {path}"))
    if (most := _address_space()) is not None:
        found.append((most, "address space that ulimit -v allows"))
    least, source = min(found, key=lambda each: each[0])
    if least < size:
        source += f", below the {size / 1e9:,.1f} GB of the system"
    return least, source


def _total(root: Path) -> int:
    """Return the bytes of memory. /proc/meminfo comes first: some containers put their own there.

    Raises an exception if nobody knows.
    """
    for line in read(root / "proc/meminfo").splitlines():
        words = line.split()
        if words[:1] == ["MemTotal:"] and words[1:] and words[1].isdigit() and int(words[1]):
            return int(words[1]) * 1024
    import psutil

    total = int(psutil.virtual_memory().total)
    if total < 1:
        raise ValueError("no memory")
    return total


def _address_space() -> int | None:
    try:
        import resource  # not on Windows

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        return None if soft == resource.RLIM_INFINITY or soft < 1 else soft
    except Exception:
        return None


def disk(place: Path) -> tuple[int, str]:
    """Return the bytes that may still be written where `place` is, and their source."""
    return shutil.disk_usage(place).free, f"free to this user where {place.resolve()} is"
