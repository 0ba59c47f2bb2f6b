"""Run a compiled kernel on several threads at once.

A kernel is a C function `void(intp thread, intp threads, intp args)`, made by `@cfunc(KERNEL)`;
`args` is the address of a struct of words that the kernel and its caller agree upon. A kernel with
phases finds the address of the pool's control block in it, and ends a phase by `barrier`:

    @cfunc(KERNEL, cache=True, error_model="numpy")
    def total(thread, threads, args):
        control = read(word(args, 0))
        ...                                  # each thread writes its own partial sum
        barrier(control)                     # from here on every partial sum can be read
        ...

    crew = pool(2)
    args = np.array([crew.control, ...], dtype=np.int64)
    crew.run(total.address, args.ctypes.data)

The workers are Python threads that live in one compiled loop outside the interpreter's lock. After
a launch a worker spins for a moment, then offers its core to others between looks, and then sleeps
on a lock until it is woken: a launch that follows soon finds it awake, and a process that launches
no more uses no processor time. The lock is the interpreter's own (PyThread_acquire_lock), called
from compiled code: a launch is one call that no signal can cut in two, so that a KeyboardInterrupt
comes before it or after it.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import sys
import threading
import time
import weakref
from typing import Any

import numpy as np
from numba import njit

from splitbit_numba_backend.cache import use_safe_cache

use_safe_cache()

from splitbit_numba_backend.atomics import (  # noqa: E402
    WORD_BYTES,
    add,
    call_acquire,
    call_kernel,
    call_release,
    call_yield,
    exchange,
    load,
    pause,
    read,
    store,
    word,
    write,
)
from splitbit_numba_backend.compiler import kernel  # noqa: E402

Words = np.ndarray[Any, np.dtype[np.int64]]
RLock = Any  # a threading.RLock, which is a function

KERNEL = "void(intp, intp, intp)"
"""the signature of a kernel: thread, threads, address of its arguments"""

_SPIN_SECONDS = 4e-6  # a waiting thread looks so long before it first yields
_PATIENT_YIELDS = 1000  # ... and an idle worker yields so often before it sleeps

# The control block, in words. A line is two cache lines: processors fetch them in pairs.
_LINE = 16
# Written by a launch only, and read by all: the launch, then what is fixed for the pool.
_EPOCH = 0  # number of launches; a change starts the workers
_LIFE = 1  # changes when the workers of this life shall end
_FUNCTION = 2
_ARGS = 3
_THREADS = 4
_SPINS = 5  # looks at a word before the first yield
_YIELDS = 6  # yields before an idle worker sleeps
_YIELD = 7  # address of sched_yield
_ACQUIRE = 8  # address of PyThread_acquire_lock
_RELEASE = 9  # address of PyThread_release_lock
_LINES = 10  # address of the workers' lines
_DONE = 1 * _LINE  # workers that have finished this launch
_ARRIVED = 2 * _LINE  # threads that wait at the barrier
_GENERATION = 3 * _LINE  # barriers passed
_CONTROL = 4 * _LINE
# The workers' lines, the first being thread 1's
_ASLEEP = 0  # 1 while it sleeps on its lock or is about to
_LOCK = 1


@kernel
def _wait_while(control, index, value):
    """Return once the word `index` is not `value` any more."""
    looks = 0
    spins = read(word(control, _SPINS))
    while load(word(control, index)) == value:
        if looks < spins:
            looks += 1
            pause()
        else:
            call_yield(read(word(control, _YIELD)))


@kernel
def barrier(control):
    """Return when every thread of this launch has come here. `control` is `Pool.control`."""
    threads = read(word(control, _THREADS))
    if threads == 1:
        return
    generation = load(word(control, _GENERATION))  # can not change before this thread arrives
    if add(word(control, _ARRIVED), 1) == threads - 1:
        store(word(control, _ARRIVED), 0)
        store(word(control, _GENERATION), generation + 1)
    else:
        _wait_while(control, _GENERATION, generation)


@kernel
def _wake(control, thread):
    """Let a worker that sleeps go on."""
    worker = word(read(word(control, _LINES)), (thread - 1) * _LINE)
    if exchange(word(worker, _ASLEEP), 0) == 1:
        call_release(read(word(control, _RELEASE)), read(word(worker, _LOCK)))


@njit("void(intp, intp, intp)", cache=True, nogil=True, error_model="numpy")
def _launch(control, function, args):
    """Run the kernel at the address `function` on all threads, this one being thread 0."""
    threads = read(word(control, _THREADS))
    write(word(control, _FUNCTION), function)
    write(word(control, _ARGS), args)
    store(word(control, _DONE), 0)
    exchange(word(control, _EPOCH), load(word(control, _EPOCH)) + 1)
    for thread in range(1, threads):
        _wake(control, thread)
    call_kernel(function, 0, threads, args)
    for done in range(threads - 1):
        _wait_while(control, _DONE, done)


@njit("void(intp)", cache=True, nogil=True, error_model="numpy")
def _end(control):
    """Let the workers of this life end."""
    exchange(word(control, _LIFE), load(word(control, _LIFE)) + 1)
    for thread in range(1, read(word(control, _THREADS))):
        _wake(control, thread)


@njit("void(intp, intp, intp, intp, intp)", cache=True, nogil=True, error_model="numpy")
def _work(control, line, thread, life, epoch):
    """Take part in every launch after number `epoch`, until `life` is over."""
    threads = read(word(control, _THREADS))
    spins = read(word(control, _SPINS))
    patience = spins + read(word(control, _YIELDS))
    looks = 0
    while load(word(control, _LIFE)) == life:
        if load(word(control, _EPOCH)) != epoch:
            epoch += 1
            function = read(word(control, _FUNCTION))
            call_kernel(function, thread, threads, read(word(control, _ARGS)))
            add(word(control, _DONE), 1)
            looks = 0
        elif looks < spins:
            looks += 1
            pause()
        elif looks < patience:
            looks += 1
            call_yield(read(word(control, _YIELD)))
        else:
            looks = 0
            exchange(word(line, _ASLEEP), 1)
            # A launch that comes just now sees that word and releases the lock, or is seen here:
            # or both, and then it has put the word back to 0 and its release must be taken.
            news = load(word(control, _EPOCH)) != epoch or load(word(control, _LIFE)) != life
            if not news or exchange(word(line, _ASLEEP), 0) == 0:
                call_acquire(read(word(control, _ACQUIRE)), read(word(line, _LOCK)))


@njit("void(intp, intp)", cache=True, nogil=True, error_model="numpy")
def _look(control, looks):
    """Look at a word as often as that, as a thread does that waits."""
    for _ in range(looks):
        if load(word(control, _EPOCH)) >= 0:
            pause()


class Pool:
    """`threads` threads that run one kernel at a time: the caller's, and workers made at need.

    `control` is the address of the control block, which kernels hand to `barrier`; it stays the
    same for the pool's whole life. Two Python threads may call `run` at once: the second waits.
    Who needs more than one launch to itself holds `mutex` meanwhile, which the same thread may take
    again. After a fork the child makes workers of its own.
    """

    def __init__(self, threads: int) -> None:
        """Make a pool without starting its workers. Raises ValueError unless threads >= 1."""
        if threads < 1:
            raise ValueError(f"threads: expected at least 1, not {threads}")
        self.threads = threads
        self._block = _aligned(_CONTROL)
        self._block[_THREADS] = threads
        self.control: int = self._block.ctypes.data
        self._forget()
        _pools.add(self)

    def run(self, address: int, args: int) -> None:
        """Run the kernel at `address` on all threads; return when each has finished."""
        if self.threads == 1:
            _launch(self.control, address, args)
            return
        # reentrant: a signal handler may launch too, as this thread is between two calls
        with self.mutex:
            if not self._workers:
                self._start()
            _launch(self.control, address, args)

    def stop(self, seconds: float = 1.0) -> None:
        """End the workers; the next `run` makes new ones. A launch has `seconds` to finish."""
        if self.mutex.acquire(timeout=seconds):
            try:
                self._dismiss(seconds)
            finally:
                self.mutex.release()

    def __del__(self) -> None:
        if getattr(self, "_workers", None):
            self.stop()

    def _forget(self) -> None:
        """Have no workers: as new, or in the child of a fork, where they do not exist."""
        self.mutex = threading.RLock()
        self._workers: list[threading.Thread] = []

    def _dismiss(self, seconds: float) -> None:
        """End the workers. The caller has the mutex, so that no launch is on its way."""
        ended, self._workers = self._workers, []
        if ended:
            _end(self.control)
        for worker in ended:
            worker.join(seconds)

    def _start(self) -> None:
        """Make workers for a new life, on lines of their own: one of a former life may linger."""
        block = self._block
        lines = self._lines = _aligned((self.threads - 1) * _LINE)
        for line in lines.reshape(-1, _LINE):
            line[_LOCK] = _new_lock()
        block[_SPINS] = 0 if self.threads > _cores() else _looks_in(_SPIN_SECONDS)
        block[_YIELDS] = _PATIENT_YIELDS
        block[_YIELD], block[_ACQUIRE], block[_RELEASE] = _YIELD_CALL, _ACQUIRE_CALL, _RELEASE_CALL
        block[_LINES] = lines.ctypes.data
        block[[_DONE, _ARRIVED]] = 0
        state = (block, lines, int(block[_LIFE]), int(block[_EPOCH]))
        workers = [
            threading.Thread(
                target=_worker, args=(thread, *state), name=f"splitbit-{thread}", daemon=True
            )
            for thread in range(1, self.threads)
        ]
        try:
            for worker in workers:
                worker.start()
            self._workers = workers
        except BaseException:  # too many threads for the system, or Ctrl-C: no half of a crew
            self._workers = []
            _end(self.control)
            raise


def _worker(thread: int, block: Words, lines: Words, life: int, epoch: int) -> None:
    """Work till `life` ends; the arrays stay in memory as long as this frame knows them."""
    line = lines[(thread - 1) * _LINE :]
    _work(block.ctypes.data, line.ctypes.data, thread, life, epoch)


def _aligned(words: int) -> Words:
    """Return words that are 0, the first of them at the beginning of a line."""
    block = np.zeros(words + _LINE, dtype=np.int64)
    return block[-(block.ctypes.data // WORD_BYTES) % _LINE :][:words]


def pool(threads: int) -> Pool:
    """Return this process's pool of so many threads. Raises ValueError unless threads >= 1."""
    found = _shared.get(threads)
    return found if found is not None else _shared.setdefault(threads, Pool(threads))


def _cores() -> int:
    """Return on how many processors this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def _looks_in(seconds: float) -> int:
    """Return how often a waiting thread looks in that time: a pause is 4 to 140 cycles long."""
    looks = 1000
    block = np.zeros(_EPOCH + 1, dtype=np.int64)
    spent = []
    for _ in range(3):
        begun = time.perf_counter()
        _look(block.ctypes.data, looks)
        spent.append(time.perf_counter() - begun)
    return max(1, int(looks * seconds / min(spent)))


def _pointer(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


def _new_lock() -> int:
    """Return a lock of the interpreter's, taken. It is never freed: who ends it may yet use it."""
    allocate = ctypes.pythonapi.PyThread_allocate_lock
    allocate.restype = ctypes.c_void_p
    lock = allocate()
    if not lock:
        raise MemoryError("no lock for a worker thread")
    ctypes.pythonapi.PyThread_acquire_lock(ctypes.c_void_p(lock), 0)
    return int(lock)


def _forget_all() -> None:
    for each in list(_pools):
        each._forget()


@atexit.register
def _dismiss_all() -> None:
    """End all workers before the interpreter does, and for good: no mutex is given back.

    A daemon thread that launches still waits for it in silence, where it could make no workers.
    """
    for each in list(_pools):
        if each.mutex.acquire(timeout=1):
            each._dismiss(1)


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_shared: dict[int, Pool] = {}

_ACQUIRE_CALL = _pointer(ctypes.pythonapi.PyThread_acquire_lock)
_RELEASE_CALL = _pointer(ctypes.pythonapi.PyThread_release_lock)
if sys.platform == "win32":
    _YIELD_CALL = _pointer(ctypes.windll.kernel32.SwitchToThread)
else:
    _YIELD_CALL = _pointer(ctypes.CDLL(None).sched_yield)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
