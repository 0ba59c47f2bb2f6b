"""What the machine offers, as a probe found it, and the tier that this makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_LEAST = {  # name -> cores, gigabytes
    "mobile": (1, 1),
    "minimal": (1, 2),
    "light": (2, 4),
    "standard": (4, 8),
    "full": (8, 16),
    "maximum": (16, 64),
    "datacenter": (64, 256),
    "supercomputer": (256, 1024),
}

TIERS = tuple(_LEAST)
"""The eight tiers, smallest first."""


def tier_floor(tier: str) -> tuple[int, int]:
    """Return the least cores and the least memory, in bytes, of a tier."""
    cores, gigabytes = _LEAST[tier]
    return cores, gigabytes * 10**9


def tier_of(cores: int, memory_bytes: int) -> str:
    """Return the lower of the tiers that the cores and the memory each reach; at least the first.

    A gigabyte is 10^9 bytes here: firmware and kernel keep some per cent to themselves, so that a
    machine sold with 8 GiB shows less than that.
    """
    floors = [tier_floor(name) for name in TIERS]
    by_cores = sum(cores >= least for least, _ in floors)
    by_memory = sum(memory_bytes >= least for _, least in floors)
    return TIERS[max(0, min(by_cores, by_memory) - 1)]


@dataclass(frozen=True)
class Hardware:
    """Usable resources: the least of what the system, the affinity mask and a container allow.

    `sources` says what a probe has looked at. Raises ValueError for a tier that there is not, and
    for less than 1 of threads, cores or memory.
    """

    threads: int
    """logical processors this process may run on, at least 1"""
    cores: int
    """physical cores among them, at least 1: the default number of threads"""
    memory_bytes: int
    """main memory, used or not, at least 1"""
    tier: str
    """one of `TIERS`; `tier_of` finds it"""
    sources: Mapping[str, str] = field(default_factory=dict)
    """field name -> where its number came from, for people to read"""
    instruction_sets: tuple[str, ...] = ()
    """the processor's extensions by LLVM's names, such as avx2 or neon; empty if not known"""
    blas: str = ""
    """library, version and threads of NumPy's matrix products; empty if not known"""
    disk_free_bytes: int | None = None
    """what may still be written where the process works, in `.`; None if not known"""

    def __post_init__(self) -> None:
        if self.tier not in TIERS:
            raise ValueError(f"tier {self.tier!r} is not one of {', '.join(TIERS)}")
        for name in ("threads", "cores", "memory_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is below 1")
