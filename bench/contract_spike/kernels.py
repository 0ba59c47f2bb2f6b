# ruff: noqa
# Throwaway: kernels of one precision, bf16 or f32 by the name it is loaded under (see `load` in common), copied from a dense prototype to measure the contract's cost, and kept only as
# long as the measurement is. The real backend (plugins/splitbit_numba_backend) replaces it. Kernels
# read raw addresses: a wrong index is a crash.
from common import *

kind = __name__.rsplit("_", 1)[1]
EB = 2 if kind == "bf16" else 4  # bytes per operand element
KP = 4 // EB  # elements per unit
micro = make_micro(kind)
xld, xst, xlds, xsts = (vldb, vstb, ldb, stb) if kind == "bf16" else (vld, vst, ldf, stf)


@njit(**OPT)
def packT(src, ld, n, ku, dst):
    "src rows n (K contiguous, ld units) -> panel [ku][32]; rows beyond n repeat"
    for h in range(2):
        r = h * 16
        if n >= r + 16:
            kf = ku // 16 * 16
            for k in range(0, kf, 16):
                transpose16(src + 4 * (r * ld + k), ld, dst + 4 * (k * 32 + r), 32)
            for k in range(kf, ku):
                for m in range(16):
                    sti(dst, k * 32 + r + m, ldi(src, (r + m) * ld + k))
        else:
            for m in range(16):
                rr = min(r + m, n - 1)
                for k in range(ku):
                    sti(dst, k * 32 + r + m, ldi(src, rr * ld + k))


@njit(**OPT)
def packN(src, ld, n, k, dst, zbuf):
    "src k rows, N contiguous (ld elements) -> panel [ku][32] ; columns beyond n are zero; zbuf: 128 zero bytes"
    ku = (k + KP - 1) // KP
    if n >= 32:
        for q in range(ku):
            s0 = src + EB * (q * KP * ld)
            if KP == 2:
                s1 = s0 + EB * ld
                if q * 2 + 1 >= k:
                    s1 = zbuf
                zip32(s0, s1, dst + 128 * q)
            else:
                vst(dst + 128 * q, 0, vld(s0, 0))
                vst(dst + 128 * q, 16, vld(s0, 16))
    else:
        for q in range(ku):
            for c in range(32):
                for h in range(KP):
                    kk = q * KP + h
                    v = F(0.0)
                    if c < n and kk < k:
                        v = xlds(src, kk * ld + c)
                    xsts(dst, (q * 32 + c) * KP + h, v)


@njit(**OPT)
def epilogue(epi, S, r0, nr, c0, nc, C1, ld1, C2, ld2, bias):
    for r in range(nr):
        s = S + 128 * r
        row = r0 + r
        if nc == 32:
            for h in range(0, 32, 16):
                v = vld(s, h)
                c = c0 + h
                if epi == 0:
                    vst(C1, row * ld1 + c, v)
                elif epi == 6:
                    vstnt(C1, row * ld1 + c, v)
                elif epi == 1:
                    vst(C1, row * ld1 + c, v + vld(C1, row * ld1 + c))
                else:
                    if bias != 0:
                        v = v + vld(bias, c)
                    if epi == 2:
                        xst(C1, row * ld1 + c, v)
                    elif epi == 3:
                        xst(C2, row * ld2 + c, v)
                        P, q = gelu_parts(v)
                        xst(C1, row * ld1 + c, v * P)
                    elif epi == 4:
                        vst(C1, row * ld1 + c, v + vld(C2, row * ld2 + c))
                    elif epi == 5:
                        x = xld(C2, row * ld2 + c)
                        P, q = gelu_parts(x)
                        xst(C1, row * ld1 + c, v * (P + x * q))
        else:
            for c in range(nc):
                v = ldf(s, c)
                cc = c0 + c
                if epi == 0 or epi == 6:
                    stf(C1, row * ld1 + cc, v)
                elif epi == 1:
                    stf(C1, row * ld1 + cc, v + ldf(C1, row * ld1 + cc))
                else:
                    if bias != 0:
                        v = v + ldf(bias, cc)
                    if epi == 2:
                        xsts(C1, row * ld1 + cc, v)
                    elif epi == 4:
                        stf(C1, row * ld1 + cc, v + ldf(C2, row * ld2 + cc))


@njit(**OPT)
def gemm_part(
    tid,
    nth,
    amode,
    A,
    lda,
    bmode,
    B,
    ldb,
    M,
    N,
    K,
    epi,
    C1,
    ld1,
    C2,
    ld2,
    bias,
    ws,
    wsz,
    KC,
    ABYTES,
):
    """C[M,N]=sum_k A[m,k]B[k,n]. amode 0: A (M,K) row-major direct; 1: A given as (K,M), packed.
    bmode 0: B given as (N,K) ; 1: B given as (K,N). ws: per-thread workspace (wsz bytes each)."""
    usepf = ABYTES & 1
    W0 = ws + tid * wsz
    zb = W0
    S = W0 + 128
    bp = S + 64 * 128
    np_ = (N + 31) // 32
    m0 = 0
    m1 = M
    j0 = 0
    j1 = np_
    if amode == 0 and (np_ % nth == 0 or np_ >= 8 * nth):
        j0 = np_ * tid // nth
        j1 = np_ * (tid + 1) // nth
    else:
        mu = (M + 31) // 32
        m0 = mu * tid // nth * 32
        m1 = min(M, mu * (tid + 1) // nth * 32)
    KBu = 1 << 30
    if epi <= 1 or epi == 6:
        KBu = 2048
    K2 = (K + KP - 1) // KP
    apk = bp + 128 * min(K2, KBu)
    k00 = 0
    while k00 < K2:
        kb = min(KBu, K2 - k00)
        ke = min(K, (k00 + kb) * KP) - k00 * KP
        MB = max(64, min(m1 - m0, ABYTES // (kb * 4)) // 64 * 64)
        ep = epi
        if k00 > 0:
            ep = 1
        for ib in range(m0, m1, MB):
            ie = min(m1, ib + MB)
            if amode == 1:
                for p in range((ie - ib + 31) // 32):
                    packN(
                        A + EB * (k00 * KP * lda + ib + p * 32),
                        lda,
                        min(32, lda - ib - p * 32),
                        ke,
                        apk + 128 * p * kb,
                        zb,
                    )
            for j in range(j0, j1):
                nc = min(32, N - j * 32)
                if bmode == 0:
                    packT(B + EB * (j * 32 * ldb + k00 * KP), ldb // KP, nc, kb, bp)
                else:
                    packN(
                        B + EB * (k00 * KP * ldb + j * 32), ldb, min(32, ldb - j * 32), ke, bp, zb
                    )
                nmic = max(1, (ie - ib) // 8)
                if bmode == 0:
                    rl = (kb * 4 + 63) // 64
                    pfn = (32 * rl) // nmic + 1
                    pfl = min(32, N - (j + 1) * 32) * rl
                else:
                    rl = 1
                    pfn = ke // nmic + 1
                    pfl = ke
                if j + 1 >= j1 or usepf == 0:
                    pfl = 0
                pfi = 0
                pcol = 0
                pbase = B + EB * ((j + 1) * 32 * ldb + k00 * KP)
                if bmode == 1:
                    pbase = B + EB * (k00 * KP * ldb + (j + 1) * 32)
                for ic in range(ib, ie, 64):
                    ice = min(ie, ic + 64)
                    for k0 in range(0, kb, KC):
                        kc = min(KC, kb - k0)
                        for i in range(ic, ice, 8):
                            if k0 == 0:
                                pe = min(pfl, pfi + pfn)
                                while pfi < pe:
                                    pf(pbase + 64 * pcol)
                                    pfi += 1
                                    pcol += 1
                                    if pcol == rl:
                                        pcol = 0
                                        pbase += EB * ldb
                            if amode == 0:
                                micro(
                                    A + EB * i * lda + 4 * (k00 + k0),
                                    lda // KP,
                                    1,
                                    min(8, ice - i),
                                    bp + 128 * k0,
                                    S + 128 * (i - ic),
                                    32,
                                    kc,
                                    k0 > 0,
                                )
                            else:
                                q = i - ib
                                micro(
                                    apk + 128 * (q // 32 * kb + k0) + 4 * (q % 32),
                                    1,
                                    32,
                                    8,
                                    bp + 128 * k0,
                                    S + 128 * (i - ic),
                                    32,
                                    kc,
                                    k0 > 0,
                                )
                    epilogue(ep, S, ic, ice - ic, j * 32, nc, C1, ld1, C2, ld2, bias)
        k00 += kb


@njit(parallel=True, **OPT)
def gemm(
    nth, amode, A, lda, bmode, B, ldb, M, N, K, epi, C1, ld1, C2, ld2, bias, ws, wsz, KC, ABYTES
):
    for t in prange(nth):
        gemm_part(
            t,
            nth,
            amode,
            A,
            lda,
            bmode,
            B,
            ldb,
            M,
            N,
            K,
            epi,
            C1,
            ld1,
            C2,
            ld2,
            bias,
            ws,
            wsz,
            KC,
            ABYTES,
        )


@njit(**OPT)
def cvt_part(src, dst, i0, i1):
    for i in range(i0, i1, 16):
        xst(dst, i, vld(src, i))


@njit(**PAR)
def cvt(nth, src, dst, n):
    nb = n // 16
    for t in prange(nth):
        cvt_part(src, dst, nb * t // nth * 16, nb * (t + 1) // nth * 16)


@njit(**OPT)
def ln_fwd_part(tid, nth, x, g, b, o, mean, rstd, M, D):
    iD = F(1.0) / F(D)
    for r in range(M * tid // nth, M * (tid + 1) // nth):
        xr = x + 4 * D * r
        a = vs(Z)
        a2 = vs(Z)
        for c in range(0, D, 16):
            a = a + vld(xr, c)
        mu = vsum(a) * iD
        vm = vs(mu)
        for c in range(0, D, 16):
            d = vld(xr, c) - vm
            a2 = a2 + d * d
        rs = F(1.0) / F(np.sqrt(vsum(a2) * iD + F(1e-5)))
        vr = vs(rs)
        stf(mean, r, mu)
        stf(rstd, r, rs)
        for c in range(0, D, 16):
            y = (vld(xr, c) - vm) * vr * vld(g, c)
            if b != 0:
                y = y + vld(b, c)
            xst(o, r * D + c, y)


@njit(**PAR)
def ln_fwd(nth, x, g, b, o, mean, rstd, M, D):
    for t in prange(nth):
        ln_fwd_part(t, nth, x, g, b, o, mean, rstd, M, D)


@njit(**OPT)
def ln_bwd_part(tid, nth, dy, x, g, mean, rstd, res, dres, dresb, M, D, ws):
    dg = ws + tid * (8 * D)
    db = dg + 4 * D
    iD = F(1.0) / F(D)
    for c in range(0, 2 * D, 16):
        vst(dg, c, vs(Z))
    for r in range(M * tid // nth, M * (tid + 1) // nth):
        xr = x + 4 * D * r
        yr = dy + 4 * D * r
        o = dres + 4 * D * r
        vm = vs(ldf(mean, r))
        rs = ldf(rstd, r)
        vr = vs(rs)
        s1 = vs(Z)
        s2 = vs(Z)
        for c in range(0, D, 16):
            h = (vld(xr, c) - vm) * vr
            d = vld(yr, c)
            w = d * vld(g, c)
            s1 = s1 + w
            s2 = s2 + w * h
            vst(dg, c, vld(dg, c) + d * h)
            vst(db, c, vld(db, c) + d)
        m1 = vs(vsum(s1) * iD)
        m2 = vs(vsum(s2) * iD)
        for c in range(0, D, 16):
            h = (vld(xr, c) - vm) * vr
            w = vld(yr, c) * vld(g, c)
            z = (w - m1 - h * m2) * vr
            if res != 0:
                z = z + vld(res + 4 * D * r, c)
            vst(o, c, z)
            if dresb != 0:
                xst(dresb, r * D + c, z)


@njit(**PAR)
def ln_bwd(nth, dy, x, g, mean, rstd, res, dres, dresb, M, D, dg, db, accg, ws):
    for t in prange(nth):
        for q in range(8 * t // nth, 8 * (t + 1) // nth):
            ln_bwd_part(q, 8, dy, x, g, mean, rstd, res, dres, dresb, M, D, ws)
    for c in range(0, D, 16):
        a = vs(Z)
        b = vs(Z)
        for t in range(8):
            a = a + vld(ws + t * 8 * D, c)
            b = b + vld(ws + t * 8 * D + 4 * D, c)
        if accg:
            a = a + vld(dg, c)
        vst(dg, c, a)
        if db != 0:
            if accg:
                b = b + vld(db, c)
            vst(db, c, b)


@njit(**OPT)
def ce_part(tid, nth, lg, ldl, tgt, dl, ldd, loss, M, V, wgt):
    bad = 0
    for r in range(M * tid // nth, M * (tid + 1) // nth):
        t = np.intp(ldi(tgt, r))
        if t < 0 or t >= V:
            bad += 1
            continue
        x = lg + 4 * ldl * r
        o = dl + EB * ldd * r
        vf = V // 16 * 16
        NEG = F(-1e30)
        mx = vs(NEG)
        for c in range(0, vf, 16):
            mx = vmax(mx, vld(x, c))
        if vf < V:
            mx = vmax(mx, vfirst(vld(x, vf), V - vf, NEG))
        m = vhmax(mx)
        vm = vs(m)
        s = vs(Z)
        lt = ldf(x, t)
        for c in range(0, vf, 16):
            e = vexp(vld(x, c) - vm)
            s = s + e
            vst(x, c, e)
        if vf < V:
            e = vfirst(vexp(vld(x, vf) - vm), V - vf, Z)
            s = s + e
            vst(x, vf, e)
        tot = vsum(s)
        k = vs(ldf(wgt, r) / tot)
        stf(loss, r, F(np.log(tot)) + m - lt)
        stf(x, t, ldf(x, t) - tot)
        for c in range(0, V, 16):
            xst(o, c, vld(x, c) * k)
        for c in range((V + 15) // 16 * 16, ldd, 16):
            xst(o, c, vs(Z))
    return bad


@njit(**PAR)
def ce(nth, lg, ldl, tgt, dl, ldd, loss, M, V, wgt):
    bad = 0
    for t in prange(nth):
        bad += ce_part(t, nth, lg, ldl, tgt, dl, ldd, loss, M, V, wgt)
    return bad


@njit(**OPT)
def attn_fwd_part(tid, nth, qkv, y, lse, starts, B, H, hd, ws, wsz):
    D = H * hd
    ld = 3 * D
    hu = hd // KP
    N = np.intp(ldi(starts, B))
    scale = F(1.0) / F(np.sqrt(F(hd)))
    for bh in range(B * H * tid // nth, B * H * (tid + 1) // nth):
        b = bh // H
        h = bh % H
        s0 = np.intp(ldi(starts, b))
        T = np.intp(ldi(starts, b + 1)) - s0
        NP = (T + 31) // 32
        TU = (T + KP - 1) // KP
        TP = NP * 32
        PLD = TP + 32
        W0 = ws + tid * wsz
        zb = W0
        kp = W0 + 128
        vp = kp + 128 * hu * NP
        S = vp + 128 * TU * (hd // 32)
        P = S + 4 * 32 * PLD
        O = P + EB * 32 * PLD
        q0 = qkv + EB * (s0 * ld + h * hd)
        k0 = q0 + EB * D
        v0 = k0 + EB * D
        for p in range(NP):
            packT(k0 + EB * p * 32 * ld, ld // KP, min(32, T - p * 32), hu, kp + 128 * hu * p)
        for hp in range(hd // 32):
            packN(v0 + EB * hp * 32, ld, 32, T, vp + 128 * TU * hp, zb)
        for rb in range(0, T, 32):
            nr = min(32, T - rb)
            nk = min(T, rb + 32)
            np_ = (nk + 31) // 32
            for p in range(np_):
                for i in range(0, nr, 8):
                    micro(
                        q0 + EB * (rb + i) * ld,
                        ld // KP,
                        1,
                        min(8, nr - i),
                        kp + 128 * hu * p,
                        S + 4 * (i * PLD + p * 32),
                        PLD,
                        hu,
                        False,
                    )
            for r in range(nr):
                n = rb + r + 1
                x = S + 4 * r * PLD
                o = P + EB * r * PLD
                nf = n // 16 * 16
                mx = vs(F(-1e30))
                s = vs(Z)
                for c in range(0, nf, 16):
                    mx = vmax(mx, vld(x, c))
                if nf < n:
                    mx = vmax(mx, vfirst(vld(x, nf), n - nf, F(-1e30)))
                m = vhmax(mx) * scale
                vm = vs(m)
                sc = vs(scale)
                for c in range(0, nf, 16):
                    e = vexp(vld(x, c) * sc - vm)
                    s = s + e
                    xst(o, c, e)
                cc = nf
                if nf < n:
                    e = vfirst(vexp(vld(x, nf) * sc - vm), n - nf, Z)
                    s = s + e
                    xst(o, nf, e)
                    cc += 16
                for c in range(cc, np_ * 32, 16):
                    xst(o, c, vs(Z))
                tot = vsum(s)
                stf(lse, h * N + s0 + rb + r, m + F(np.log(tot)))
                stf(O, 32 * hd + r, F(1.0) / tot)
            ku = (nk + KP - 1) // KP
            for hp in range(hd // 32):
                for i in range(0, nr, 8):
                    micro(
                        P + EB * i * PLD,
                        PLD // KP,
                        1,
                        8,
                        vp + 128 * TU * hp,
                        O + 4 * (i * hd + hp * 32),
                        hd,
                        ku,
                        False,
                    )
            for r in range(nr):
                iv = vs(ldf(O, 32 * hd + r))
                for c in range(0, hd, 16):
                    xst(y, (s0 + rb + r) * D + h * hd + c, vld(O, r * hd + c) * iv)


@njit(**PAR)
def attn_fwd(nth, qkv, y, lse, starts, B, H, hd, ws, wsz):
    for t in prange(nth):
        attn_fwd_part(t, nth, qkv, y, lse, starts, B, H, hd, ws, wsz)


@njit(**OPT)
def attn_bwd_part(tid, nth, qkv, y, dy, lse, dqkv, starts, B, H, hd, ws, wsz):
    D = H * hd
    ld = 3 * D
    hu = hd // KP
    N = np.intp(ldi(starts, B))
    scale = F(1.0) / F(np.sqrt(F(hd)))
    HP = hd // 32
    for bh in range(B * H * tid // nth, B * H * (tid + 1) // nth):
        b = bh // H
        h = bh % H
        s0 = np.intp(ldi(starts, b))
        T = np.intp(ldi(starts, b + 1)) - s0
        NP = (T + 31) // 32
        TU = (T + KP - 1) // KP
        TUP = NP * 32 // KP
        TP = NP * 32
        PLD = TP + 32
        W0 = ws + tid * wsz
        zb = W0
        kt = W0 + 128
        vt = kt + 128 * hu * NP
        kn = vt + 128 * hu * NP
        qn = kn + 128 * TU * HP
        on = qn + 128 * TU * HP
        S = on + 128 * TU * HP
        G = S + 4 * 32 * PLD
        P = G + 4 * 32 * PLD
        E = P + EB * 32 * PLD
        PT = E + EB * 32 * PLD
        ET = PT + 128 * TUP * NP
        O = ET + 128 * TUP * NP
        q0 = qkv + EB * (s0 * ld + h * hd)
        k0 = q0 + EB * D
        v0 = k0 + EB * D
        o0 = EB * (s0 * D + h * hd)
        dq0 = dqkv + EB * (s0 * ld + h * hd)
        for p in range(NP):
            packT(k0 + EB * p * 32 * ld, ld // KP, min(32, T - p * 32), hu, kt + 128 * hu * p)
            packT(v0 + EB * p * 32 * ld, ld // KP, min(32, T - p * 32), hu, vt + 128 * hu * p)
        for hp in range(HP):
            packN(k0 + EB * hp * 32, ld, 32, T, kn + 128 * TU * hp, zb)
            packN(q0 + EB * hp * 32, ld, 32, T, qn + 128 * TU * hp, zb)
            packN(dy + o0 + EB * hp * 32, D, 32, T, on + 128 * TU * hp, zb)
        for rb in range(0, T, 32):
            nr = min(32, T - rb)
            nk = min(T, rb + 32)
            np_ = (nk + 31) // 32
            for p in range(np_):
                for i in range(0, nr, 8):
                    micro(
                        q0 + EB * (rb + i) * ld,
                        ld // KP,
                        1,
                        min(8, nr - i),
                        kt + 128 * hu * p,
                        S + 4 * (i * PLD + p * 32),
                        PLD,
                        hu,
                        False,
                    )
                    micro(
                        dy + o0 + EB * (rb + i) * D,
                        D // KP,
                        1,
                        min(8, nr - i),
                        vt + 128 * hu * p,
                        G + 4 * (i * PLD + p * 32),
                        PLD,
                        hu,
                        False,
                    )
            for r in range(32):
                x = S + 4 * r * PLD
                g = G + 4 * r * PLD
                o = P + EB * r * PLD
                u = E + EB * r * PLD
                n = 0
                if r < nr:
                    n = rb + r + 1
                    s = vs(Z)
                    k = (rb + r) * D
                    for c in range(0, hd, 16):
                        s = s + xld(y + o0, k + c) * xld(dy + o0, k + c)
                    di = vs(vsum(s))
                    vl = vs(ldf(lse, h * N + s0 + rb + r))
                    sc = vs(scale)
                    for c in range(0, n, 16):
                        e = vexp(vld(x, c) * sc - vl)
                        if c + 16 > n:
                            e = vfirst(e, n - c, Z)
                        xst(o, c, e)
                        xst(u, c, e * (vld(g, c) - di) * sc)
                for c in range((n + 15) // 16 * 16, np_ * 32, 16):
                    xst(o, c, vs(Z))
                    xst(u, c, vs(Z))
            for p in range(np_):
                packN(P + EB * p * 32, PLD, 32, 32, PT + 128 * (TUP * p + rb // KP), zb)
                packN(E + EB * p * 32, PLD, 32, 32, ET + 128 * (TUP * p + rb // KP), zb)
            ku = (nk + KP - 1) // KP
            for hp in range(HP):
                for i in range(0, nr, 8):
                    micro(
                        E + EB * i * PLD,
                        PLD // KP,
                        1,
                        8,
                        kn + 128 * TU * hp,
                        O + 4 * (i * hd + hp * 32),
                        hd,
                        ku,
                        False,
                    )
            for r in range(nr):
                for c in range(0, hd, 16):
                    xst(dq0, (rb + r) * ld + c, vld(O, r * hd + c))
        for p in range(NP):
            nr = min(32, T - p * 32)
            qs = p * 32 // KP
            for which in range(2):
                at = ET
                bn = qn
                dst = dq0 + EB * D
                if which == 1:
                    at = PT
                    bn = on
                    dst = dq0 + 2 * EB * D
                for hp in range(HP):
                    for i in range(0, nr, 8):
                        micro(
                            at + 128 * (TUP * p + qs) + 4 * i,
                            1,
                            32,
                            8,
                            bn + 128 * (TU * hp + qs),
                            O + 4 * (i * hd + hp * 32),
                            hd,
                            TU - qs,
                            False,
                        )
                for r in range(nr):
                    for c in range(0, hd, 16):
                        xst(dst, (p * 32 + r) * ld + c, vld(O, r * hd + c))


@njit(**PAR)
def attn_bwd(nth, qkv, y, dy, lse, dqkv, starts, B, H, hd, ws, wsz):
    for t in prange(nth):
        attn_bwd_part(t, nth, qkv, y, dy, lse, dqkv, starts, B, H, hd, ws, wsz)


# ---------- whole ops in one compiled call: what is saved is the way from Python into each kernel
@njit(**OPT)
def mul(nth, am, A, lda, bm, B, ldb, M, N, K, epi, C1, ld1, C2, ld2, ws, wsz):
    gemm(
        nth, am, A, lda, bm, B, ldb, M, N, K, epi, C1, ld1, C2, ld2, 0, ws, wsz, 192, (1 << 20) + 1
    )


@njit(**OPT)
def attention_whole(
    nth, n, c, H, S, x, gain, wqkv, wo, starts, out, xn, qkv, y, mean, rstd, lse, ws, wsz
):
    ln_fwd(nth, x, gain, 0, xn, mean, rstd, n, c)
    mul(nth, 0, xn, c, 0, wqkv, c, n, 3 * c, c, 2, qkv, 3 * c, 0, 0, ws, wsz)
    attn_fwd(nth, qkv, y, lse, starts, S, H, c // H, ws, wsz)
    mul(nth, 0, y, c, 0, wo, c, n, c, c, 4, out, c, x, c, ws, wsz)


@njit(**OPT)
def attention_whole_backward(
    nth,
    n,
    c,
    H,
    S,
    x,
    gain,
    wqkv,
    wo,
    starts,
    dout,
    d,
    dx,
    twin,
    xn,
    qkv,
    y,
    mean,
    rstd,
    lse,
    dy,
    dqkv,
    dxn,
    gqkv,
    aqkv,
    go,
    ao,
    gg,
    ag,
    ws,
    wsz,
    ws2,
):
    mul(nth, 1, d, c, 1, y, c, c, c, n, ao, go, c, 0, 0, ws, wsz)
    mul(nth, 0, d, c, 1, wo, c, n, c, c, 2, dy, c, 0, 0, ws, wsz)
    attn_bwd(nth, qkv, y, dy, lse, dqkv, starts, S, H, c // H, ws, wsz)
    mul(nth, 1, dqkv, 3 * c, 1, xn, c, 3 * c, c, n, aqkv, gqkv, c, 0, 0, ws, wsz)
    mul(nth, 0, dqkv, 3 * c, 1, wqkv, c, n, c, 3 * c, 0, dxn, c, 0, 0, ws, wsz)
    ln_bwd(nth, dxn, x, gain, mean, rstd, dout, dx, twin, n, c, gg, 0, ag, ws2)


@njit(**OPT)
def mlp_whole(nth, n, c, f, x, gain, up, down, out, xn, pre, act, mean, rstd, ws, wsz):
    ln_fwd(nth, x, gain, 0, xn, mean, rstd, n, c)
    mul(nth, 0, xn, c, 0, up, c, n, f, c, 3, act, f, pre, f, ws, wsz)
    mul(nth, 0, act, f, 0, down, f, n, c, f, 4, out, c, x, c, ws, wsz)


@njit(**OPT)
def mlp_whole_backward(
    nth,
    n,
    c,
    f,
    x,
    gain,
    up,
    down,
    dout,
    d,
    dx,
    twin,
    xn,
    pre,
    act,
    mean,
    rstd,
    dpre,
    dxn,
    gu,
    au,
    gd,
    ad,
    gg,
    ag,
    ws,
    wsz,
    ws2,
):
    mul(nth, 1, d, c, 1, act, f, c, f, n, ad, gd, f, 0, 0, ws, wsz)
    mul(nth, 0, d, c, 1, down, f, n, f, c, 5, dpre, f, pre, f, ws, wsz)
    mul(nth, 1, dpre, f, 1, xn, c, f, c, n, au, gu, c, 0, 0, ws, wsz)
    mul(nth, 0, dpre, f, 1, up, c, n, c, f, 0, dxn, c, 0, 0, ws, wsz)
    ln_bwd(nth, dxn, x, gain, mean, rstd, dout, dx, twin, n, c, gg, 0, ag, ws2)
