"""What the machine offers: processors, cores, memory, instruction sets, BLAS, disk, and the tier.

Nothing here raises, whatever the system looks like: where a fact is not to be had, the least is
assumed, and `sources` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from splitbit_kit.api import Hardware, hookimpl, tier_of
from splitbit_kit.bundled.hardware import cgroup, memory, processors, software

T = TypeVar("T")

ROOT = Path("/")  # /proc and /sys lie below it
GIGABYTE = 10**9
PLENTY = 10**18  # more cores, or bytes, than any tier asks for
NO_SETS: tuple[tuple[str, ...], str] = (), "not known"
NO_DISK: tuple[int | None, str] = None, "not known"


@hookimpl
def probe_hardware() -> Hardware:
    """Return what could be found out."""
    return probe(ROOT, Path())


def probe(root: Path, place: Path) -> Hardware:
    """Return what could be found out. root: where /proc and /sys are; place: whose disk counts."""
    limits = _or(cgroup.Limits(), lambda: cgroup.limits(root))
    mask, mask_source = _or(({0}, "not known: 1 is assumed"), lambda: processors.usable(limits))
    found = _or((len(mask), "not known: as many as threads"), lambda: processors.cores(mask, root))
    threads, threads_source = processors.within_quota(len(mask), mask_source, limits)
    cores, cores_source = processors.within_quota(*found, limits)
    size, size_source = _or(
        (GIGABYTE, "not known: 1 GB is assumed"), lambda: memory.usable(limits, root)
    )
    sets, sets_source = _or(NO_SETS, lambda: software.instruction_sets(root))
    blas, blas_source = _or(("", "not known"), software.blas)
    disk, disk_source = _or(NO_DISK, lambda: memory.disk(place))
    return Hardware(
        threads=threads,
        cores=cores,
        memory_bytes=size,
        tier=tier_of(cores, size),
        instruction_sets=sets,
        blas=blas,
        disk_free_bytes=disk,
        sources={
            "threads": threads_source,
            "cores": cores_source,
            "memory_bytes": size_source,
            "tier": _why(cores, size),
            "instruction_sets": sets_source,
            "blas": blas_source,
            "disk_free_bytes": disk_source,
        },
    )


def _or(otherwise: T, find: Callable[[], T]) -> T:
    """Return what is found; otherwise, if that raises anything at all."""
    try:
        return find()
    except Exception:
        return otherwise


def _why(cores: int, size: int) -> str:
    by_cores, by_memory = tier_of(cores, PLENTY), tier_of(PLENTY, size)
    return (
        f"the lower of what {cores} core{'s' if cores > 1 else ''} ({by_cores}) "
        f"and {size / 1e9:,.1f} GB ({by_memory}) reach"
    )
