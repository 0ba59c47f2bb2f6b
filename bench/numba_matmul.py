"""GFLOP/s of the Numba backend's matrix multiply, by shape, beside PyTorch's.

    python bench/numba_matmul.py
    python bench/numba_matmul.py --precision bf16 --sizes C2 --torch-python ~/torch/bin/python
    SPLITBIT_SIMD=avx512_bf16 python bench/numba_matmul.py

Each row is a weight (N, K) of one of bench/train.py's sizes, and M tokens: y = x W' (forward),
dx = dy W (input) and dW = dy' x (weight). A figure is the best of many short runs; ours repeats the
multiply on every thread without waiting for the others, theirs is a loop of torch.mm. What PyTorch
needs less or more than that (dtype conversions, the sum into a gradient) is left out on both sides.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

SHAPES = {  # M, and (name, N, K)
    "C1": (768, (("qkv", 384, 128), ("out", 128, 128), ("up", 512, 128), ("down", 128, 512),
                 ("head", 65, 128))),
    "C2": (2048, (("qkv", 1152, 384), ("out", 384, 384), ("up", 1536, 384), ("down", 384, 1536),
                  ("head", 65, 384))),
    "C4": (2048, (("qkv", 1024, 512), ("out", 512, 512), ("gate", 1536, 512), ("down", 512, 1536),
                  ("head", 8192, 512))),
    "cube": (2048, (("", 2048, 2048),)),
}  # fmt: skip
KINDS = ("forward", "input", "weight")
ROUNDS, SECONDS = 30, 0.01  # many and short: some fall into moments when nothing else runs


def main() -> None:
    """Measure what the command line says, and print it."""
    args = arguments()
    measure = torch_figures if args.peer else our_figures
    weights = [(size, *weight) for size in args.sizes for weight in SHAPES[size][1]]
    shapes = [(SHAPES[size][0], n, k) for size, _, n, k in weights]
    if args.peer:
        print(json.dumps(measure(shapes, args.precision[0], args.threads)))
        return
    for precision in args.precision:
        theirs = peer(args, precision) if args.torch_python else None
        ours = measure(shapes, precision, args.threads)
        beside = ", ours / torch" if theirs else ""
        print(f"\n{precision}, GFLOP/s on {args.threads} threads{beside}")
        print(f"{'':12}{'M':>6}{'N':>6}{'K':>6}" + "".join(f"{kind:>15}" for kind in KINDS))
        for number, ((size, name, *_), shape) in enumerate(zip(weights, shapes, strict=True)):
            cells = [f"{figure:.0f}" for figure in ours[number]]
            if theirs:
                cells = [f"{a} / {b:.0f}" for a, b in zip(cells, theirs[number], strict=True)]
            sizes = "".join(f"{n:6}" for n in shape)
            print(f"{size + ' ' + name:12}{sizes}" + "".join(f"{cell:>15}" for cell in cells))


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=lambda text: text.split(","), default=list(SHAPES))
    parser.add_argument("--precision", type=lambda text: text.split(","), default=["bf16", "fp32"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--torch-python", help="interpreter with torch")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def peer(args: argparse.Namespace, precision: str) -> list[list[float]]:
    """Return PyTorch's figures, from its own process."""
    command = [args.torch_python, __file__, "--peer", "--sizes", ",".join(args.sizes)]
    command += ["--precision", precision, "--threads", str(args.threads)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    figures: list[list[float]] = json.loads(answer)
    return figures


def best(run: Callable[[int], None], flops: float) -> float:
    """Return GFLOP/s of run(repetitions), at its best."""
    run(1)
    started = time.perf_counter()
    run(3)
    repetitions = max(1, int(3 * SECONDS / (time.perf_counter() - started)))
    least = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        run(repetitions)
        least = min(least, (time.perf_counter() - started) / repetitions)
    return flops / least / 1e9


def torch_figures(
    shapes: list[tuple[int, int, int]], precision: str, threads: int
) -> list[list[float]]:
    """Return GFLOP/s of torch.mm: a row for each shape, a column for each kind."""
    import torch

    torch.set_num_threads(threads)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    figures = []
    for m, n, k in shapes:
        x, w, dy = (torch.randn(*shape).to(dtype) for shape in ((m, k), (n, k), (m, n)))
        row = []
        for a, b in ((x, w.T), (dy, w), (dy.T, x)):

            def run(repetitions: int, a: Any = a, b: Any = b) -> None:
                for _ in range(repetitions):
                    torch.mm(a, b)

            row.append(best(run, 2.0 * m * n * k))
        figures.append(row)
    return figures


def our_figures(
    shapes: list[tuple[int, int, int]], precision: str, threads: int
) -> list[list[float]]:
    """Return GFLOP/s of ours: a row for each shape, a column for each kind."""
    import ctypes

    import ml_dtypes
    import numpy as np
    from numba_repeat import address

    from splitbit_numba_backend.kernels import matmul
    from splitbit_numba_backend.simd.features import PATH

    dtype = np.dtype(ml_dtypes.bfloat16 if precision == "bf16" else np.float32)
    print(f"{precision}: path {PATH}", file=sys.stderr)
    # called by ctypes, which lets the other threads go on
    repeat = ctypes.CFUNCTYPE(None, *[ctypes.c_ssize_t] * 3)(address(precision))

    def aligned(shape: tuple[int, ...], dtype: Any) -> Any:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        raw = np.zeros(size + 64, np.uint8)
        start = -raw.ctypes.data % 64
        return raw[start : start + size].view(dtype).reshape(shape)

    def storage(rows: int, columns: int) -> Any:
        array = aligned((rows, (columns + 31) // 32 * 32), dtype)
        array[:, :columns] = np.random.default_rng(0).standard_normal((rows, columns))
        return array

    figures = []
    for m, n, k in shapes:
        x, dy = storage(m, k), storage(m, n)
        w = aligned((n, k), dtype)
        w[:] = np.random.default_rng(0).standard_normal((n, k))
        row = []
        for kind, (left, right, sizes) in enumerate(
            ((x, w, (m, n, k)), (dy, w, (m, k, n)), (dy, x, (n, k, m)))
        ):
            # activations are written as storage, gradients as float32
            kept = aligned(
                (sizes[0], (sizes[1] + 31) // 32 * 32), dtype if kind < 2 else np.float32
            )
            code = matmul.STORAGE if kind < 2 else matmul.FLOAT32
            end = (code, kept.ctypes.data, kept.shape[1])
            room = matmul.scratch_bytes(kind, sizes[2], dtype.itemsize)
            scratch = [aligned((room,), np.uint8) for _ in range(threads)]
            operands = (left.ctypes.data, left.shape[1], right.ctypes.data, right.shape[1], *sizes)

            def run(
                repetitions: int, kind: int = kind, operands: Any = operands, end: Any = end,
                scratch: Any = scratch,
            ) -> None:  # fmt: skip
                def work(thread: int) -> None:
                    words = [kind, *operands, *end, scratch[thread].ctypes.data, repetitions]
                    args = np.array(words, np.int64)
                    repeat(thread, threads, args.ctypes.data)

                others = [threading.Thread(target=work, args=(n,)) for n in range(1, threads)]
                for other in others:
                    other.start()
                work(0)
                for other in others:
                    other.join()

            row.append(best(run, 2.0 * m * n * k))
        figures.append(row)
    return figures


if __name__ == "__main__":
    main()
