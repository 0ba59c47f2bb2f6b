"""Processes that take turns: one JSON object a line in, one a line out. Standard library only.

A worker builds its side once, stays alive, and works only when asked to, so that neither side runs
beside the other and none is measured cold. Both the interpreter of ours and that of a peer run this
file.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

STEPS_AT_LEAST = 2  # a turn has so many, however slow they are


def page_faults() -> int:
    """Return how often this process has touched a page of memory for the first time."""
    return _used("ru_minflt")


def resident_mb() -> float:
    """Return the memory that this process holds, in MB (10^6 bytes); 0 where none can say."""
    return _status("VmRSS:") or 0.0


def peak_mb() -> float:
    """Return the most memory that this process has ever held, in MB (10^6 bytes)."""
    # not ru_maxrss where it can be helped: it counts what the parent held when it forked
    if most := _status("VmHWM:"):
        return most
    most = _used("ru_maxrss")
    return most / 1e6 if sys.platform == "darwin" else most * 1024 / 1e6


def _status(field: str) -> float | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text("ascii").splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024 / 1e6
    return None


def _used(field: str) -> int:
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    return int(getattr(resource.getrusage(resource.RUSAGE_SELF), field))


def serve(build: Callable[[dict[str, Any]], tuple[Callable[[], None], dict[str, Any]]]) -> None:
    """Be a worker: build(task) -> (step, facts), once; then make steps whenever asked.

    The task is the first argument of the command, in JSON. The first answer has the facts, among
    them idle_mb, the memory held once all was imported; each later one has the least step, and what
    was spent while waiting for the turn.
    """
    # what a library prints must not get between the answers
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(**message: Any) -> None:
        print(json.dumps(message), file=answers, flush=True)

    try:
        idle = resident_mb()
        step, facts = build(json.loads(sys.argv[1]))
        answer(**{"idle_mb": idle, **facts})
        cpu, wall = time.process_time(), time.perf_counter()
        for line in sys.stdin:
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            times = _turn(step, json.loads(line)["seconds"])
            answer(ms=min(times) * 1e3, peak_mb=peak_mb(), waited_s=wall, waited_cpu_s=cpu)
            cpu, wall = time.process_time(), time.perf_counter()
    except Exception as error:
        answer(error=" ".join(f"{type(error).__name__}: {error}".split())[:300])
        raise


def _turn(step: Callable[[], None], seconds: float) -> list[float]:
    times: list[float] = []
    while sum(times) < seconds or len(times) < STEPS_AT_LEAST:
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return times


class WorkerError(Exception):
    """A worker could not be built, or has died."""


class Worker:
    """A living process of one side. Building it waits until it is warm."""

    def __init__(self, command: Sequence[str], task: dict[str, Any]) -> None:
        self.ms: list[float] = []  # the least step of each round
        self.peak_mb = self.waited_s = self.waited_cpu_s = 0.0
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self._process = subprocess.Popen(
            [*command, json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        try:
            self.facts = self._answer()
            self.idle_mb: float = self.facts.pop("idle_mb")
        except BaseException:
            self.close()
            raise

    def turn(self, seconds: float) -> None:
        """Let it work for so long, and note its least step. Raises WorkerError."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either
            print(json.dumps({"seconds": seconds}), file=self._process.stdin, flush=True)
        found = self._answer()
        self.ms.append(found["ms"])
        self.peak_mb = found["peak_mb"]
        if found["waited_s"] > 0.1:  # in less its threads have hardly gone to sleep
            self.waited_s += found["waited_s"]
            self.waited_cpu_s += found["waited_cpu_s"]

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        try:
            self._process.wait(timeout=10)  # it ends by itself when its input does
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._errors.seek(0)
            last = self._errors.read().strip().splitlines()[-1:] or ["it said nothing"]
            raise WorkerError(f"ended with status {status}: {last[0]}")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise WorkerError(found["error"])
        return found
