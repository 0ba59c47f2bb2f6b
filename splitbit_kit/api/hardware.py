"""What the machine offers, as a probe found it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TIERS = (
    "mobile",
    "minimal",
    "light",
    "standard",
    "full",
    "maximum",
    "datacenter",
    "supercomputer",
)
"""The eight tiers, smallest first."""


@dataclass(frozen=True)
class Hardware:
    """Usable resources: the least of what the system, the affinity mask and a container allow.

    `sources` says what a probe has looked at.
    """

    threads: int
    """logical processors this process may run on, at least 1"""
    cores: int
    """physical cores among them, at least 1: the default number of threads"""
    memory_bytes: int
    """main memory, used or not"""
    tier: str
    """one of `TIERS`"""
    sources: Mapping[str, str] = field(default_factory=dict)
    """field name -> where its number came from, for people to read"""
