"""What the standard library knows of the machine, for when no probe answers."""

from __future__ import annotations

import os

from splitbit_kit.api import TIERS, Hardware


def plain_hardware() -> Hardware:
    """Return the processors that this process may use, the memory of the system, the least tier."""
    try:
        threads, source = len(os.sched_getaffinity(0)), "affinity mask"
    except (AttributeError, OSError):  # not every system has masks
        threads, source = os.cpu_count() or 1, "logical processors of the system"
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        memory = 0
    unknown = "no probe answered"
    return Hardware(
        threads=threads,
        cores=threads,
        memory_bytes=memory if memory > 0 else 10**9,
        tier=TIERS[0],
        sources={
            "threads": source,
            "cores": f"{unknown}: as many as threads",
            "memory_bytes": "memory of the system" if memory > 0 else f"{unknown}: 1 GB",
            "tier": f"{unknown}: the least",
        },
    )
