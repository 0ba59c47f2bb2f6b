# ruff: noqa
# Throwaway: explicit SIMD inside Numba, copied from a dense prototype to measure the contract's cost, and kept only as
# long as the measurement is. The real backend (plugins/splitbit_numba_backend) replaces it. Kernels
# read raw addresses: a wrong index is a crash.
"""Explicit SIMD inside Numba: a first-class <16 x float> type (portable LLVM vector IR; LLVM legalises it to
zmm / 2 ymm / 4 NEON q), raw-pointer loads/stores (f32 and bf16), and GEMM micro-kernels as @intrinsic."""

import operator
from numba import types, njit
from numba.extending import intrinsic, models, register_model, lower_builtin
from numba.core.typing.templates import infer_global, ConcreteTemplate
from numba.core.typing import signature
from llvmlite import ir
import llvmlite.binding as llb

W = 16
HAS_BF16 = "avx512bf16" in [k for k, v in llb.get_host_cpu_features().items() if v]


class BF(ir.Type):
    intrinsic_name = "bf16"

    def _to_string(self):
        return "bfloat"

    def __eq__(self, o):
        return isinstance(o, BF)

    def __hash__(self):
        return hash("bf")


i1 = ir.IntType(1)
i16 = ir.IntType(16)
i32 = ir.IntType(32)
i64 = ir.IntType(64)
f32 = ir.FloatType()
V16F = ir.VectorType(f32, W)
V16I = ir.VectorType(i32, W)
V16H = ir.VectorType(i16, W)
V32B = ir.VectorType(BF(), 32)
V16B = ir.VectorType(BF(), W)


class V16(types.Type):
    def __init__(self):
        super().__init__(name="v16f32")


v16 = V16()


@register_model(V16)
class V16Model(models.PrimitiveModel):
    def __init__(self, dmm, fe):
        super().__init__(dmm, fe, V16F)


def splat_c(x, ty=None):
    return ir.Constant(V16F, [float(x)] * W)


def splat_i(x):
    return ir.Constant(V16I, [x] * W)


FL = ("contract",)


def _bin(op, meth):
    @infer_global(op)
    class T(ConcreteTemplate):
        cases = [signature(v16, v16, v16)]

    @lower_builtin(op, v16, v16)
    def low(ctx, b, sig, args):
        return getattr(b, meth)(args[0], args[1], flags=FL)


_bin(operator.add, "fadd")
_bin(operator.sub, "fsub")
_bin(operator.mul, "fmul")
_bin(operator.truediv, "fdiv")


def fnof(b, name, rt, ats):
    f = b.module.globals.get(name)
    return f if f is not None else ir.Function(b.module, ir.FunctionType(rt, ats), name)


def splat(b, s, vt):
    u = ir.Constant(vt, ir.Undefined)
    return b.shuffle_vector(
        b.insert_element(u, s, ir.Constant(i32, 0)), u, ir.Constant(V16I, [0] * W)
    )


@intrinsic
def vs(t, x):
    def cg(ctx, b, sig, args):
        return splat(b, args[0], V16F)

    return v16(types.float32), cg


def ptr(b, p, off, ty):
    return b.gep(b.inttoptr(p, ty.as_pointer()), [off])


@intrinsic
def vld(t, p, off):
    def cg(ctx, b, sig, args):
        return b.load(b.bitcast(ptr(b, args[0], args[1], f32), V16F.as_pointer()), align=4)

    return v16(types.intp, types.intp), cg


@intrinsic
def vst(t, p, off, v):
    def cg(ctx, b, sig, args):
        b.store(args[2], b.bitcast(ptr(b, args[0], args[1], f32), V16F.as_pointer()), align=4)
        return ctx.get_dummy_value()

    return types.void(types.intp, types.intp, v16), cg


def bf_widen(b, h):
    return b.bitcast(b.shl(b.zext(h, V16I), splat_i(16)), V16F)


def bf_narrow(b, v):
    if HAS_BF16:
        return b.bitcast(b.fptrunc(v, V16B), V16H)
    u = b.bitcast(v, V16I)
    r = b.add(b.add(u, splat_i(0x7FFF)), b.and_(b.lshr(u, splat_i(16)), splat_i(1)))
    return b.trunc(b.lshr(r, splat_i(16)), V16H)


@intrinsic
def vldb(t, p, off):
    def cg(ctx, b, sig, args):
        return bf_widen(
            b, b.load(b.bitcast(ptr(b, args[0], args[1], i16), V16H.as_pointer()), align=2)
        )

    return v16(types.intp, types.intp), cg


@intrinsic
def vstb(t, p, off, v):
    def cg(ctx, b, sig, args):
        b.store(
            bf_narrow(b, args[2]),
            b.bitcast(ptr(b, args[0], args[1], i16), V16H.as_pointer()),
            align=2,
        )
        return ctx.get_dummy_value()

    return types.void(types.intp, types.intp, v16), cg


def _un(name, body):
    @intrinsic
    def f(t, x):
        def cg(ctx, b, sig, args):
            return body(b, args[0])

        return v16(v16), cg

    return f


@intrinsic
def vmax(t, x, y):
    def cg(ctx, b, sig, args):
        return b.select(b.fcmp_ordered(">", *args), *args)

    return v16(v16, v16), cg


@intrinsic
def vsum(t, x):
    def cg(ctx, b, sig, args):
        v = args[0]
        n = W
        while n > 1:
            h = n // 2
            lo = b.shuffle_vector(v, v, ir.Constant(ir.VectorType(i32, h), list(range(h))))
            hi = b.shuffle_vector(v, v, ir.Constant(ir.VectorType(i32, h), list(range(h, n))))
            v = b.fadd(lo, hi)
            n = h
        return b.extract_element(v, ir.Constant(i32, 0))

    return types.float32(v16), cg


@intrinsic
def vhmax(t, x):
    def cg(ctx, b, sig, args):
        v = args[0]
        n = W
        while n > 1:
            h = n // 2
            lo = b.shuffle_vector(v, v, ir.Constant(ir.VectorType(i32, h), list(range(h))))
            hi = b.shuffle_vector(v, v, ir.Constant(ir.VectorType(i32, h), list(range(h, n))))
            v = b.select(b.fcmp_ordered(">", lo, hi), lo, hi)
            n = h
        return b.extract_element(v, ir.Constant(i32, 0))

    return types.float32(v16), cg


@intrinsic
def vfirst(t, x, n, other):
    "lanes < n keep x, others become `other`"

    def cg(ctx, b, sig, args):
        io = ir.Constant(V16I, list(range(W)))
        n = splat(b, b.trunc(args[1], i32), V16I)
        return b.select(b.icmp_signed("<", io, n), args[0], splat(b, args[2], V16F))

    return v16(v16, types.intp, types.float32), cg


def emit_exp(b, x):
    c = splat_c
    x = b.select(b.fcmp_ordered("<", x, c(88.3)), x, c(88.3))
    x = b.select(b.fcmp_ordered(">", x, c(-87.3)), x, c(-87.3))
    n = b.call(fnof(b, "llvm.rint.v16f32", V16F, [V16F]), [b.fmul(x, c(1.4426950408889634))])
    fma = fnof(b, "llvm.fmuladd.v16f32", V16F, [V16F] * 3)
    r = b.call(fma, [n, c(-0.693359375), x])
    r = b.call(fma, [n, c(2.12194440e-4), r])
    p = c(1.9875691500e-4)
    for k in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = b.call(fma, [p, r, c(k)])
    p = b.call(fma, [p, b.fmul(r, r), b.fadd(r, c(1.0))])
    e = b.shl(b.fptosi(n, V16I), splat_i(23))
    return b.bitcast(b.add(b.bitcast(p, V16I), e), V16F)


vexp = _un("exp", emit_exp)
vsqrt = _un("sqrt", lambda b, x: b.call(fnof(b, "llvm.sqrt.v16f32", V16F, [V16F]), [x]))
vabs = _un("abs", lambda b, x: b.call(fnof(b, "llvm.fabs.v16f32", V16F, [V16F]), [x]))


def vsign_of(b, mag, s):
    return b.call(fnof(b, "llvm.copysign.v16f32", V16F, [V16F, V16F]), [mag, s])


@intrinsic
def vcopysign(t, m, s):
    def cg(ctx, b, sig, args):
        return vsign_of(b, *args)

    return v16(v16, v16), cg


def sld(name, nty, lty, bf):
    @intrinsic
    def f(t, p, off):
        def cg(ctx, b, sig, args):
            x = b.load(ptr(b, args[0], args[1], lty), align=2 if bf else 4)
            return b.bitcast(b.shl(b.zext(x, i32), ir.Constant(i32, 16)), f32) if bf else x

        return nty(types.intp, types.intp), cg

    return f


ldf = sld("ldf", types.float32, f32, False)
ldb = sld("ldb", types.float32, i16, True)
ldi = sld("ldi", types.int32, i32, False)


@intrinsic
def stf(t, p, off, v):
    def cg(ctx, b, sig, args):
        b.store(args[2], ptr(b, args[0], args[1], f32), align=4)
        return ctx.get_dummy_value()

    return types.void(types.intp, types.intp, types.float32), cg


@intrinsic
def stb(t, p, off, v):
    def cg(ctx, b, sig, args):
        u = b.bitcast(args[2], i32)
        c = lambda k: ir.Constant(i32, k)
        r = b.add(b.add(u, c(0x7FFF)), b.and_(b.lshr(u, c(16)), c(1)))
        b.store(b.trunc(b.lshr(r, c(16)), i16), ptr(b, args[0], args[1], i16), align=2)
        return ctx.get_dummy_value()

    return types.void(types.intp, types.intp, types.float32), cg


@intrinsic
def sti(t, p, off, v):
    def cg(ctx, b, sig, args):
        b.store(args[2], ptr(b, args[0], args[1], i32), align=4)
        return ctx.get_dummy_value()

    return types.void(types.intp, types.intp, types.int32), cg


# ---- GEMM micro kernel. Unit = 4 bytes (one f32, or a pair of bf16 along k). B panel: [k][32]; A(m,k)=ap+m*sm+k*sk units.
def make_micro(kind, MR=8, NV=2):
    @intrinsic
    def micro(tctx, ap, sm, sk, mrem, bp, cp, ldc, ku, acc):
        sig = types.void(*([types.intp] * 8), types.boolean)

        def codegen(ctx, b, sig, args):
            ap, sm, sk, mrem, bp, cp, ldc, ku, first = args
            ci = lambda k: ir.Constant(i64, k)
            if kind == "bf16":
                fn = fnof(b, "llvm.x86.avx512bf16.dpbf16ps.512", V16F, [V16F, V32B, V32B])
            else:
                fn = fnof(b, "llvm.fma.v16f32", V16F, [V16F] * 3)
            A = b.inttoptr(ap, i32.as_pointer())
            B = b.inttoptr(bp, i32.as_pointer())
            C = b.inttoptr(cp, f32.as_pointer())
            last = b.sub(mrem, ci(1))
            rows = []
            for m in range(MR):
                mm = b.select(b.icmp_signed("<", ci(m), last), ci(m), last) if m else ci(0)
                rows.append(b.gep(A, [b.mul(mm, sm)]))
            zero = ir.Constant(V16F, [0.0] * 16)
            pre = b.block
            loop = b.append_basic_block("kloop")
            done = b.append_basic_block("kdone")
            b.branch(loop)
            b.position_at_end(loop)
            k = b.phi(i64)
            k.add_incoming(ci(0), pre)
            ka = b.phi(i64)
            ka.add_incoming(ci(0), pre)
            accs = [[b.phi(V16F) for _ in range(NV)] for _ in range(MR)]
            for r in accs:
                for p in r:
                    p.add_incoming(zero, pre)
            kb = b.gep(B, [b.mul(k, ci(NV * 16))])
            bv = [
                b.load(b.bitcast(b.gep(kb, [ci(16 * v)]), V16I.as_pointer()), align=64)
                for v in range(NV)
            ]
            cast = (
                (lambda x: b.bitcast(x, V32B)) if kind == "bf16" else (lambda x: b.bitcast(x, V16F))
            )
            bv = [cast(x) for x in bv]
            new = []
            for m in range(MR):
                s = b.load(b.gep(rows[m], [ka]), align=4)
                vv = cast(splat(b, s, V16I))
                new.append(
                    [
                        b.call(
                            fn,
                            [accs[m][v], vv, bv[v]] if kind == "bf16" else [vv, bv[v], accs[m][v]],
                        )
                        for v in range(NV)
                    ]
                )
            kn = b.add(k, ci(1))
            k.add_incoming(kn, loop)
            ka.add_incoming(b.add(ka, sk), loop)
            for m in range(MR):
                for v in range(NV):
                    accs[m][v].add_incoming(new[m][v], loop)
            b.cbranch(b.icmp_signed("<", kn, ku), loop, done)
            b.position_at_end(done)
            addb = b.append_basic_block("add")
            stb_ = b.append_basic_block("st")
            end = b.append_basic_block("end")
            b.cbranch(first, addb, stb_)
            for blk, add in ((addb, True), (stb_, False)):
                b.position_at_end(blk)
                for m in range(MR):
                    row = b.gep(C, [b.mul(ldc, ci(m))])
                    for v in range(NV):
                        p = b.bitcast(b.gep(row, [ci(16 * v)]), V16F.as_pointer())
                        val = new[m][v]
                        if add:
                            val = b.fadd(b.load(p, align=4), val)
                        b.store(val, p, align=4)
                b.branch(end)
            b.position_at_end(end)
            return ctx.get_dummy_value()

        return sig, codegen

    return micro


@intrinsic
def transpose16(t, src, ld, dst, dld):
    "16x16 units: dst[c*dld+r]=src[r*ld+c]"

    def cg(ctx, b, sig, args):
        src, ld, dst, dld = args
        ci = lambda k: ir.Constant(i64, k)
        S = b.inttoptr(src, i32.as_pointer())
        D = b.inttoptr(dst, i32.as_pointer())
        r = [
            b.load(b.bitcast(b.gep(S, [b.mul(ld, ci(k))]), V16I.as_pointer()), align=4)
            for k in range(16)
        ]
        for d in (8, 4, 2, 1):
            for i in range(16):
                if i & d:
                    continue
                a, c = r[i], r[i + d]
                m1 = [k if not k & d else 16 + k - d for k in range(16)]
                m2 = [k + d if not k & d else 16 + k for k in range(16)]
                r[i] = b.shuffle_vector(a, c, ir.Constant(V16I, m1))
                r[i + d] = b.shuffle_vector(a, c, ir.Constant(V16I, m2))
        for k in range(16):
            b.store(r[k], b.bitcast(b.gep(D, [b.mul(dld, ci(k))]), V16I.as_pointer()), align=4)
        return ctx.get_dummy_value()

    return types.void(*([types.intp] * 4)), cg


@intrinsic
def zip32(t, s0, s1, dst):
    "dst u32[32] = s0 u16[32] | s1 u16[32]<<16"

    def cg(ctx, b, sig, args):
        V32H = ir.VectorType(i16, 32)
        a = [b.load(b.inttoptr(p, V32H.as_pointer()), align=2) for p in args[:2]]
        V32I = ir.VectorType(i32, 32)
        for h in range(2):
            mk = []
            for k in range(16):
                mk += [h * 16 + k, 32 + h * 16 + k]
            z = b.shuffle_vector(a[0], a[1], ir.Constant(V32I, mk))
            b.store(
                z, b.gep(b.inttoptr(args[2], V32H.as_pointer()), [ir.Constant(i64, h)]), align=4
            )
        return ctx.get_dummy_value()

    return types.void(*([types.intp] * 3)), cg


@intrinsic
def pf(t, p):
    "prefetch one line into L2 (portable llvm.prefetch)"

    def cg(ctx, b, sig, args):
        i8p = ir.IntType(8).as_pointer()
        f = fnof(b, "llvm.prefetch.p0", ir.VoidType(), [i8p, i32, i32, i32])
        b.call(
            f,
            [
                b.inttoptr(args[0], i8p),
                ir.Constant(i32, 0),
                ir.Constant(i32, 2),
                ir.Constant(i32, 1),
            ],
        )
        return ctx.get_dummy_value()

    return types.void(types.intp), cg


@intrinsic
def vstnt(t, p, off, v):
    "non-temporal 64-byte aligned store"

    def cg(ctx, b, sig, args):
        st = b.store(args[2], b.bitcast(ptr(b, args[0], args[1], f32), V16F.as_pointer()), align=64)
        st.set_metadata("nontemporal", b.module.add_metadata([ir.Constant(i32, 1)]))
        return ctx.get_dummy_value()

    return types.void(types.intp, types.intp, v16), cg
