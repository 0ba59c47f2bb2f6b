"""Microseconds until all threads have run an empty kernel: our threads beside Numba's layers.

    python bench/launch.py
    python bench/launch.py --threads 4

A figure is the least of many short runs, each of a compiled loop over launches. Of ours there are
two more: a launch from Python, as the backend makes it, and a barrier between two parts of one
program, which saves most launches. `omp` needs GNU's libgomp, which slim containers and
macOS lack; a layer that Numba cannot load is left out. Run it while nothing else runs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

LAYERS = ("omp", "tbb", "workqueue")
ROUNDS = 50


def main() -> None:
    """Measure ours here and each layer in a process of its own, for a layer is loaded for good."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--launches", type=int, default=1000, help="in a run")
    parser.add_argument("--layer", choices=LAYERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.layer:
        print(numbas(args.threads, args.launches))
        return
    print(f"us a launch on {args.threads} threads, least of {ROUNDS} runs of {args.launches}")
    for name, figure in ours(args.threads, args.launches).items():
        print(f"{name:24}{figure:8.2f}")
    for layer in LAYERS:
        settings = {"NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": str(args.threads)}
        done = subprocess.run(
            [sys.executable, __file__, "--layer", layer, "--threads", str(args.threads),
             "--launches", str(args.launches)],
            env={**os.environ, **settings}, capture_output=True, text=True,
        )  # fmt: skip
        found = f"{float(done.stdout):8.2f}" if done.returncode == 0 else "    not there"
        print(f"{layer:24}{found}")


def ours(threads: int, launches: int) -> dict[str, float]:
    """Return what our pool takes, by what is measured."""
    from numba import cfunc, njit

    from splitbit_numba_backend.atomics import read, word
    from splitbit_numba_backend.threads import KERNEL, _launch, barrier, pool

    @cfunc(KERNEL, error_model="numpy")
    def nothing(thread, threads, args):  # type: ignore[no-untyped-def]
        pass

    @cfunc(KERNEL, error_model="numpy")
    def barriers(thread, threads, args):  # type: ignore[no-untyped-def]
        for _ in range(read(word(args, 1))):
            barrier(read(word(args, 0)))

    @njit(nogil=True)
    def many(control, function, launches):  # type: ignore[no-untyped-def]
        for _ in range(launches):
            _launch(control, function, 0)

    crew = pool(threads)
    crew.run(nothing.address, 0)
    words = np.array([crew.control, launches], np.int64)
    return {
        "ours": least(lambda: many(crew.control, nothing.address, launches), launches),
        "ours, from Python": least(
            lambda: [crew.run(nothing.address, 0) for _ in range(launches)], launches
        ),
        "ours, a barrier": least(lambda: crew.run(barriers.address, words.ctypes.data), launches),
    }


def numbas(threads: int, launches: int) -> float:
    """Return what a parallel region of Numba's takes, in the layer that the environment names."""
    from numba import njit, prange

    @njit(parallel=True)
    def many(places, launches):  # type: ignore[no-untyped-def]
        for _ in range(launches):
            for thread in prange(len(places)):
                places[thread, 0] += 1

    places = np.zeros((threads, 16), np.int64)  # a pair of cache lines each
    return least(lambda: many(places, launches), launches)


def least(run: Callable[[], object], launches: int) -> float:
    """Return the microseconds of a launch in the fastest run."""
    run()
    spent = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        run()
        spent.append(time.perf_counter() - begun)
    return min(spent) / launches * 1e6


if __name__ == "__main__":
    main()
