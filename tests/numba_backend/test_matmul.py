"""Matrix multiply: every path of this processor, against float64 NumPy.

A path is chosen when the modules are imported, so each has a process of its own, which runs this
file as a script: all cases in one precision.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numba import njit

from splitbit_numba_backend.kernels import matmul
from splitbit_numba_backend.kernels.matmul import Epilogue
from splitbit_numba_backend.simd import features, tiles
from splitbit_numba_backend.simd.pointers import bfloat16_pointer, float32_pointer

Array = np.ndarray[Any, np.dtype[Any]]

BF16 = np.dtype(ml_dtypes.bfloat16)
SIZES = (  # M, N, K: ragged in every way; the last have several layers and groups
    (1, 1, 1), (1, 33, 65), (15, 17, 31), (17, 65, 15), (31, 15, 33), (33, 31, 17), (65, 1, 63),
    (64, 64, 64), (70, 96, 600), (1100, 70, 65), (40, 1060, 48),
)  # fmt: skip
KINDS = (matmul.ROWS_BY_ROWS, matmul.ROWS_BY_COLUMNS, matmul.COLUMNS_BY_COLUMNS)
GUARD = 77.0  # before every result: what is not the result's must stay


def compiled(pointer: Any) -> Any:
    @njit(nogil=True)
    def run(  # type: ignore[no-untyped-def]
        thread, threads, kind, left, left_stride, right, right_stride, m, n, k, epilogue, scratch
    ):
        matmul.multiply(
            thread, threads, kind, pointer(left), left_stride, pointer(right), right_stride, m, n,
            k, epilogue, scratch,
        )  # fmt: skip

    return run


def fenced(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an array that ends where a page begins which must not be touched: reading it kills."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    before = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = np.frombuffer(mmap.mmap(-1, before + mmap.PAGESIZE), np.uint8)
    if os.name == "posix":
        fence = ctypes.c_void_p(memory.ctypes.data + before)
        assert ctypes.CDLL(None).mprotect(fence, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    return memory[before - size : before].view(dtype).reshape(shape)


class Machine:
    """One precision on this process's path: operands as storage, and multiplies of them."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.run = compiled(bfloat16_pointer if dtype == BF16 else float32_pointer)
        self.rng = np.random.default_rng(7)

    def plain(self, rows: int, columns: int) -> Array:
        """A weight: no padding, and aligned to no more than an element."""
        array = fenced((rows, columns), self.dtype)
        array[:] = self.rng.standard_normal((rows, columns))
        return array

    def padded(self, rows: int, columns: int, fill: float | None = None) -> Array:
        """An activation: rows padded to 32 with zeros. Random, or filled with rubbish."""
        array = fenced((rows, -(-columns // 32) * 32), self.dtype)
        array[:] = 0 if fill is None else fill
        if fill is None:
            array[:, :columns] = self.rng.standard_normal((rows, columns))
        return array

    def operands(self, kind: int, m: int, n: int, k: int) -> tuple[Array, Array, int, int, int]:
        """Left, right, and rows, columns and depth of their product."""
        if kind == matmul.ROWS_BY_ROWS:
            return self.padded(m, k), self.plain(n, k), m, n, k
        if kind == matmul.ROWS_BY_COLUMNS:
            return self.padded(m, n), self.plain(n, k), m, k, n
        return self.padded(m, n), self.padded(m, k), n, k, m

    def multiply(
        self, kind: int, left: Array, right: Array, m: int, n: int, k: int, end: Epilogue,
        threads: int,
    ) -> None:  # fmt: skip
        """Run each thread's share in turn: none waits for another, so the order cannot matter."""
        for thread in reversed(range(threads)):
            scratch = fenced((matmul.scratch_bytes(kind, k, self.dtype.itemsize),), np.uint8)
            scratch[:] = 0xFF  # NaN, whatever it is read as
            self.run(
                thread, threads, kind, left.ctypes.data, left.shape[1], right.ctypes.data,
                right.shape[1], m, n, k, end, scratch.ctypes.data,
            )  # fmt: skip


def exact(kind: int, left: Array, right: Array, m: int, n: int, k: int) -> Array:
    """The product in float64."""
    a, b = left.astype(np.float64), right.astype(np.float64)
    if kind == matmul.ROWS_BY_ROWS:
        return a[:, :k] @ b.T
    if kind == matmul.ROWS_BY_COLUMNS:
        return a[:, :k] @ b
    return a[:, :m].T @ b[:, :n]


def gelu(x: Array) -> Array:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_gradient(x: Array) -> Array:
    t = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    inner = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
    return (1 + t) / 2 + x / 2 * (1 - t**2) * inner


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def close(got: Array, wanted: Array, tolerance: float, what: str) -> None:
    error = np.abs(got.astype(np.float64) - wanted).max() / max(1.0, np.abs(wanted).max())
    assert error < tolerance, f"{what}: error {error:.2e}"


def check_float32(machine: Machine, kind: int, size: tuple[int, int, int]) -> None:
    """Plain, with bias, with residual, added: float32 results, the same from 1, 2 and 3 threads."""
    left, right, m, n, k = machine.operands(kind, *size)
    wanted = exact(kind, left, right, m, n, k)
    residual, bias = fenced((m, n), np.float32), fenced((n,), np.float32)
    residual[:], bias[:] = machine.rng.standard_normal((m, n)), machine.rng.standard_normal(n)
    where = f"{machine.dtype}, kind {kind}, {size}"
    cases = {
        "float32": (matmul.FLOAT32, None, wanted),
        "bias": (matmul.FLOAT32, bias, wanted + bias),
        "add": (matmul.ADD, None, wanted + GUARD),
        "residual": (matmul.RESIDUAL, bias, wanted + bias + residual),
    }
    for name, (code, given_bias, expected) in cases.items():
        if kind == matmul.COLUMNS_BY_COLUMNS and code not in (matmul.FLOAT32, matmul.ADD):
            continue
        first: Array | None = None
        for threads in (1, 2, 3):
            out = fenced((m + 1, n), np.float32)
            out[:] = GUARD
            result = out[1:]
            address = 0 if given_bias is None else bias.ctypes.data
            end = Epilogue(code, result.ctypes.data, n, 0, residual.ctypes.data, 0, n, address)
            machine.multiply(kind, left, right, m, n, k, end, threads)
            close(result, expected, 2e-6, f"{name}, {where}")
            assert (out[0] == GUARD).all(), f"{name}, {where}: wrote outside"
            first = result if first is None else first
            assert np.array_equal(result, first), f"{name}, {where}: {threads} threads differ"


def check_storage(machine: Machine, kind: int, size: tuple[int, int, int]) -> None:
    """Epilogues that read or write storage; their padding becomes zero."""
    left, right, m, n, k = machine.operands(kind, *size)
    scale = np.sqrt(k)  # keeps the sums where activations are curved
    left[:] = (left.astype(np.float32) / scale).astype(machine.dtype)
    sums = exact(kind, left, right, m, n, k)
    x, y = machine.padded(m, n), machine.padded(m, n)
    a, b = (array[:, :n].astype(np.float64) for array in (x, y))
    bias = fenced((n,), np.float32)
    bias[:] = machine.rng.standard_normal(n)
    s, biased = sigmoid(a), sums + bias
    # code, bias?, wanted out, wanted also
    cases: list[tuple[int, bool, Array, Array | None]] = [
        (matmul.STORAGE, False, sums, None),
        (matmul.STORAGE, True, biased, None),
        (matmul.GELU, True, gelu(biased), biased),
        (matmul.GELU, False, gelu(sums), sums),
        (matmul.SWIGLU, True, a * s * biased, biased),
        (matmul.GELU_GRADIENT, False, sums * gelu_gradient(a), None),
        (matmul.SWIGLU_GRADIENT, False, sums * b * s * (1 + a * (1 - s)), sums * a * s),
    ]
    tolerance = 4e-3 if machine.dtype == BF16 else 2e-6
    for code, with_bias, wanted, wanted_also in cases:
        kept = []
        for threads in (1, 3):
            out, also = machine.padded(m, n, GUARD), machine.padded(m, n, GUARD)
            addresses = (
                out.ctypes.data,
                out.shape[1],
                also.ctypes.data,
                x.ctypes.data,
                y.ctypes.data,
            )
            end = Epilogue(code, *addresses, x.shape[1], bias.ctypes.data if with_bias else 0)
            machine.multiply(kind, left, right, m, n, k, end, threads)
            what = f"{machine.dtype}, epilogue {code}, kind {kind}, {size}"
            for got, expected in ((out, wanted), (also, wanted_also)):
                if expected is not None:
                    close(got[:, :n], expected, tolerance, what)
                    assert not got[:, n:].any(), f"{what}: padding is not zero"
            kept.append((out.tobytes(), also.tobytes()))
        assert kept[0] == kept[1], f"{what}: the number of threads matters"


def check_everything(dtype: np.dtype[Any]) -> None:
    machine = Machine(dtype)
    for size in SIZES:
        for kind in KINDS:
            check_float32(machine, kind, size)
            if kind != matmul.COLUMNS_BY_COLUMNS:
                check_storage(machine, kind, size)


def distinct() -> Iterator[tuple[str, str]]:
    """Each path and precision, but for those that multiply just as an earlier path does."""
    for size, name in ((2, "bf16"), (4, "fp32")):
        known: list[Any] = []
        for path in features.supported():
            shape = tiles.chosen(path, size)
            if shape not in known:
                known.append(shape)
                yield path, name


@pytest.fixture(scope="module")
def runs() -> Iterator[dict[tuple[str, str], Future[Any]]]:
    """Every path, two processes at a time: most of it is compiling."""

    def run(path: str, precision: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, features.VARIABLE: path}
        command = [sys.executable, __file__, precision]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    with ThreadPoolExecutor(2) as pool:
        yield {pair: pool.submit(run, *pair) for pair in distinct()}


@pytest.mark.parametrize("pair", list(distinct()), ids="-".join)
def test_path(pair: tuple[str, str], runs: dict[tuple[str, str], Future[Any]]) -> None:
    done = runs[pair].result()
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == f"checked {pair[0]}"


def test_an_unknown_path_is_an_error() -> None:
    with pytest.raises(ValueError, match="SPLITBIT_SIMD=abacus: this machine can run portable"):
        features.choose("abacus")
    assert features.choose("") == features.supported()[-1]


def test_refused_tiles_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "tiles_permitted", lambda: False)
    assert "amx" not in features.supported.__wrapped__()


def test_shares_cover_the_result_once() -> None:
    for threads in (1, 2, 3, 4, 7, 12):
        for rows, columns in ((1, 1), (33, 400), (400, 33), (768, 65)):
            covered = np.zeros((rows, columns), int)
            for thread in range(threads):
                r0, r1, p0, p1 = matmul.part(thread, threads, rows, columns, 32, 3)
                covered[r0:r1, 32 * p0 : 32 * p1] += 1
            assert (covered == 1).all()


if __name__ == "__main__":
    check_everything(BF16 if sys.argv[1] == "bf16" else np.dtype(np.float32))
    print(f"checked {features.PATH}")
