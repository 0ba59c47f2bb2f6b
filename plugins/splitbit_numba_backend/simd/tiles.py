"""Products of tiles, and the panels they read: the code that knows particular processors.

Numbers are handled in *units* of four bytes: one float32, or two bfloat16 that are neighbours along
the summed dimension, the lower one first. The right operand of a product is a *panel*:
[units][32 columns], each row 128 bytes. Dot-product instructions (AVX-512's, AMX's, NEON's) all
want bfloat16 in such pairs, and code that lacks them splits a pair with a shift and a mask, so that
one layout serves every path. The left operand is plain row-major storage, read in place.

NEON's bfloat16 would be one entry in `BFLOAT16`, for `bfdot` does with four lanes what
`vdpbf16ps` does with sixteen: Shape(6, 4, 4, "llvm.aarch64.neon.bfdot.v4f32.v8bf16").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from splitbit_numba_backend.simd.features import PATH, PATHS
from splitbit_numba_backend.simd.pointers import (
    BF16,
    float32_type,
    int32_type,
    place,
)
from splitbit_numba_backend.simd.vector import (
    CONTRACT,
    F32,
    I8,
    I16,
    I32,
    I64,
    broadcast,
    function,
)

COLUMNS = 32  # of a panel
STEP = 16  # the summed dimension is padded to so many units: one row of an AMX tile


def _integer(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


# ---- pointers of whichever storage type


@intrinsic
def like(typingctx: Any, pointer: Any, address: Any) -> Any:
    """like(pointer, intp address) -> a pointer of the same type to that address."""
    return pointer(pointer, types.intp), lambda ctx, b, sig, args: args[1]


@intrinsic
def per_unit(typingctx: Any, pointer: Any) -> Any:
    """per_unit(pointer) -> intp: elements in a unit of four bytes, known when compiled."""
    return types.intp(pointer), lambda ctx, b, sig, args: _integer(4 // pointer.size)


# ---- panels: how rows and columns of storage become units


def _emit_transposed(
    b: Any, kind: ir.Type, columns: int, source: Any, stride: Any, out: Any, out_stride: Any
) -> None:
    """Transpose 64 bytes of rows, of elements of `kind`, and `columns` columns. Strides in bytes.

    Sixteen bytes of every row are loaded straight to where they belong in a register, which loads
    do almost for nothing; what remains are interleavings within sixteen bytes, which every
    processor has (punpck, zip). Half as many shuffles as with whole rows.
    """
    size = kind.width // 8
    short = 16 // size  # elements of sixteen bytes
    within = [lane + i for lane in range(0, 4 * short, short) for i in range(short // 2)]
    low, high = [
        ir.Constant(
            ir.VectorType(I32, 4 * short),
            [n for i in within for n in (i + start, i + start + 4 * short)],
        )
        for start in (0, short // 2)
    ]

    def joined(x: Any, y: Any) -> Any:
        order = ir.Constant(ir.VectorType(I32, 2 * x.type.count), list(range(2 * x.type.count)))
        return b.shuffle_vector(x, y, order)

    def row(number: int, column: int) -> Any:
        start = b.add(source, b.mul(stride, _integer(number)))
        where = place(b, start, _integer(column), kind, ir.VectorType(kind, short))
        return b.load(where, align=2)  # a weight may begin at any element, also within a unit

    for column in range(0, columns, short):
        rows = []
        for n in range(short):
            quarter = [row(n + lane * short, column) for lane in range(4)]
            rows.append(joined(joined(*quarter[:2]), joined(*quarter[2:])))
        for _ in range(short.bit_length() - 1):
            pairs = zip(rows[: short // 2], rows[short // 2 :], strict=True)
            rows = [b.shuffle_vector(x, y, part) for x, y in pairs for part in (low, high)]
        for n, elements in enumerate(rows):
            start = b.add(out, b.mul(out_stride, _integer(column + n)))
            b.store(elements, place(b, start, _integer(0), kind, elements.type), align=4)


@intrinsic
def transpose(typingctx: Any, source: Any, stride: Any, out: Any, out_stride: Any) -> Any:
    """transpose(pointer, intp, int32 pointer, intp): out[k, n] = source[n, k], 16 x 16 units.

    The source has 16 rows, `stride` elements apart; the result's rows are `out_stride` units apart.
    """

    def emit(ctx: Any, b: Any, sig: Any, args: Any) -> Any:
        source_, stride, out, out_stride = args
        strides = b.mul(stride, _integer(source.size)), b.mul(out_stride, _integer(4))
        _emit_transposed(b, I32, 16, source_, strides[0], out, strides[1])
        return ctx.get_dummy_value()

    return types.void(source, types.intp, int32_type, types.intp), emit


@intrinsic
def transpose_columns(typingctx: Any, source: Any, stride: Any, out: Any, out_stride: Any) -> Any:
    """transpose_columns(pointer, intp, int32 pointer, intp): out[n, k] = source[k, n].

    The source has 16 units of rows (32 rows of bfloat16) and 16 columns; out is 16 rows of 16 units
    along k: a block of the transposed matrix in row-major storage.
    """

    def emit(ctx: Any, b: Any, sig: Any, args: Any) -> Any:
        source_, stride, out, out_stride = args
        strides = b.mul(stride, _integer(source.size)), b.mul(out_stride, _integer(4))
        kind = I32 if source.size == 4 else I16
        _emit_transposed(b, kind, 16, source_, strides[0], out, strides[1])
        return ctx.get_dummy_value()

    return types.void(source, types.intp, int32_type, types.intp), emit


@intrinsic
def interleave(typingctx: Any, source: Any, stride: Any, out: Any) -> Any:
    """interleave(pointer, intp, int32 pointer): one row of a panel, 32 units.

    From one row of float32, or from two rows of bfloat16, `stride` elements apart.
    """

    def emit(ctx: Any, b: Any, sig: Any, args: Any) -> Any:
        source_, stride, out = args
        wide = ir.VectorType(I32 if source.size == 4 else I16, COLUMNS)

        def row(number: int) -> Any:
            index = b.mul(stride, _integer(number))
            return b.load(place(b, source_, index, wide.element, wide), align=source.size)

        if source.size == 4:
            b.store(row(0), place(b, out, _integer(0), I32, wide), align=4)
            return ctx.get_dummy_value()
        low, high = row(0), row(1)
        for half in (0, 16):
            pairs = [n for i in range(half, half + 16) for n in (i, COLUMNS + i)]
            joined = b.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, COLUMNS), pairs))
            b.store(joined, place(b, out, _integer(half), I32, wide), align=4)
        return ctx.get_dummy_value()

    return types.void(source, types.intp, int32_type), emit


# ---- products


@dataclass(frozen=True)
class Shape:
    """A product in vector registers: `rows` x (`vectors` of `lanes`) sums, all held at once.

    dot names an instruction (sums, pair, pairs) -> sums for bfloat16; without one the pairs are
    widened.
    """

    rows: int
    vectors: int
    lanes: int
    dot: str = ""

    @property
    def columns(self) -> int:
        """Columns of one product, a divisor of a panel's."""
        return self.vectors * self.lanes


@dataclass(frozen=True)
class Tiles:
    """A product in AMX tile registers: two by two tiles of 16 x 16 sums."""

    rows: int = 32
    columns: int = 32


FLOAT32: Mapping[str, Shape] = {
    "portable": Shape(4, 1, 16),
    "avx2": Shape(6, 2, 8),  # 12 of 16 registers; 8 x 32 would spill and run at half the speed
    "avx512": Shape(8, 2, 16),
}
BFLOAT16: Mapping[str, Shape | Tiles] = {
    **FLOAT32,
    "avx512_bf16": Shape(8, 2, 16, "llvm.x86.avx512bf16.dpbf16ps.512"),
    "amx": Tiles(),
}
"""By path (`simd.features`). A path without an entry does as the one before it."""


def chosen(path: str, size: int) -> Shape | Tiles:
    """Return how `path` multiplies storage of so many bytes an element."""
    table = FLOAT32 if size == 4 else BFLOAT16
    below = list(PATHS)[: list(PATHS).index(path) + 1]
    return next(table[name] for name in reversed(below) if name in table)


@intrinsic
def tile_rows(typingctx: Any, pointer: Any) -> Any:
    """tile_rows(pointer) -> intp: rows of one `tile_product`, known when compiled."""
    rows = chosen(PATH, pointer.size).rows
    return types.intp(pointer), lambda ctx, b, sig, args: _integer(rows)


@intrinsic
def tile_columns(typingctx: Any, pointer: Any) -> Any:
    """tile_columns(pointer) -> intp: columns of one `tile_product`, 16 or 32."""
    columns = chosen(PATH, pointer.size).columns
    return types.intp(pointer), lambda ctx, b, sig, args: _integer(columns)


@intrinsic
def tile_product(
    typingctx: Any, left: Any, stride: Any, panel: Any, units: Any, out: Any, out_stride: Any,
    accumulate: Any,
) -> Any:  # fmt: skip
    """tile_product(left, intp, panel, intp units, out, intp, boolean): out (+)= left panel.

    left (tile_rows, units) and float32 out (tile_rows, tile_columns) are row-major, their rows a
    number of elements apart; panel [units][32] is read from the pointer's column on. All rows are
    read and written. units is a multiple of `STEP`.
    """
    shape = chosen(PATH, left.size)

    def emit(ctx: Any, b: Any, sig: Any, args: Any) -> Any:
        a, stride, *rest = args
        stride = b.mul(stride, _integer(left.size))
        if isinstance(shape, Tiles):
            _emit_tiles(b, a, stride, *rest)
        else:
            _emit_vectors(b, shape, left.size == 2, a, stride, *rest)
        return ctx.get_dummy_value()

    arguments = (left, types.intp, int32_type, types.intp, float32_type, types.intp)
    return types.void(*arguments, types.boolean), emit


def _emit_vectors(
    b: Any, shape: Shape, pairs: bool, left: Any, stride: Any, panel: Any, units: Any, out: Any,
    out_stride: Any, accumulate: Any,
) -> None:  # fmt: skip
    units_kind = ir.VectorType(I32, shape.lanes)
    sums_kind = ir.VectorType(F32, shape.lanes)
    multiply_add = f"llvm.fmuladd.v{shape.lanes}f32"

    def add_product(total: Any, x: Any, y: Any) -> Any:
        if shape.dot and pairs:
            kind = ir.VectorType(BF16, 2 * shape.lanes)
            dot = function(b, shape.dot, sums_kind, [sums_kind, kind, kind])
            return b.call(dot, [total, b.bitcast(x, kind), b.bitcast(y, kind)])
        fma = function(b, multiply_add, sums_kind, [sums_kind] * 3)
        for x_, y_ in zip(split(x), split(y), strict=True):
            total = b.call(fma, [x_, y_, total], fastmath=CONTRACT)
        return total

    def split(x: Any) -> list[Any]:
        if not pairs:
            return [b.bitcast(x, sums_kind)]
        low = b.shl(x, ir.Constant(units_kind, [16] * shape.lanes))
        high = b.and_(x, ir.Constant(units_kind, [0xFFFF0000] * shape.lanes))
        return [b.bitcast(low, sums_kind), b.bitcast(high, sums_kind)]

    places = [
        (row, place(b, out, b.add(b.mul(out_stride, _integer(row)), _integer(v * shape.lanes)), F32,
                    sums_kind))
        for row in range(shape.rows)
        for v in range(shape.vectors)
    ]  # fmt: skip
    before, fetch = b.block, b.append_basic_block("fetch")
    loop, done = b.append_basic_block("loop"), b.append_basic_block("done")
    b.cbranch(accumulate, fetch, loop)
    b.position_at_end(fetch)
    earlier = [b.load(where, align=4) for _, where in places]
    b.branch(loop)
    b.position_at_end(loop)
    k = b.phi(I64)
    sums = [b.phi(sums_kind) for _ in places]
    for start, block in ((ir.Constant(sums_kind, None), before), (None, fetch)):
        k.add_incoming(_integer(0), block)
        for phi, known in zip(sums, earlier, strict=True):
            phi.add_incoming(known if start is None else start, block)
    columns = [
        b.load(place(b, panel, b.add(b.mul(k, _integer(COLUMNS)), _integer(v * shape.lanes)), I32,
                     units_kind), align=4)
        for v in range(shape.vectors)
    ]  # fmt: skip
    ones = [
        b.load(place(b, b.add(left, b.mul(stride, _integer(row))), k, I32, I32), align=2)
        for row in range(shape.rows)
    ]
    rows = [broadcast(b, one, units_kind) for one in ones]
    new = [
        add_product(total, rows[row], columns[n % shape.vectors])
        for n, (total, (row, _)) in enumerate(zip(sums, places, strict=True))
    ]
    following = b.add(k, _integer(1))
    k.add_incoming(following, b.block)
    for phi, total in zip(sums, new, strict=True):
        phi.add_incoming(total, b.block)
    b.cbranch(b.icmp_signed("<", following, units), loop, done)
    b.position_at_end(done)
    for total, (_, where) in zip(new, places, strict=True):
        b.store(total, where, align=4)


def _emit_tiles(
    b: Any, left: Any, stride: Any, panel: Any, units: Any, out: Any, out_stride: Any,
    accumulate: Any,
) -> None:  # fmt: skip
    pointer, void = I8.as_pointer(), ir.VoidType()
    zero = function(b, "llvm.x86.tilezero", void, [I8])
    load = function(b, "llvm.x86.tileloadd64", void, [I8, pointer, I64])
    store = function(b, "llvm.x86.tilestored64", void, [I8, pointer, I64])
    dot = function(b, "llvm.x86.tdpbf16ps", void, [I8, I8, I8])
    prefetch = function(b, "llvm.prefetch.p0", void, [pointer, I32, I32, I32])
    row, out_row = _integer(4 * COLUMNS), b.mul(out_stride, _integer(4))  # bytes

    def tile(number: int) -> ir.Constant:
        return ir.Constant(I8, number)

    def at(base: Any, *offsets: Any) -> Any:
        for offset in offsets:
            base = b.add(base, offset)
        return b.inttoptr(base, pointer)

    # sums are tiles 0 to 3, rows of the left operand 4 and 5, columns of the panel 6 and 7
    sums = [
        (n, at(out, b.mul(out_row, _integer(n // 2 * 16)), _integer(n % 2 * 64))) for n in range(4)
    ]
    fetch, clear = b.append_basic_block("fetch"), b.append_basic_block("clear")
    loop, done = b.append_basic_block("loop"), b.append_basic_block("done")
    b.cbranch(accumulate, fetch, clear)
    b.position_at_end(fetch)
    for n, where in sums:
        b.call(load, [tile(n), where, out_row])
    b.branch(loop)
    b.position_at_end(clear)
    for n, _ in sums:
        b.call(zero, [tile(n)])
    b.branch(loop)
    b.position_at_end(loop)
    k = b.phi(I64)
    for block in (fetch, clear):
        k.add_incoming(_integer(0), block)
    along, down = b.mul(k, _integer(4)), b.mul(k, row)
    lower = b.mul(stride, _integer(16))
    b.call(load, [tile(4), at(left, along), stride])
    b.call(load, [tile(6), at(panel, down), row])
    b.call(load, [tile(7), at(panel, down, _integer(64)), row])
    b.call(load, [tile(5), at(left, along, lower), stride])
    for n, _ in sums:
        b.call(dot, [tile(n), tile(4 + n // 2), tile(6 + n % 2)])
        # a panel comes from the second cache, just too slowly: ask for the next step now (+ 13 %)
        for line in range(8 * n, 8 * n + 8):
            ahead = at(panel, down, _integer(STEP * 4 * COLUMNS + 64 * line))
            b.call(prefetch, [ahead, *(ir.Constant(I32, n) for n in (0, 3, 1))])
    following = b.add(k, _integer(STEP))
    k.add_incoming(following, loop)
    b.cbranch(b.icmp_signed("<", following, units), loop, done)
    b.position_at_end(done)
    for n, where in sums:
        b.call(store, [tile(n), where, out_row])


@intrinsic
def begin(typingctx: Any, pointer: Any) -> Any:
    """begin(pointer): ready this thread for products of that storage."""
    tiles = isinstance(chosen(PATH, pointer.size), Tiles)

    def emit(ctx: Any, b: Any, sig: Any, args: Any) -> Any:
        if tiles:
            # palette 1; eight tiles, each of 16 rows of 64 bytes
            # (Intel's Software Developer's Manual, volume 1, chapter 18)
            bytes_ = [1, *[0] * 15, *[64, 0] * 8, *[0] * 16, *[16] * 8, *[0] * 8]
            kind = ir.ArrayType(I8, 64)
            known = b.module.globals.get("splitbit_tile_configuration")
            if known is None:
                known = ir.GlobalVariable(b.module, kind, "splitbit_tile_configuration")
                known.linkage, known.global_constant = "internal", True
                known.initializer = ir.Constant(kind, bytearray(bytes_))
            configure = function(b, "llvm.x86.ldtilecfg", ir.VoidType(), [I8.as_pointer()])
            b.call(configure, [b.bitcast(known, I8.as_pointer())])
        return ctx.get_dummy_value()

    return types.void(pointer), emit


@intrinsic
def end(typingctx: Any, pointer: Any) -> Any:
    """end(pointer): give back what `begin` took; tiles in use make a thread's switches slower."""
    tiles = isinstance(chosen(PATH, pointer.size), Tiles)

    def emit(ctx: Any, b: Any, sig: Any, args: Any) -> Any:
        if tiles:
            b.call(function(b, "llvm.x86.tilerelease", ir.VoidType(), []), [])
        return ctx.get_dummy_value()

    return types.void(pointer), emit
