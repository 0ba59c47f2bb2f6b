"""A fake root with /proc and /sys, and a fake affinity mask."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from splitbit_kit.api import Hardware
from splitbit_kit.bundled.hardware import probe

Machine = Callable[..., Hardware]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a function that probes a machine made of files (path -> text) and a mask."""

    def machine(
        files: Mapping[str, str | bytes],
        mask: set[int] | None = None,
        gigabytes: float | None = 64,
        siblings: Mapping[int, str] | None = None,
    ) -> Hardware:
        mask = mask or set(range(8))
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: mask, raising=False)
        siblings = siblings if siblings is not None else {n: str(n) for n in mask}
        whole = dict(files)
        if gigabytes is not None:
            whole["proc/meminfo"] = f"MemTotal:  {round(gigabytes * 10**9) // 1024} kB\n"
        for n, text in siblings.items():
            whole[f"sys/devices/system/cpu/cpu{n}/topology/core_cpus_list"] = f"{text}\n"
        root = tmp_path / "root"
        for name, text in whole.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode() if isinstance(text, str) else text)
        return probe(root, tmp_path)

    return machine
