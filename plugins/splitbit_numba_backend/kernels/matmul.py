"""Matrix multiply: y = x W', dx = dy W and dW (+)= dy' x, with what follows fused in.

All three are one loop. A thread owns a rectangle of the result. It packs panels of the right
operand, as many as half a second cache holds, and goes through its rows in blocks: a block of the
left operand stays in the first cache while the panels stream past it. Sums are complete before they
leave their 32 x 32 buffer, so an epilogue (a bias, an activation, a residual) is applied to float32
numbers that memory has never seen. Only dW's sums, which go over all tokens, are made in layers,
each added to the result: panels of the whole depth would leave dy no room in the cache, and cost a
third of the speed.

Panels are packed anew in every call. At AMX's speed packing a panel costs as much as 0.7 to 1 block
of 32 rows multiplied by it, 1 or 2 per cent of 2,048 rows; weights kept packed would save that, for
a second copy of them all and of the code that makes it. Transposing blocks of dy costs more, a
tenth to a third of dW's time, because each serves only as many panels as x is wide.

What a caller promises, and gets:

- *Storage* is float32 or bfloat16, by the pointers' type; sums are float32.
- Activations x, dy (rows, columns) are row-major; the elements from the last column to the next
  multiple of 32 are readable (so the stride is at least that), and zeros: those of x in x W' and of
  dy in dy W meet zeros of the panel, but 0 times NaN is NaN.
- Results in storage are such matrices too: they are written in whole multiples of 32 columns, which
  makes their padding zero. (So parts of a wider matrix begin and end at multiples of 32.)
- Weights (N, K) and float32 matrices and vectors have no padding: not an element outside is read or
  written. Nothing need be aligned to more than its elements; 64 bytes are faster.
- Every element of the result is one sum in one order, whoever computes it: the number of threads
  does not change a bit. A thread's rectangle is the same in every multiply of the same kind and
  size, so an epilogue may read what this thread wrote in an earlier one, without a barrier.
- `scratch` is the address of `scratch_bytes(...)` bytes of this thread's own.
"""

from __future__ import annotations

from typing import NamedTuple

from splitbit_numba_backend.compiler import helper, shared
from splitbit_numba_backend.kernels.activations import (
    gelu_of,
    gelu_slope,
    swish_and_slope,
    swish_of,
)
from splitbit_numba_backend.kernels.packing import (
    EDGE_BYTES,
    copy_block,
    pack_columns,
    pack_rows,
    pack_transposed,
    padded_units,
)
from splitbit_numba_backend.kernels.shares import ZERO, Pointer, kernel, share
from splitbit_numba_backend.simd.pointers import (
    float32_pointer,
    int32_pointer,
    load,
    load_first,
    store,
    store_first,
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

ROWS = 32  # of a block, at most: a multiple of every path's tile but 6, which makes it 30
DEPTH = 128  # units of a block of the left operand: 16 KB, a third of a first cache
LAYER = 256  # units of a panel of dy' x; 1,024 cost a third of the speed, and 512 some per cent
PANELS = 32  # packed at once, at most
PANEL_BYTES = 1 << 20  # of all of them: half of a second cache
PACKING = 3  # what transposing a block of dy costs, in products of tiles

# where the parts of a thread's scratch memory are, in bytes; the edges of packing come first
BLOCK_AT = EDGE_BYTES
SUMS_AT = BLOCK_AT + 4 * ROWS * DEPTH
PANELS_AT = SUMS_AT + 4 * PANELS * ROWS * COLUMNS

# how the operands are stored: what `kind` may be
ROWS_BY_ROWS, ROWS_BY_COLUMNS, COLUMNS_BY_COLUMNS = range(3)  # x W', dy W, dy' x

# what becomes of a finished sum: what `Epilogue.kind` may be
FLOAT32, ADD, STORAGE, RESIDUAL, GELU, SWIGLU, GELU_GRADIENT, SWIGLU_GRADIENT = range(8)


class Epilogue(NamedTuple):
    """What becomes of s, the finished sums, and where it goes. Addresses, with 0 for none.

    FLOAT32          out = s + bias                    out float32
    ADD              out = out + s                     out float32
    STORAGE          out = s + bias                    out storage
    RESIDUAL         out = given + s + bias            out and given float32
    GELU             also = s + bias, out = gelu(also)
    SWIGLU           also = s + bias, out = silu(given) * also        (given: the gate; s: up)
    GELU_GRADIENT    out = s * gelu'(given)            given: what GELU stored in `also`
    SWIGLU_GRADIENT  out, also = s * d(silu(given) * given2) by given, by given2

    The last four read and write storage. gelu is x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))),
    silu x sigmoid(x). The bias is float32, one number a column.
    """

    kind: int
    out: int
    stride: int
    """of out and also, in elements"""
    also: int = 0
    given: int = 0
    given2: int = 0
    given_stride: int = 0
    bias: int = 0


@kernel
def finish(
    sums: Pointer, storage: Pointer, row: int, rows: int, column: int, columns: int, to: Epilogue
) -> None:
    """Apply an epilogue to a buffer of sums (rows, 32), the result's tile at (row, column).

    columns: of the result; beyond them the sums are zero, and so is what storage gets there. Each
    kind has a loop of its own: in a common one, the constants of all would compete for registers.
    """
    at, at_given = row * to.stride + column, row * to.given_stride + column
    out, also = like(storage, to.out) + at, like(storage, to.also) + at
    given, given2 = like(storage, to.given) + at_given, like(storage, to.given2) + at_given
    out32, given32 = float32_pointer(to.out) + at, float32_pointer(to.given) + at_given
    count = columns - column
    if to.bias != 0:
        bias = float32_pointer(to.bias)
        for c in range(0, COLUMNS, 16):
            b = load_first(bias, column + c, count - c, ZERO)
            for r in range(rows):
                store(sums, r * COLUMNS + c, load(sums, r * COLUMNS + c) + b)
    if to.kind == STORAGE:
        for r in range(rows):
            for c in range(0, COLUMNS, 16):
                store(out, r * to.stride + c, load(sums, r * COLUMNS + c))
    elif to.kind == GELU:
        for r in range(rows):
            for c in range(0, COLUMNS, 16):
                s = load(sums, r * COLUMNS + c)
                store(also, r * to.stride + c, s)
                store(out, r * to.stride + c, gelu_of(s))
    elif to.kind == SWIGLU:
        for r in range(rows):
            for c in range(0, COLUMNS, 16):
                s, x = load(sums, r * COLUMNS + c), load(given, r * to.given_stride + c)
                store(also, r * to.stride + c, s)
                store(out, r * to.stride + c, swish_of(x) * s)
    elif to.kind == GELU_GRADIENT:
        for r in range(rows):
            for c in range(0, COLUMNS, 16):
                s, x = load(sums, r * COLUMNS + c), load(given, r * to.given_stride + c)
                store(out, r * to.stride + c, s * gelu_slope(x))
    elif to.kind == SWIGLU_GRADIENT:
        for r in range(rows):
            for c in range(0, COLUMNS, 16):
                s, x = load(sums, r * COLUMNS + c), load(given, r * to.given_stride + c)
                swish, slope = swish_and_slope(x)
                y = s * load(given2, r * to.given_stride + c)
                store(out, r * to.stride + c, y * slope)
                store(also, r * to.stride + c, s * swish)
    else:
        finish_float32(sums, rows, count, out32, to.stride, given32, to.given_stride, to.kind)


@kernel
def finish_float32(
    sums: Pointer, rows: int, count: int, out: Pointer, stride: int, given: Pointer,
    given_stride: int, kind: int,
) -> None:  # fmt: skip
    """Write, add, or write with a residual; of each row the first `count` columns."""
    if kind == ADD:
        given, given_stride = out, stride
    for r in range(rows):
        for c in range(0, COLUMNS, 16):
            s = load(sums, r * COLUMNS + c)
            if kind != FLOAT32:
                s = s + load_first(given, r * given_stride + c, count - c, ZERO)
            store_first(out, r * stride + c, s, count - c)


@helper
def layer_units(units: int, kind: int) -> int:
    """Return how deep a panel is: the whole sum, unless that goes over the tokens of a batch."""
    return min(units, LAYER) if kind == COLUMNS_BY_COLUMNS else units


@helper
def panels_at_once(units: int) -> int:
    """Return how many panels of that depth are packed at a time."""
    return min(PANELS, max(1, PANEL_BYTES // (units * 4 * COLUMNS)))


@helper
def scratch_bytes(kind: int, depth: int, item: int) -> int:
    """Return the bytes a thread needs, about 1.2 MB or one panel.

    depth: K of x W', N of dy W, M of dy' x. item: bytes of an element of storage, 2 or 4.
    """
    units = layer_units(padded_units(depth, 4 // item), kind)
    return PANELS_AT + panels_at_once(units) * 4 * COLUMNS * units


@helper
def split(threads: int, blocks: int, panels: int, packing: int) -> int:
    """Return among how many threads to divide the rows; the panels go among threads // that many.

    The least cost of the busiest thread counts: its products, its panels to pack, each worth about
    one product, and its blocks, each worth `packing`.
    """
    best, least = 1, 1 << 62
    for down in range(1, threads + 1):
        if threads % down == 0:
            across = threads // down
            width, height = (panels + across - 1) // across, (blocks + down - 1) // down
            cost = width * (height + 1) + height * packing
            if cost < least:
                best, least = down, cost
    return best


@shared
def multiply(
    thread: int, threads: int, kind: int, left: Pointer, left_stride: int, right: Pointer,
    right_stride: int, rows: int, columns: int, depth: int, epilogue: Epilogue, scratch: int,
) -> None:  # fmt: skip
    """Compute this thread's part of left right -> (rows, columns), and apply the epilogue to it.

    ROWS_BY_ROWS        left (rows, depth), right (columns, depth): x W'
    ROWS_BY_COLUMNS     left (rows, depth), right (depth, columns): dy W
    COLUMNS_BY_COLUMNS  left (depth, rows), right (depth, columns): dy' x, to FLOAT32 or ADD only
    """
    pair = per_unit(left)
    units = padded_units(depth, pair)
    layer = layer_units(units, kind)
    most = panels_at_once(layer)
    first_row, stop_row, first_panel, stop_panel = part(
        thread, threads, rows, columns, block_rows(left), PACKING * (kind == COLUMNS_BY_COLUMNS)
    )
    begin(left)
    for unit in range(0, units, layer):
        some, start = min(layer, units - unit), unit * pair
        deep = min(depth - start, some * pair)
        if unit > 0:
            epilogue = Epilogue(ADD, epilogue.out, epilogue.stride, 0, 0, 0, 0, 0)
        for group in range(first_panel, stop_panel, most):
            panels = min(most, stop_panel - group)
            for panel in range(panels):
                column = (group + panel) * COLUMNS
                count = min(COLUMNS, columns - column)
                packed = int32_pointer(scratch + PANELS_AT) + panel * some * COLUMNS
                if kind == ROWS_BY_ROWS:
                    source = right + (column * right_stride + start)
                    pack_rows(source, right_stride, count, deep, packed, scratch)
                else:
                    source = right + (start * right_stride + column)
                    pack_columns(source, right_stride, deep, count, packed, scratch)
            for row in range(first_row, stop_row, block_rows(left)):
                count = min(block_rows(left), stop_row - row)
                source, shift = left + (row * left_stride + start), 0
                if kind == COLUMNS_BY_COLUMNS:
                    # 32 columns are read, also where a block has 30: not beyond the padding
                    shift = max(0, row + COLUMNS - (rows + COLUMNS - 1) // COLUMNS * COLUMNS)
                    source = left + (start * left_stride + row - shift)
                multiply_block(
                    kind, source, left_stride, shift, row, count, deep, panels, some,
                    group * COLUMNS, columns, epilogue, scratch,
                )  # fmt: skip
    end(left)


@helper
def block_rows(left: Pointer) -> int:
    """Return how many rows a block has: whole tiles."""
    return ROWS // tile_rows(left) * tile_rows(left)


@helper
def part(
    thread: int, threads: int, rows: int, columns: int, height: int, packing: int
) -> tuple[int, int, int, int]:
    """Return first and stop row, first and stop panel of a thread's rectangle.

    The same for every multiply of the same kind and size, so that an epilogue may read what this
    thread has written in an earlier one.
    """
    blocks, panels = (rows + height - 1) // height, (columns + COLUMNS - 1) // COLUMNS
    down = split(threads, blocks, panels, packing)
    across = threads // down
    first_row, stop_row = share(thread // across, down, rows, height)
    first_panel, stop_panel = share(thread % across, across, panels, 1)
    return first_row, stop_row, first_panel, stop_panel


@kernel
def multiply_block(
    kind: int, left: Pointer, left_stride: int, shift: int, row: int, rows: int, depth: int,
    panels: int, units: int, column: int, columns: int, epilogue: Epilogue, scratch: int,
) -> None:  # fmt: skip
    """Multiply a block of rows, from `row` on, by the packed panels, from `column` on; finish it.

    left: where the block starts; of dy, `shift` columns earlier.
    """
    pair = per_unit(left)
    sums = float32_pointer(scratch + SUMS_AT)
    for unit in range(0, units, DEPTH):
        some = min(DEPTH, units - unit)
        start, wide = unit * pair, some * pair
        block, stride = left + start, left_stride
        if kind == COLUMNS_BY_COLUMNS:
            block, stride = like(left, scratch + BLOCK_AT) + shift * wide, wide
            pack_transposed(
                left + start * left_stride, left_stride, min(depth - start, wide),
                int32_pointer(scratch + BLOCK_AT), some, scratch,
            )  # fmt: skip
        elif rows < block_rows(left):
            # a product reads all rows of its tiles, and these are not all there
            block, stride = like(left, scratch + BLOCK_AT), wide
            copy_block(left + start, left_stride, rows, wide, block, rows, wide)
        for panel in range(panels):
            total = sums + panel * ROWS * COLUMNS
            packed = int32_pointer(scratch + PANELS_AT) + (panel * units + unit) * COLUMNS
            for r in range(0, rows, tile_rows(left)):
                for c in range(0, COLUMNS, tile_columns(left)):
                    tile_product(
                        block + r * stride, stride, packed + c, some, total + (r * COLUMNS + c),
                        COLUMNS, unit > 0,
                    )  # fmt: skip
            if unit + some == units:
                finish(total, left, row, rows, column + panel * COLUMNS, columns, epilogue)
