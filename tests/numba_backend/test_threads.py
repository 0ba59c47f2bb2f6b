"""The launcher: every thread takes part, barriers hold, and no way to call it hangs or crashes."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import cfunc

from splitbit_numba_backend import threads as module
from splitbit_numba_backend.atomics import add, read, word, write
from splitbit_numba_backend.threads import KERNEL, Pool, barrier, pool

ROUNDS, CHUNKS = 3, 12  # the chunks a sum is made of do not depend on the number of threads


@cfunc(KERNEL, error_model="numpy")
def nothing(thread, threads, args):
    pass


@cfunc(KERNEL, error_model="numpy")
def count(thread, threads, args):
    """args: word 0, a counter; words 1..threads, how often each thread was there."""
    add(word(args, 0), 1)
    write(word(args, 1 + thread), read(word(args, 1 + thread)) + 1)


@cfunc(KERNEL, error_model="numpy")
def hash_in_rounds(thread, threads, args):
    """args: control block, result, then CHUNKS words, mixed anew from all of them in each round.

    A thread that passed a barrier too early, or a write that it did not see, changes the result.
    """
    control = read(word(args, 0))
    chunks = word(args, 2)
    for _ in range(ROUNDS):
        total = 0
        for chunk in range(CHUNKS):
            total = total * 31 + read(word(chunks, chunk))
        barrier(control)
        for chunk in range(thread, CHUNKS, threads):
            write(word(chunks, chunk), total * (2 * chunk + 1) + read(word(chunks, chunk)))
        barrier(control)
    if thread == 0:
        write(word(args, 1), read(word(chunks, 0)) ^ read(word(chunks, CHUNKS - 1)))


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """End the whole run with every thread's place, should a launch never return."""
    faulthandler.dump_traceback_later(60, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(params=[2, 3])
def crew(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """A pool for one test: as many threads as processors are wanted here, and one more."""
    made = Pool(request.param)
    yield made
    made.stop()


def hashed(crew: Pool, seed: int) -> list[int]:
    args = np.zeros(2 + CHUNKS, dtype=np.int64)
    args[0] = crew.control
    args[2:] = np.random.default_rng(seed).integers(-(2**62), 2**62, CHUNKS)
    crew.run(hash_in_rounds.address, args.ctypes.data)
    return args[1:].tolist()


def counted(crew: Pool, times: int) -> list[int]:
    counts = np.zeros(1 + crew.threads, dtype=np.int64)
    for _ in range(times):
        crew.run(count.address, counts.ctypes.data)
    return counts.tolist()


def test_every_thread_takes_part_in_every_launch(crew: Pool) -> None:
    assert counted(crew, 10_000) == [10_000 * crew.threads] + [10_000] * crew.threads


def test_one_thread_is_the_callers() -> None:
    before = threading.active_count()
    assert counted(pool(1), 100) == [100, 100]
    assert threading.active_count() == before


def test_a_hundred_thousand_launches() -> None:
    crew = pool(2)
    assert counted(crew, 100_000) == [200_000, 100_000, 100_000]


def test_barriers_part_the_phases(crew: Pool) -> None:
    for seed in range(1000):
        assert hashed(crew, seed) == hashed(pool(1), seed)


def test_more_threads_than_processors() -> None:
    crew = Pool(9)
    try:
        for seed in range(20):
            assert hashed(crew, seed) == hashed(pool(1), seed)
    finally:
        crew.stop()


def test_asleep_at_any_moment(apart: Callable[[Pool], None], monkeypatch: Any) -> None:
    """The next launch comes when the worker is about to sleep, at each step of it."""
    monkeypatch.setattr(module, "_PATIENT_YIELDS", 0)
    monkeypatch.setattr(module, "_cores", lambda: 2)  # the mask is narrower once they are apart
    crew = Pool(2)
    for looks in range(0, 200, 4):
        monkeypatch.setattr(module, "_looks_in", lambda seconds, looks=looks: looks)
        crew.run(nothing.address, 0)
        apart(crew)
        assert counted(crew, 400) == [800, 400, 400]
        crew.stop()


def test_idle_workers_sleep(crew: Pool) -> None:
    for _ in range(3):
        crew.run(nothing.address, 0)
        assert fall_asleep(crew)


@pytest.fixture
def apart() -> Iterator[Callable[[Pool], None]]:
    """Call it to put a pool's two threads on processors of their own, where that is possible.

    On a busy machine they may share one, and then hardly ever do two things at once.
    """
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        yield lambda crew: None
        return
    allowed = os.sched_getaffinity(0)
    first, second, *_ = sorted(allowed)

    def pin(crew: Pool) -> None:
        os.sched_setaffinity(0, {first})
        os.sched_setaffinity(crew._workers[0].native_id or 0, {second})

    yield pin
    os.sched_setaffinity(0, allowed)


def asleep(crew: Pool) -> bool:
    """Return whether every worker sleeps."""
    if not crew._workers:
        return False
    return bool(crew._lines[module._ASLEEP :: module._LINE].all())


def fall_asleep(crew: Pool) -> bool:
    """Return whether every worker sleeps before long: on a busy machine it may take a while."""
    until = time.monotonic() + 10
    while not asleep(crew) and time.monotonic() < until:
        time.sleep(0.01)
    return asleep(crew)


def test_idle_workers_use_no_processor_time(crew: Pool) -> None:
    crew.run(nothing.address, 0)
    assert fall_asleep(crew)
    begun = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - begun < 0.01


def test_two_python_threads(crew: Pool) -> None:
    """The second waits, so that each launch is whole."""
    expected = [hashed(pool(1), seed) for seed in range(300)]
    found: dict[int, list[list[int]]] = {}

    def use(me: int) -> None:
        found[me] = [hashed(crew, seed) for seed in range(300)]

    users = [threading.Thread(target=use, args=(me,)) for me in range(2)]
    for user in users:
        user.start()
    for user in users:
        user.join(20)
    assert found == {0: expected, 1: expected}


def test_stopped_and_used_again(crew: Pool) -> None:
    for _ in range(20):
        crew.run(nothing.address, 0)
        workers = crew._workers
        assert len(workers) == crew.threads - 1
        crew.stop()
        assert not any(worker.is_alive() for worker in workers)
    assert hashed(crew, 1) == hashed(pool(1), 1)


def test_a_pool_that_nobody_holds_ends_its_workers() -> None:
    crew = Pool(2)
    crew.run(nothing.address, 0)
    (worker,) = crew._workers
    del crew
    worker.join(5)
    assert not worker.is_alive()


def test_no_half_of_a_crew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system gives one thread of two, the error comes through and the one ends."""
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def miserly(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        start(thread)
        started.append(thread)

    crew = Pool(3)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", miserly)
        with pytest.raises(RuntimeError, match="can't start"):
            crew.run(nothing.address, 0)
    started[0].join(5)
    assert not started[0].is_alive()
    assert hashed(crew, 2) == hashed(pool(1), 2)
    crew.stop()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that interrupts")
def test_an_interrupt_comes_before_a_launch_or_after_it(crew: Pool) -> None:
    counts = np.zeros(1 + crew.threads, dtype=np.int64)
    interrupts = 0

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    original = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(100):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.001)
                while True:
                    crew.run(count.address, counts.ctypes.data)
            except KeyboardInterrupt:
                interrupts += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, original)
    assert interrupts == 100
    assert counts[0] > 0
    assert (counts[1:] * crew.threads == counts[0]).all()
    assert hashed(crew, 3) == hashed(pool(1), 3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_after_a_fork(crew: Pool) -> None:
    """The child has workers of its own, even if another thread launched as it was made."""
    expected = hashed(pool(1), 4)
    stop = threading.Event()

    def launch() -> None:
        while not stop.is_set():
            crew.run(nothing.address, 0)

    user = threading.Thread(target=launch)
    user.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                os._exit(0 if hashed(crew, 4) == expected else 1)
            assert ended(child, 10) == 0
    finally:
        stop.set()
        user.join()
    assert hashed(crew, 4) == expected


def ended(child: int, seconds: float) -> int | None:
    """Return a child's exit code, None if it had to be killed."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


PROGRAM = """
import atexit, threading, time
atexit.register(lambda: print(sum(t.name.startswith("splitbit") for t in threading.enumerate())))
import test_threads as t
crew = t.pool(2)
crew.run(t.nothing.address, 0)
{then}
print(time.time(), flush=True)
"""


@pytest.mark.parametrize(
    "then",
    [
        "",
        "time.sleep(0.1)",
        "threading.Thread(target=lambda: [crew.run(t.nothing.address, 0) for _ in iter(int, 1)],"
        " daemon=True).start(); time.sleep(0.05)",
    ],
    ids=["awake", "asleep", "launching"],
)
def test_the_interpreter_ends(then: str) -> None:
    here = str(Path(__file__).parent)
    environment = dict(os.environ, PYTHONPATH=here)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(then=then)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    ended = time.time()
    assert (done.returncode, done.stderr) == (0, "")
    begun, workers = done.stdout.split()
    assert ended - float(begun) < 2.5
    assert workers == "0"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinity masks")
def test_two_threads_on_one_processor() -> None:
    """Whoever waits gives way: 500 launches of 6 barriers, each in less than a slice."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    crew = Pool(2)
    try:
        begun = time.perf_counter()
        for seed in range(500):
            assert hashed(crew, seed) == hashed(pool(1), seed)
        assert time.perf_counter() - begun < 5
    finally:
        crew.stop()
        os.sched_setaffinity(0, allowed)


def test_at_least_one_thread() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        Pool(0)


def test_one_pool_for_a_number_of_threads() -> None:
    assert pool(2) is pool(2)
    assert pool(2) is not pool(1)
