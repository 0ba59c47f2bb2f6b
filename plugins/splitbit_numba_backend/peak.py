"""What the multiply can reach: one block, one panel, both in the first cache, over and over."""

from __future__ import annotations

import numpy as np

from splitbit_kit.api import Peak
from splitbit_numba_backend.kernels.shares import Pointer, kernel
from splitbit_numba_backend.runtime import Program, Runtime, address
from splitbit_numba_backend.simd.pointers import (
    argument,
    bfloat16_pointer,
    float32_pointer,
    int32_pointer,
)
from splitbit_numba_backend.simd.tiles import (
    COLUMNS,
    begin,
    end,
    like,
    per_unit,
    tile_columns,
    tile_product,
    tile_rows,
)

LEFT, PANEL, SUMS, TIMES = range(4)

ROWS = np.intp(96)  # whole tiles of every path: 4, 6, 8 and 32 rows
UNITS = np.intp(32)  # of the sum: 4 KB of panel, 12 KB of rows and as much of sums
OPERATIONS = 2.0 * ROWS * UNITS * COLUMNS  # for each number in a unit of four bytes
RUN = 2e9  # operations of a run on a thread: some milliseconds


@kernel
def multiply_again(storage: Pointer, thread: int, args: int) -> None:
    """Multiply the thread's rows by the panel, so many times."""
    stride = UNITS * per_unit(storage)
    left = like(storage, argument(args, LEFT)) + thread * ROWS * stride
    panel = int32_pointer(argument(args, PANEL))
    sums = float32_pointer(argument(args, SUMS)) + thread * ROWS * COLUMNS
    begin(storage)
    for _ in range(argument(args, TIMES)):
        for row in range(0, ROWS, tile_rows(storage)):
            for column in range(0, COLUMNS, tile_columns(storage)):
                tile_product(
                    left + row * stride,
                    stride,
                    panel + column,
                    UNITS,
                    sums + (row * COLUMNS + column),
                    COLUMNS,
                    False,
                )
    end(storage)


def _fp32(thread: int, threads: int, args: int) -> None:
    multiply_again(float32_pointer(0), thread, args)


def _bf16(thread: int, threads: int, args: int) -> None:
    multiply_again(bfloat16_pointer(0), thread, args)


PEAK = Program(_fp32, _bf16)


def peak(runtime: Runtime) -> Peak:
    """Return that multiply on all threads, each with rows and sums of its own."""
    memory = runtime.threads * ROWS * UNITS, UNITS * COLUMNS, runtime.threads * ROWS * COLUMNS
    arrays = [np.zeros(units, np.float32) for units in memory]
    operations = OPERATIONS * (4 // runtime.item)
    times = max(1, int(RUN / operations))

    def run() -> None:
        runtime.run(PEAK, [*map(address, arrays), times])

    return Peak(run, float(times * runtime.threads * operations))
