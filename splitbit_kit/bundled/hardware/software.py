"""What the processor can do, as the compiler sees it, and what NumPy multiplies with."""

from __future__ import annotations

from pathlib import Path

from splitbit_kit.bundled.hardware.cgroup import read

SPOKEN_OF = (
    *("sse4.2", "avx", "f16c", "fma", "avx2", "avxvnni", "avx512f", "avx512bw", "avx512vnni"),
    *("avx512bf16", "avx512fp16", "amx-tile", "amx-bf16", "amx-int8"),
    *("neon", "dotprod", "fullfp16", "bf16", "i8mm", "sve", "sve2", "sme", "v"),
)
"""Those that matter for arithmetic, weakest first, by LLVM's names."""


def instruction_sets(root: Path) -> tuple[tuple[str, ...], str]:
    """Return the instruction sets that the processor and the system support, and the source.

    LLVM is what compiles the kernels, so it has the first word.
    """
    try:
        from llvmlite import binding

        present = {name for name, there in binding.get_host_cpu_features().items() if there}
        source = "LLVM, which compiles the kernels"
    except Exception:
        present, source = _flags(root), "/proc/cpuinfo"
    if not present:
        return (), "not known"
    return tuple(name for name in SPOKEN_OF if name in present), source


def _flags(root: Path) -> set[str]:
    """Return what Linux lists for the first processor, by LLVM's names where they differ."""
    for line in read(root / "proc/cpuinfo").splitlines():
        key, _, flags = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return {_LINUX.get(flag, flag) for flag in flags.split()}
    return set()


_LINUX = {
    "sse4_2": "sse4.2",
    "avx_vnni": "avxvnni",
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "amx_tile": "amx-tile",
    "amx_bf16": "amx-bf16",
    "amx_int8": "amx-int8",
    "asimd": "neon",
    "asimddp": "dotprod",
    "asimdhp": "fullfp16",
}


def blas() -> tuple[str, str]:
    """Return the library of NumPy's matrix products with version and threads, and the source."""
    import numpy as np  # loads its library
    import threadpoolctl

    for found in threadpoolctl.threadpool_info():
        if found.get("user_api") == "blas":
            threads = found.get("num_threads") or 1
            parts = [found.get("internal_api"), found.get("version"), found.get("architecture")]
            name = " ".join(str(part) for part in parts if part)
            many = f"{threads} thread{'s' if threads > 1 else ''}"
            return f"{name}, {many}", "threadpoolctl, of the libraries loaded"
    built = np.show_config(mode="dicts")["Build Dependencies"]["blas"]  # Apple's has no threads
    return f"{built['name']} {built['version']}", "what NumPy was built with"
