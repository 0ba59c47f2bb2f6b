"""What Linux control groups, and so containers, allow this process: versions 1, 2 and both at once.

A limit of any ancestor binds; the least wins. The layout is that of the kernel's
Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

CONTROLLERS = ("memory", "cpu", "cpuset")
MOST_READ = 1 << 20  # bytes of a file: those of the kernel are far smaller
MOST_PROCESSORS = 1 << 16  # a list that names more is no list of processors


@dataclass(frozen=True)
class Limits:
    """The least of all limits, each with the file that says so; None where nothing is limited."""

    memory: tuple[int, str] | None = None
    """bytes"""
    quota: tuple[float, str] | None = None
    """processor time in a unit of time"""
    cpuset: tuple[frozenset[int], str] | None = None
    """numbers of processors"""


class Mount(NamedTuple):
    """Where a hierarchy of groups can be seen."""

    controllers: tuple[str, ...]
    inner: str  # the group that is mounted
    point: Path


def limits(root: Path) -> Limits:
    """Return what binds this process. root: the folder that has /proc and /sys."""
    memory: list[tuple[int, str]] = []
    quota: list[tuple[float, str]] = []
    cpuset: list[tuple[frozenset[int], str]] = []
    for folder in groups(root):
        memory += [(n, _shown(p, root)) for p, n in _memory(folder)]
        quota += [(x, _shown(p, root)) for p, x in _quota(folder)]
        cpuset += [(s, _shown(p, root)) for p, s in _cpuset(folder)]
    return Limits(
        min(memory, default=None, key=lambda found: found[0]),
        min(quota, default=None, key=lambda found: found[0]),
        min(cpuset, default=None, key=lambda found: len(found[0])),
    )


def groups(root: Path) -> list[Path]:
    """Return the folders of this process's groups and all their ancestors that can be seen."""
    paths = _paths(root)
    found: dict[Path, None] = {}  # in order, each once
    for mount in _mounts(root):
        for controller in mount.controllers:
            for folder in _upwards(mount, paths.get(controller, "/")):
                found.setdefault(folder)
    return list(found)


def _paths(root: Path) -> dict[str, str]:
    """Return controller -> the path of this process's group; "" stands for version 2."""
    found = {}
    for line in read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if number.isdigit() and colon:
            found.update(dict.fromkeys(controllers.split(","), path))
    return found


def _mounts(root: Path) -> list[Mount]:
    found = []
    for line in read(root / "proc/self/mountinfo").splitlines():
        ahead, _, behind = line.partition(" - ")
        fields, kind = ahead.split(" "), behind.split(" ")
        if len(fields) < 6 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        v1 = tuple(name for name in kind[-1].split(",") if name in CONTROLLERS)
        inner, point = map(_unescaped, fields[3:5])
        controllers = v1 if kind[0] == "cgroup" else ("",)
        found.append(Mount(controllers, inner, root / point.lstrip("/")))
    if found:
        return found
    usual = root / "sys/fs/cgroup"  # where all distributions put it
    v1s = [Mount((name,), "/", usual / name) for name in CONTROLLERS]
    return [Mount(("",), "/", usual), Mount(("",), "/", usual / "unified"), *v1s]


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)


def _upwards(mount: Mount, path: str) -> Iterator[Path]:
    """Yield the folder of a group, then its ancestors up to the one that is mounted.

    In a container the path may be the host's, where the mount shows the container's group only, or
    one outside what is mounted ("/../.."): what is not below the mount is passed over, and the
    group that is mounted binds in any case.
    """
    group = PurePosixPath("/", path)
    if group.is_relative_to(mount.inner):
        group = "/" / group.relative_to(mount.inner)
    if ".." not in group.parts:
        below = group.relative_to("/")
        yield from (mount.point / each for each in (below, *below.parents))
    yield mount.point


def _memory(folder: Path) -> Iterator[tuple[Path, int]]:
    # memory.high does not kill as memory.max does, but slows down to a crawl; the stat of version 1
    # knows the ancestors outside a container
    for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
        if (n := _number(read(folder / name))) is not None:
            yield folder / name, n
    stat = folder / "memory.stat"
    for line in read(stat).splitlines():
        key, _, value = line.partition(" ")
        if key == "hierarchical_memory_limit" and (n := _number(value)) is not None:
            yield stat, n


def _quota(folder: Path) -> Iterator[tuple[Path, float]]:
    v1 = folder / "cpu.cfs_quota_us"
    for path, text in (
        (folder / "cpu.max", read(folder / "cpu.max")),
        (v1, f"{read(v1).strip()} {read(folder / 'cpu.cfs_period_us').strip()}"),
    ):
        quota, _, period = text.strip().partition(" ")
        q, p = _number(quota), _number(period)
        if q is not None and p is not None:
            yield path, q / p


def _cpuset(folder: Path) -> Iterator[tuple[Path, frozenset[int]]]:
    for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
        if numbers := number_list(read(folder / name)):
            yield folder / name, numbers
            return


def _number(text: str) -> int | None:
    """Return a number above 0; None for "max", -1, and what is no number."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 and int(text) else None


def number_list(text: str) -> frozenset[int]:
    """Return the numbers of a list such as "0-3,8"; none if it is not one."""
    found: set[int] = set()
    named = 0
    for part in text.strip().split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part, re.ASCII)
        if not match:
            return frozenset()
        first, last = int(match[1]), int(match[2] or match[1])
        named += last - first + 1
        if last < first or named > MOST_PROCESSORS:
            return frozenset()
        found.update(range(first, last + 1))
    return frozenset(found)


def read(path: Path) -> str:
    """Return the beginning of a file; nothing if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_READ).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def _shown(path: Path, root: Path) -> str:
    return f"/{path.relative_to(root).as_posix()}"
