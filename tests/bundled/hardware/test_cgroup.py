"""Container limits, in trees like those that Linux shows: v1, v2, both, nested, and garbage."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitbit_kit.bundled.hardware.cgroup import Limits, limits, number_list

V2 = "30 24 0:26 {inner} {point} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "31 24 0:27 {inner} {point} rw,nosuid - cgroup cgroup rw,{controller}\n"
UNLIMITED = "9223372036854771712\n"  # version 1's way to say so


def v2(inner: str = "/", point: str = "/sys/fs/cgroup") -> str:
    return V2.format(inner=inner, point=point)


def v1(controller: str, inner: str = "/", point: str | None = None) -> str:
    point = point or f"/sys/fs/cgroup/{controller}"
    return V1.format(controller=controller, inner=inner, point=point)


CASES = {
    "v2, in the process's own group": (
        "0::/app\n",
        v2(),
        {"app/memory.max": "2000000000\n", "app/cpu.max": "200000 100000\n"},
        (2_000_000_000, 2.0),
    ),
    "v2, an ancestor's binds": (
        "0::/user.slice/app/worker\n",
        v2(),
        {
            "user.slice/memory.max": "3000000000\n",
            "user.slice/app/memory.max": "max\n",
            "user.slice/app/worker/memory.max": "5000000000\n",
            "user.slice/cpu.max": "150000 100000\n",
            "user.slice/app/cpu.max": "max 100000\n",
            "user.slice/app/worker/cpu.max": "400000 100000\n",
        },
        (3_000_000_000, 1.5),
    ),
    "v2, memory.high slows down before memory.max kills": (
        "0::/app\n",
        v2(),
        {"app/memory.max": "4000000000\n", "app/memory.high": "1000000000\n"},
        (1_000_000_000, None),
    ),
    "v2, everything max": (
        "0::/app\n",
        v2(),
        {"app/memory.max": "max\n", "app/cpu.max": "max 100000\n", "app/memory.high": "max"},
        (None, None),
    ),
    "v2, in a container with a namespace of its own": (
        "0::/\n",
        v2(),
        {"memory.max": "1500000000\n", "cpu.max": "50000 100000\n"},
        (1_500_000_000, 0.5),
    ),
    "v2, the path is the host's and not below the mount": (
        "0::/system.slice/docker-abc.scope\n",
        v2(),
        {"memory.max": "1500000000\n"},
        (1_500_000_000, None),
    ),
    "v2, outside the namespace's root": (
        "0::/../../other\n",
        v2(inner="/.."),
        {"memory.max": "1500000000\n"},
        (1_500_000_000, None),
    ),
    "v2, part of a tree is mounted": (
        "0::/pods/pod1/box\n",
        v2(inner="/pods/pod1"),
        {"box/memory.max": "7000000000\n", "memory.max": "6000000000\n"},
        (6_000_000_000, None),
    ),
    "v2, mounted at a place with a space": (
        "0::/app\n",
        v2(point="/sys/fs/cgroup/my\\040groups"),
        {"my groups/app/memory.max": "6000000000\n"},
        (6_000_000_000, None),
    ),
    "v1, an ancestor's binds": (
        "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n",
        v1("memory") + v1("cpu,cpuacct"),
        {
            "memory/docker/memory.limit_in_bytes": "2000000000\n",
            "memory/docker/abc/memory.limit_in_bytes": "3000000000\n",
            "memory/memory.limit_in_bytes": UNLIMITED,
            "cpu,cpuacct/docker/cpu.cfs_quota_us": "-1\n",
            "cpu,cpuacct/docker/cpu.cfs_period_us": "100000\n",
            "cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "765000\n",
            "cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
        },
        (2_000_000_000, 7.65),
    ),
    "v1, the container's group is mounted, the path is the host's": (
        "4:memory:/docker/abc\n3:cpu:/docker/abc\n",
        v1("memory", "/docker/abc") + v1("cpu", "/docker/abc"),
        {
            "memory/memory.limit_in_bytes": "2000000000\n",
            "cpu/cpu.cfs_quota_us": "100000\n",
            "cpu/cpu.cfs_period_us": "100000\n",
        },
        (2_000_000_000, 1.0),
    ),
    "v1, an ancestor outside the container, known from memory.stat": (
        "4:memory:/docker/abc\n",
        v1("memory", "/docker/abc"),
        {
            "memory/memory.limit_in_bytes": UNLIMITED,
            "memory/memory.stat": "cache 5\nhierarchical_memory_limit 2500000000\nrss 7\n",
        },
        (2_500_000_000, None),
    ),
    "both: v1 limits memory, v2 the time": (
        "4:memory:/box\n0::/user/box\n",
        v1("memory") + v2(point="/sys/fs/cgroup/unified"),
        {
            "memory/box/memory.limit_in_bytes": "4000000000\n",
            "unified/user/cpu.max": "300000 100000\n",
        },
        (4_000_000_000, 3.0),
    ),
    "mounts cannot be read: the usual places": (
        "4:memory:/box\n0::/user\n",
        None,
        {"memory/box/memory.limit_in_bytes": "4000000000\n", "user/cpu.max": "300000 100000\n"},
        (4_000_000_000, 3.0),
    ),
    "no path of the process: what is mounted binds": (
        None,
        v2(),
        {"memory.max": "4000000000\n"},
        (4_000_000_000, None),
    ),
    "nothing at all": (None, None, {}, (None, None)),
    "garbage": (
        "no such thing\n::::\n0::\n\x00\xff\n",
        v2() + "garbage\n - \n1 2 3 - cgroup2\n" + "x " * 99 + "- cgroup cgroup rw,memory\n",
        {
            "memory.max": "much\n",
            "memory.high": "-5\n",
            "memory.limit_in_bytes": "9" * 5000,
            "cpu.max": "100000\n",
            "cpu.cfs_quota_us": "5",
            "cpu.cfs_period_us": "0",
            "cpuset.cpus.effective": "0-999999999",
            "memory.stat": "hierarchical_memory_limit\n",
        },
        (None, None),
    ),
}


def tree(root: Path, own: str | None, mounts: str | None, files: dict[str, str]) -> Path:
    """Make the files of a case; those of the groups are named from /sys/fs/cgroup."""
    whole = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    whole |= {"proc/self/cgroup": own} if own is not None else {}
    whole |= {"proc/self/mountinfo": mounts} if mounts is not None else {}
    for name, text in whole.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text.encode("latin-1"))
    return root


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_least_of_all_limits_binds(tmp_path: Path, case) -> None:
    own, mounts, files, expected = case
    found = limits(tree(tmp_path, own, mounts, files))
    values = tuple(each and each[0] for each in (found.memory, found.quota))
    assert values == expected
    for each in (found.memory, found.quota):
        if each:
            assert each[1].startswith("/sys/fs/cgroup/")
            assert (tmp_path / each[1].lstrip("/")).is_file()  # where the number really stands


@pytest.mark.parametrize("name", ["cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"])
def test_the_processors_of_the_group(tmp_path: Path, name: str) -> None:
    root = tree(tmp_path, "0::/a/b\n", v2(), {f"a/{name}": "0-3,8\n", f"a/b/{name}": "\n"})
    assert limits(root).cpuset == ({0, 1, 2, 3, 8}, f"/sys/fs/cgroup/a/{name}")


def test_files_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    root = tree(tmp_path, "0::/a\n", v2(), {"memory.max": "5000000000"})
    (root / "sys/fs/cgroup/a/memory.max").mkdir(parents=True)  # a folder in a file's place
    with suppress(OSError):  # Windows lets few make links
        (root / "sys/fs/cgroup/a/cpu.max").symlink_to(root / "sys/fs/cgroup/a/cpu.max")
    assert limits(root) == Limits((5_000_000_000, "/sys/fs/cgroup/memory.max"))
    (root / "proc/self/cgroup").unlink()
    (root / "proc/self/cgroup").mkdir()
    assert limits(root).memory == (5_000_000_000, "/sys/fs/cgroup/memory.max")


@settings(deadline=None, max_examples=60)
@given(own=st.text(max_size=60), mounts=st.text(max_size=120), value=st.text(max_size=30))
def test_whatever_stands_in_them_nothing_is_raised(
    tmp_path_factory: pytest.TempPathFactory, own: str, mounts: str, value: str
) -> None:
    root = tmp_path_factory.mktemp("fake")
    for name, text in {
        "proc/self/cgroup": f"0::{own}\n4:memory:{own}\n{own}",
        "proc/self/mountinfo": f"{mounts}\n1 2 3 /{own} /{mounts} rw - cgroup2 c rw\n{v2()}",
        **{f"sys/fs/cgroup/{n}": value for n in ("memory.max", "cpu.max", "cpuset.cpus")},
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text.encode("utf-8", "replace"))
    found = limits(root)
    assert found.memory is None or found.memory[0] > 0
    assert found.quota is None or found.quota[0] > 0


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0", {0}),
        ("0-3,8\n", {0, 1, 2, 3, 8}),
        ("", set()),
        ("\n", set()),
        ("3-1", set()),
        ("0-", set()),
        ("-1", set()),
        ("a", set()),
        ("0,,1", set()),
        ("0-99999999", set()),
        (",".join(["0-65000"] * 100), set()),
        ("\N{ARABIC-INDIC DIGIT ONE}", set()),
    ],
)
def test_lists_of_processors(text: str, numbers: set[int]) -> None:
    assert number_list(text) == numbers
