"""embedding and add: the two ops around the blocks."""

from __future__ import annotations

from typing import Any

from splitbit_kit.api import Context, Gradients, Param
from splitbit_kit.api.backend import Array
from splitbit_numba_backend.kernels import embedding as tables
from splitbit_numba_backend.kernels import pointwise
from splitbit_numba_backend.runtime import NULL, Program, Runtime, address, target
from splitbit_numba_backend.simd.pointers import argument, float32_pointer, int32_pointer

IDS, TABLE, ROWS, WIDTH, OUT, VOCABULARY, ACCUMULATE = range(7)
LEFT, RIGHT, SUM, COUNT = range(4)


def _gather(thread: int, threads: int, args: int) -> None:
    tables.embedding(
        thread,
        threads,
        int32_pointer(argument(args, IDS)),
        float32_pointer(argument(args, TABLE)),
        float32_pointer(argument(args, OUT)),
        argument(args, ROWS),
        argument(args, WIDTH),
    )


def _scatter(thread: int, threads: int, args: int) -> None:
    tables.embedding_backward(
        thread,
        threads,
        int32_pointer(argument(args, IDS)),
        float32_pointer(argument(args, OUT)),
        float32_pointer(argument(args, TABLE)),
        argument(args, ROWS),
        argument(args, WIDTH),
        argument(args, VOCABULARY),
        argument(args, ACCUMULATE) != 0,
    )


def _add(thread: int, threads: int, args: int) -> None:
    pointwise.add(
        thread,
        threads,
        float32_pointer(argument(args, LEFT)),
        float32_pointer(argument(args, RIGHT)),
        float32_pointer(argument(args, SUM)),
        argument(args, COUNT),
    )


GATHER, SCATTER, ADD = Program(_gather, _gather), Program(_scatter, _scatter), Program(_add, _add)


class Embedding:
    """Rows of a table."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def forward(self, ctx: Context, ids: Array, table: Param) -> tuple[Array, Any]:
        """Return row ids[n] of the table (N, C)."""
        width = table.shape[1]
        out = ctx.workspace.take((len(ids), width), table.array.dtype)
        where = (address(ids), self.runtime.vector(table), len(ids), width, address(out))
        self.runtime.run(GATHER, where)
        return out, (ids, table)

    def backward(self, ctx: Context, dout: Array, saved: Any, grads: Gradients) -> tuple[()]:
        """Add each row of dout to the gradient of the row it came from."""
        ids, table = saved
        vocabulary, width = table.shape
        out, accumulate = target(grads, table)
        if out != NULL:
            args = (address(ids), out, len(ids), width, address(dout), vocabulary, accumulate)
            self.runtime.run(SCATTER, args)
        return ()


class Add:
    """The sum of two arrays."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def forward(self, ctx: Context, x: Array, y: Array) -> tuple[Array, None]:
        """Return x + y."""
        out = ctx.workspace.take(x.shape, x.dtype)
        self.runtime.run(ADD, (address(x), address(y), address(out), x.size))
        return out, None

    def backward(
        self, ctx: Context, dout: Array, saved: None, grads: Gradients
    ) -> tuple[Array, Array]:
        """Return dout twice: the tape adds out of place."""
        return dout, dout
