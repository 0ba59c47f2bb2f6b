"""A first run: kernels are compiled, once for a machine. The user is told; both hands are used.

The programs that every training needs are known before they are called. While this process compiles
them in the order of use, another goes through them from the other end; each finds in the cache what
the other has made, and waits for what the other is at (`cache.KernelCache`). Whatever becomes of
the other process, this one compiles what it does not find.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module

from splitbit_kit.api import Site
from splitbit_numba_backend import compiler
from splitbit_numba_backend.cache import use_safe_cache
from splitbit_numba_backend.runtime import Program, compiled

Accepts = Callable[[Site], str | None]

TRAINING = (  # in the order of use
    "blocks.small.GATHER",
    "blocks.attention.FORWARD",
    "blocks.mlp.FORWARD",
    "blocks.head.FORWARD",
    "blocks.head.BACKWARD",
    "blocks.mlp.BACKWARD",
    "blocks.attention.BACKWARD",
    "blocks.small.SCATTER",
    "flat.SQUARED_NORM",
)
SAMPLING = (  # for a training's first sample
    "blocks.few.ATTENTION",
    "blocks.few.MLP",
    "primitives.norms.FORWARD",
    "primitives.linear.FEW_ROWS",
)

TOLD_SECONDS = 2.0  # between two lines


class FirstRun:
    """What one process compiles, and who is told so."""

    def __init__(self) -> None:
        self._tell: Callable[[str], None] = lambda line: None
        self._told_at: float | None = None
        self._helped = False
        self._expected = 0

    def hear(self, tell: Callable[[str], None]) -> None:
        """From now on say to `tell`, in lines, that kernels are being compiled."""
        self._tell = tell

    def watched(self, accepts: Accepts, precision: str, threads: int) -> Accepts:
        """Return the same answers; know by the questions that there is to be a training."""

        def decide(site: Site) -> str | None:
            if site.train:
                self._expected = len(TRAINING)
                self._precision, self._threads = precision, threads
            return accepts(site)

        return decide

    def compiling(self) -> None:
        """Be told that a program or a part of one is in no cache."""
        if self._expected and self._threads > 1 and not self._helped:
            self._helped = True
            start_helper(self._precision)
        now = time.monotonic()
        if self._told_at is None or now - self._told_at >= TOLD_SECONDS:
            self._told_at = now
            ready = compiled.cache_info().currsize
            share = f": {ready} of {self._expected}" if ready < self._expected else ""
            self._tell(f"compiling kernels for this machine, once{share}")


first_run = FirstRun()
"""that of this process: it compiles a kernel once, whatever backends are built"""
compiler.before_compiling = first_run.compiling


def start_helper(precision: str) -> None:
    """Have another process compile, if what it makes will be found in the cache."""
    if use_safe_cache() is None:
        with suppress(OSError):  # no more processes: it takes longer then
            helper = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    f"from {__name__} import compile_ahead; compile_ahead({precision!r})",
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            # so that it is not left a zombie
            threading.Thread(target=helper.wait, daemon=True).start()


def compile_ahead(precision: str) -> None:
    """Compile what a training needs, from the other end; then what its samples need."""
    for place in (*reversed(TRAINING), *SAMPLING):
        program = program_at(place)
        compiled(program.bf16 if precision == "bf16" else program.fp32)


def program_at(place: str) -> Program:
    """Return the program of that name."""
    module, _, name = place.rpartition(".")
    package = __name__.rpartition(".")[0]
    found: Program = getattr(import_module(f"{package}.{module}"), name)
    return found
