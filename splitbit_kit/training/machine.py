"""What a run notes of the machine and the software it is made with."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from splitbit_kit import _metadata
from splitbit_kit.api import Hardware

NUMERICS = ("splitbit-kit", "numpy", "numba", "llvmlite", "tokenizers")
"""Distributions whose version can change a run's numbers."""


def machine_facts(hardware: Hardware) -> dict[str, Any]:
    """Return plain facts of this machine: what the probe found, the processor, the system."""
    found = {
        f.name: _plain(getattr(hardware, f.name)) for f in fields(hardware) if f.name != "sources"
    }
    return {
        "processor": processor_name(),
        "architecture": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        **found,
    }


def software_versions(plugins: Iterable[tuple[str, str]] = ()) -> dict[str, str]:
    """Return distribution -> version of what computes. plugins: (distribution, version) pairs."""
    found = {name: _metadata.version(name) for name in NUMERICS}
    return {
        **dict(plugins),
        **{name: version for name, version in found.items() if version},
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
    }


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name as its maker has it; less than that where it is not to be had."""
    try:
        text = cpuinfo.read_text("utf-8", errors="replace")
    except OSError:
        text = ""
    if named := re.search(r"^(?:model name|Model|cpu model)\s*: *(\S.*)$", text, re.MULTILINE):
        return named[1].strip()
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.processor()
    return platform.processor() or platform.machine()


def _plain(value: Any) -> Any:
    """Return what JSON can say: a probe of someone else's may know facts of any type."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return str(value)


def _sysctl(name: str) -> str:
    import subprocess

    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", name],
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
