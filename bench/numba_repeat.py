"""The Numba backend's multiply, over and over, as a program of its own: for `numba_matmul.py`."""

from __future__ import annotations

from typing import Any

from splitbit_numba_backend.kernels.matmul import Epilogue, multiply
from splitbit_numba_backend.kernels.shares import kernel
from splitbit_numba_backend.runtime import Program, compiled
from splitbit_numba_backend.simd.pointers import argument, bfloat16_pointer, float32_pointer
from splitbit_numba_backend.simd.tiles import like

(
    KIND, LEFT, LEFT_STRIDE, RIGHT, RIGHT_STRIDE, ROWS, COLUMNS, DEPTH, CODE, OUT, OUT_STRIDE,
    SCRATCH, TIMES,
) = range(13)  # fmt: skip


@kernel
def repeat(storage: Any, thread: int, threads: int, args: int) -> None:
    """Multiply so many times."""
    end = Epilogue(
        argument(args, CODE), argument(args, OUT), argument(args, OUT_STRIDE), 0, 0, 0, 0, 0
    )
    for _ in range(argument(args, TIMES)):
        multiply(
            thread, threads, argument(args, KIND), like(storage, argument(args, LEFT)),
            argument(args, LEFT_STRIDE), like(storage, argument(args, RIGHT)),
            argument(args, RIGHT_STRIDE), argument(args, ROWS), argument(args, COLUMNS),
            argument(args, DEPTH), end, argument(args, SCRATCH),
        )  # fmt: skip


def _fp32(thread: int, threads: int, args: int) -> None:
    repeat(float32_pointer(0), thread, threads, args)


def _bf16(thread: int, threads: int, args: int) -> None:
    repeat(bfloat16_pointer(0), thread, threads, args)


REPEAT = Program(_fp32, _bf16)


def address(precision: str) -> int:
    """Return the address of the compiled program: void(thread, threads, address of the words)."""
    return compiled(REPEAT.bf16 if precision == "bf16" else REPEAT.fp32)
