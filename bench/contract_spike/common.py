# ruff: noqa
# Throwaway: kernels that are the same in every precision, copied from a dense prototype to measure the contract's cost, and kept only as
# long as the measurement is. The real backend (plugins/splitbit_numba_backend) replaces it. Kernels
# read raw addresses: a wrong index is a crash.
import numpy as np
from numba import njit, prange
from simd import *

F = np.float32
OPT = dict(nogil=True, error_model="numpy", cache=True)
PAR = dict(parallel=True, nogil=True, error_model="numpy", cache=True)
Z = F(0.0)


@njit(cache=True)
def address(a):
    return a.ctypes.data


@njit(**OPT)
def gelu_parts(x):
    "P, q with gelu(x) = x P and gelu'(x) = P + x q (tanh form: P = sigmoid(2u)), one exp and one division"
    u2 = x * (vs(F(1.5957691216057308)) + vs(F(0.07135481282)) * x * x)
    P = vs(F(1.0)) / (vs(F(1.0)) + vexp(vs(Z) - u2))
    return P, P * (vs(F(1.0)) - P) * (vs(F(1.5957691216057308)) + vs(F(0.21406443846)) * x * x)


# ---------- precision independent
@njit(**OPT)
def embed_fwd_part(tid, nth, idx, wte, wpe, x, M, T, D):
    for r in range(M * tid // nth, M * (tid + 1) // nth):
        a = wte + 4 * D * np.intp(ldi(idx, r))
        b = wpe + 4 * D * (r % T)
        o = x + 4 * D * r
        for c in range(0, D, 16):
            vst(o, c, vld(a, c) + vld(b, c))


@njit(**PAR)
def embed_fwd(nth, idx, wte, wpe, x, M, T, D):
    for t in prange(nth):
        embed_fwd_part(t, nth, idx, wte, wpe, x, M, T, D)


@njit(**OPT)
def embed_bwd_part(tid, nth, idx, dx, dwte, dwpe, M, T, D):
    "scatter-add; threads own disjoint columns => deterministic"
    nb = D // 16
    c0 = nb * tid // nth * 16
    c1 = nb * (tid + 1) // nth * 16
    for r in range(M):
        o = dwte + 4 * D * np.intp(ldi(idx, r))
        i = dx + 4 * D * r
        w = dwpe + 4 * D * (r % T)
        for c in range(c0, c1, 16):
            g = vld(i, c)
            vst(o, c, vld(o, c) + g)
            if r < T:
                vst(w, c, g)
            else:
                vst(w, c, vld(w, c) + g)


@njit(**PAR)
def embed_bwd(nth, idx, dx, dwte, dwpe, M, T, D):
    for t in prange(nth):
        embed_bwd_part(t, nth, idx, dx, dwte, dwpe, M, T, D)


@njit(**OPT)
def sumsq_part(g, i0, i1):
    tot = 0.0
    i = i0
    while i < i1:
        e = min(i1, i + 4096)
        a = vs(Z)
        b = vs(Z)
        c = vs(Z)
        d = vs(Z)
        k = i
        while k + 64 <= e:
            x = vld(g, k)
            y = vld(g, k + 16)
            z = vld(g, k + 32)
            w = vld(g, k + 48)
            a = a + x * x
            b = b + y * y
            c = c + z * z
            d = d + w * w
            k += 64
        while k < e:
            x = ldf(g, k)
            tot += x * x
            k += 1
        tot += np.float64(vsum(a + b + (c + d)))
        i = e
    return tot


@njit(**OPT)
def adamw_part(p, g, m, v, pb, i0, i1, s, lr, b1, b2, eps, wd, ibc1, isbc2, bf):
    vS = vs(s)
    vb1 = vs(b1)
    vb2 = vs(b2)
    v1 = vs(F(1.0) - b1)
    v2 = vs(F(1.0) - b2)
    ve = vs(eps)
    vk = vs(lr * ibc1)
    vd = vs(F(1.0) - lr * wd)
    vq = vs(isbc2)
    for i in range(i0, i1, 16):
        gg = vld(g, i) * vS
        mm = vb1 * vld(m, i) + v1 * gg
        vv = vb2 * vld(v, i) + v2 * (gg * gg)
        vst(m, i, mm)
        vst(v, i, vv)
        pp = vld(p, i) * vd - vk * mm / (vsqrt(vv) * vq + ve)
        vst(p, i, pp)
        if bf:
            vstb(pb, i, pp)


@njit(**PAR)
def clip_adamw(nth, p, g, m, v, pb, n, nd, clip, lr, b1, b2, eps, wd, step, bf, part):
    nb = n // 64
    for t in prange(64):
        part[t] = sumsq_part(g, nb * t // 64 * 64, nb * (t + 1) // 64 * 64)
    nrm = np.sqrt(part.sum())
    s = F(min(1.0, clip / nrm))
    ib = F(1.0 / (1.0 - b1**step))
    iq = F(1.0 / np.sqrt(1.0 - b2**step))
    na = nd // 64
    for t in prange(nth):
        adamw_part(
            p,
            g,
            m,
            v,
            pb,
            na * t // nth * 64,
            na * (t + 1) // nth * 64,
            s,
            F(lr),
            F(b1),
            F(b2),
            F(eps),
            F(wd),
            ib,
            iq,
            bf,
        )
        nr = nb - na
        adamw_part(
            p,
            g,
            m,
            v,
            pb,
            (na + nr * t // nth) * 64,
            (na + nr * (t + 1) // nth) * 64,
            s,
            F(lr),
            F(b1),
            F(b2),
            F(eps),
            Z,
            ib,
            iq,
            bf,
        )
    return nrm


@njit(**OPT)
def gather_part(tid, nth, idx, tab, x, N, V, D):
    bad = 0
    for r in range(N * tid // nth, N * (tid + 1) // nth):
        i = np.intp(ldi(idx, r))
        if i < 0 or i >= V:
            bad += 1
            continue
        a = tab + 4 * D * i
        o = x + 4 * D * r
        for c in range(0, D, 16):
            vst(o, c, vld(a, c))
    return bad


@njit(**PAR)
def gather(nth, idx, tab, x, N, V, D):
    bad = 0
    for t in prange(nth):
        bad += gather_part(t, nth, idx, tab, x, N, V, D)
    return bad


@njit(**OPT)
def scatter_part(tid, nth, idx, dx, tab, N, V, D, acc):
    nb = D // 16
    c0 = nb * tid // nth * 16
    c1 = nb * (tid + 1) // nth * 16
    if not acc:
        for r in range(V):
            for c in range(c0, c1, 16):
                vst(tab + 4 * D * r, c, vs(Z))
    for r in range(N):
        o = tab + 4 * D * np.intp(ldi(idx, r))
        i = dx + 4 * D * r
        for c in range(c0, c1, 16):
            vst(o, c, vld(o, c) + vld(i, c))


@njit(**PAR)
def scatter(nth, idx, dx, tab, N, V, D, acc):
    for t in prange(nth):
        scatter_part(t, nth, idx, dx, tab, N, V, D, acc)


@njit(**OPT)
def add_part(a, b, o, i0, i1):
    for i in range(i0, i1, 16):
        vst(o, i, vld(a, i) + vld(b, i))


@njit(**PAR)
def add(nth, a, b, o, n):
    nb = n // 16
    for t in prange(nth):
        add_part(a, b, o, nb * t // nth * 16, nb * (t + 1) // nth * 16)


@njit(**PAR)
def sumsq(nth, g, n):
    nb = n // 16
    part = np.zeros(64)
    for t in prange(64):
        part[t] = sumsq_part(g, nb * t // 64 * 16, nb * (t + 1) // 64 * 16)
    return part.sum()


@njit(**PAR)
def adamw(nth, p, g, m, v, pb, n, nd, s, lr, b1, b2, eps, wd, step, bf):
    ib = F(1.0 / (1.0 - b1**step))
    iq = F(1.0 / np.sqrt(1.0 - b2**step))
    nb = n // 16
    na = nd // 16
    for t in prange(nth):
        adamw_part(
            p,
            g,
            m,
            v,
            pb,
            na * t // nth * 16,
            na * (t + 1) // nth * 16,
            F(s),
            F(lr),
            F(b1),
            F(b2),
            F(eps),
            F(wd),
            ib,
            iq,
            bf,
        )
        nr = nb - na
        adamw_part(
            p,
            g,
            m,
            v,
            pb,
            (na + nr * t // nth) * 16,
            (na + nr * (t + 1) // nth) * 16,
            F(s),
            F(lr),
            F(b1),
            F(b2),
            F(eps),
            Z,
            ib,
            iq,
            bf,
        )


def load(kind):
    """Return the kernels of one precision. Numba names what it caches by the file, not the module: each
    precision needs a file of its own, a copy beside the compiled code."""
    import importlib.util, os, sys
    from pathlib import Path

    name = "kernels_" + kind
    if name not in sys.modules:
        text = Path(__file__).with_name("kernels.py").read_text("utf-8")
        path = Path(os.environ["NUMBA_CACHE_DIR"]) / (name + ".py")
        if not path.exists() or path.read_text("utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
