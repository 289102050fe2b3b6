"""Triton kernels in the ways of libraries that train and serve models."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .triton_kernels import allocator, f16, f32

R = np.random.default_rng(23)


@triton.jit
def attend_backward(q, k, v, do, lse, delta, dq, dk, dv, n, scale, D: tl.constexpr, B: tl.constexpr):
    """Gradients of attention: a program has a tile of keys, and adds its part of the queries' gradients by atomics."""
    j, i, d = tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, B), tl.arange(0, D)
    keys = tl.load(k + j[:, None] * D + d[None, :])
    values = tl.load(v + j[:, None] * D + d[None, :])
    gk = tl.zeros([B, D], tl.float32)
    gv = tl.zeros([B, D], tl.float32)
    for at in range(0, n, B):
        here = (at + i)[:, None] * D + d[None, :]
        queries, grads = tl.load(q + here), tl.load(do + here)
        p = tl.exp(tl.dot(keys, tl.trans(queries)) * scale - tl.load(lse + at + i)[None, :])
        gv += tl.dot(p.to(tl.float16), grads)
        ds = p * (tl.dot(values, tl.trans(grads)) - tl.load(delta + at + i)[None, :]) * scale
        gk += tl.dot(ds.to(tl.float16), queries)
        tl.atomic_add(dq + here, tl.dot(tl.trans(ds).to(tl.float16), keys), sem="relaxed")
    tl.store(dk + j[:, None] * D + d[None, :], gk)
    tl.store(dv + j[:, None] * D + d[None, :], gv)


def attention_gradients() -> Any:
    n, d = 64, 32
    q, k, v, do = (f16(n, d) for _ in range(4))
    Q, K, V, G = (x.astype(float) for x in (q, k, v, do))
    s = np.exp(Q @ K.T / 8)
    p = s / s.sum(1, keepdims=True)
    delta = (p @ V * G).sum(1).astype(np.float32)
    lse = np.log(s.sum(1)).astype(np.float32)
    dq, dk, dv = (np.zeros((n, d), np.float32) for _ in range(3))
    attend_backward[(2,)](q, k, v, do, lse, delta, dq, dk, dv, n, 0.125, D=d, B=32)
    ds = p * (G @ V.T - delta[:, None]) / 8
    return [(dq, ds @ K, 2e-2), (dk, ds.T @ Q, 2e-2), (dv, p.T @ G, 2e-2)]


@triton.jit
def cross_entropy(x, targets, losses, n, B: tl.constexpr):
    """A row's loss, and its gradient in the place of the logits, in two passes over parts."""
    row, i = tl.program_id(0), tl.arange(0, B)
    target = tl.load(targets + row)
    here = x + row * n
    at_target = tl.load(here + target)
    most, total = -float("inf"), 0.0
    for at in range(0, n, B):
        part = tl.load(here + at + i, mask=at + i < n, other=-float("inf"))
        higher = tl.maximum(most, tl.max(part))
        total = total * tl.exp(most - higher) + tl.sum(tl.exp(part - higher))
        most = higher
    for at in range(0, n, B):
        part = tl.load(here + at + i, mask=at + i < n, other=-float("inf"))
        grad = tl.exp(part - most) / total
        tl.store(here + at + i, tl.where(at + i == target, grad - 1, grad), mask=at + i < n)
    tl.debug_barrier()
    tl.store(losses + row, most + tl.log(total) - at_target)


def losses_in_place() -> Any:
    x, targets, out = f32(5, 300), R.integers(0, 300, 5).astype(np.int32), np.zeros(5, np.float32)
    e = np.exp(x.astype(float))
    p = e / e.sum(1, keepdims=True)
    want, grads = -np.log(p[np.arange(5), targets]), p.copy()
    grads[np.arange(5), targets] -= 1
    cross_entropy[(5,)](x, targets, out, 300, B=128)
    return [(out, want, 1e-4), (x, grads, 1e-4)]


@triton.jit
def decode_pages(q, kc, vc, tables, lengths, out, pages, scale, D: tl.constexpr, SIZE: tl.constexpr, G: tl.constexpr):
    """A group of queries over the pages of a cache."""
    seq, d, s, g = tl.program_id(0), tl.arange(0, D), tl.arange(0, SIZE), tl.arange(0, G)
    length = tl.load(lengths + seq)
    queries = tl.load(q + (seq * G + g)[:, None] * D + d[None, :])
    most = tl.full([G], -float("inf"), tl.float32)
    total, acc = tl.zeros([G], tl.float32), tl.zeros([G, D], tl.float32)
    for page in range(tl.cdiv(length, SIZE)):
        block = tl.load(tables + seq * pages + page).to(tl.int64)
        inside = page * SIZE + s < length
        keys = tl.load(kc + (block * SIZE + s)[None, :] * D + d[:, None], mask=inside[None, :], other=0.0)
        scores = tl.where(inside[None, :], tl.dot(queries, keys) * scale, -float("inf"))
        higher = tl.maximum(most, tl.max(scores, 1))
        p, shrink = tl.exp(scores - higher[:, None]), tl.exp(most - higher)
        values = tl.load(vc + (block * SIZE + s)[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
        acc = acc * shrink[:, None] + tl.dot(p.to(tl.float16), values)
        total, most = total * shrink + tl.sum(p, 1), higher
    tl.store(out + (seq * G + g)[:, None] * D + d[None, :], acc / total[:, None])


def paged_decode() -> Any:
    q, kc, vc = f16(3, 16, 32), f16(10, 16, 32), f16(10, 16, 32)
    tables = np.stack([R.permutation(10)[:3] for _ in range(3)]).astype(np.int32)
    lengths, out, want = np.array([48, 17, 5], np.int32), np.zeros((3, 16, 32), np.float32), np.zeros((3, 16, 32))
    for b, n in enumerate(lengths):
        k, v = (c[tables[b]].reshape(-1, 32)[:n].astype(float) for c in (kc, vc))
        p = np.exp(q[b].astype(float) @ k.T * 0.2)
        want[b] = p / p.sum(1, keepdims=True) @ v
    decode_pages[(3,)](q, kc, vc, tables, lengths, out, 3, 0.2, D=32, SIZE=16, G=16)
    return [(out, want, 1e-2)]


@triton.jit
def expert_products(
    x,
    w,
    out,
    ids,
    experts,
    count,
    N: tl.constexpr,
    K: tl.constexpr,
    TOP: tl.constexpr,
    M_: tl.constexpr,
    K_: tl.constexpr,
):
    """Tokens that are sorted by expert, in padded blocks."""
    block = tl.program_id(0)
    if block * M_ >= tl.load(count):
        return
    id_ = tl.load(ids + block * M_ + tl.arange(0, M_))
    real, j, k = id_ < TOP * 24, tl.arange(0, N), tl.arange(0, K_)
    expert = tl.load(experts + block)
    acc = tl.zeros([M_, N], tl.float32)
    for at in range(0, K, K_):
        a = tl.load(x + (id_ // TOP)[:, None] * K + at + k[None, :], mask=real[:, None], other=0.0)
        acc += tl.dot(a, tl.load(w + expert * K * N + (at + k)[:, None] * N + j[None, :]))
    tl.store(out + id_[:, None] * N + j[None, :], acc, mask=real[:, None])


def experts() -> Any:
    x, w = f16(24, 64), f16(4, 64, 32)
    picks = R.integers(0, 4, 48)
    ids, of = [], []
    for e in range(4):
        mine = np.flatnonzero(picks == e)
        ids += [*mine, *[48] * (-len(mine) % 16)]
        of += [e] * -(-len(mine) // 16)
    out, want = (
        np.zeros((48, 32), np.float32),
        np.einsum("tk,tkn->tn", np.repeat(x, 2, 0).astype(float), w[picks].astype(float)),
    )
    total = np.array([len(ids)], np.int32)
    expert_products[(7,)](x, w, out, np.array(ids + [48] * 64, np.int32), np.array(of + [0] * 8, np.int32), total, N=32, K=64, TOP=2, M_=16, K_=32)  # fmt: skip
    return [(out, want, 2e-2)]


@triton.jit
def scan_pair(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def recurrences(a, b, out, n, T: tl.constexpr):
    """A linear recurrence by an associative scan over pairs, part after part."""
    row, t = tl.program_id(0), tl.arange(0, T)
    state = 0.0
    for at in range(0, n, T):
        gate, add = tl.load(a + row * n + at + t), tl.load(b + row * n + at + t)
        gates, sums = tl.associative_scan((gate, add), 0, scan_pair)
        y = gates * state + sums
        tl.store(out + row * n + at + t, y)
        state = tl.sum(tl.where(t == T - 1, y, 0.0))


def recurrence() -> Any:
    a, b, out = R.random((4, 128)).astype(np.float32), f32(4, 128), np.zeros((4, 128), np.float32)
    want, h = np.zeros((4, 128)), np.zeros(4)
    for t in range(128):
        h = a[:, t] * h + b[:, t]
        want[:, t] = h
    recurrences[(4,)](a, b, out, 128, T=32)
    return [(out, want, 1e-4)]


@triton.jit
def quantised_groups(x, q, scales, n, G: tl.constexpr):
    """Float8 by groups of a row."""
    row, group, i = tl.program_id(0), tl.program_id(1), tl.arange(0, G)
    v = tl.load(x + row * n + group * G + i)
    s = tl.maximum(tl.max(tl.abs(v)), 1e-10) / 448.0
    tl.store(q + row * n + group * G + i, tl.clamp(v / s, -448.0, 448.0).to(tl.float8e4nv).to(tl.uint8, bitcast=True))
    tl.store(scales + row * (n // G) + group, s)


def float8_groups() -> Any:
    import ml_dtypes

    x, q, s = f32(3, 128), np.zeros((3, 128), np.uint8), np.zeros((3, 4), np.float32)
    most = np.abs(x.reshape(3, 4, 32)).max(2)
    quantised_groups[(3, 4)](x, q, s, 128, G=32)
    back = q.view(ml_dtypes.float8_e4m3fn).astype(float).reshape(3, 4, 32) * s[..., None]
    return [(s, most / 448, 1e-5), (back.reshape(3, 128), x, 0.1)]


@triton.jit
def best_of(x, values, places, n, B: tl.constexpr, K: tl.constexpr):
    """The best K of a row by rounds of maxima with their places, and by the sort that tl.topk makes."""
    row, i = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + row * n + i, mask=i < n, other=-float("inf"))
    tl.store(values + row * K + tl.arange(0, K), tl.topk(v, K))
    for k in tl.static_range(K):
        at = tl.argmax(v, 0)
        tl.store(places + row * K + k, at)
        v = tl.where(i == at, -float("inf"), v)


def best() -> Any:
    x, values, places = f32(4, 100), np.zeros((4, 8), np.float32), np.zeros((4, 8), np.int32)
    best_of[(4,)](x, values, places, 100, B=128, K=8)
    order = np.argsort(-x, 1)[:, :8]
    return [(values, np.take_along_axis(x, order, 1), 0), (places, order, 0)]


@triton.jit
def functions(x, out, n, B: tl.constexpr):
    """Functions of the device library, inline PTX on vectors, and a gather within a block."""
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n, other=0.0)
    y = libdevice.asin(libdevice.tanh(v)) + libdevice.erf(v) * libdevice.rsqrt(1.0 + v * v)
    z = tl.inline_asm_elementwise(
        "{ .reg .f32 t; mul.f32 t, $1, 0f40000000; add.f32 $0, t, $1; }",
        "=f,f",
        [y],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )
    tl.store(out + i, tl.gather(z, (tl.arange(0, B) + 5) % B, 0), mask=i < n)


def device_library() -> Any:
    import math

    x, out = f32(256), np.zeros(256, np.float32)
    functions[(2,)](x, out, 256, B=128)
    v = x.astype(float)
    y = 3 * (np.arcsin(np.tanh(v)) + np.vectorize(math.erf)(v) / np.sqrt(1 + v * v))
    return [(out, np.roll(y.reshape(2, 128), -5, 1).reshape(-1), 1e-4)]


@triton.jit
def stream_k(
    a,
    b,
    c,
    locks,
    tiles_n,
    steps,
    per,
    N: tl.constexpr,
    K: tl.constexpr,
    M_: tl.constexpr,
    N_: tl.constexpr,
    K_: tl.constexpr,
):
    """Programs share all steps of all tiles evenly. A tile's parts are added by atomics; the part that begins it stores."""
    start = tl.program_id(0) * per
    end = tl.minimum(start + per, steps)
    i, j, k = tl.arange(0, M_), tl.arange(0, N_), tl.arange(0, K_)
    each: tl.constexpr = K // K_
    while start < end:
        tile = start // each
        last = tl.minimum((tile + 1) * each, end)
        row, column = (tile // tiles_n) * M_ + i, (tile % tiles_n) * N_ + j
        acc = tl.zeros([M_, N_], tl.float32)
        for step in range(start, last):
            at = (step % each) * K_ + k
            acc += tl.dot(tl.load(a + row[:, None] * K + at[None, :]), tl.load(b + at[:, None] * N + column[None, :]))
        here = c + row[:, None] * N + column[None, :]
        if start % each == 0:
            tl.store(here, acc)
            tl.debug_barrier()
            if last % each != 0:
                tl.atomic_xchg(locks + tile, 1, sem="release")
        else:
            while tl.atomic_cas(locks + tile, 1, 1, sem="acquire") != 1:
                pass
            tl.debug_barrier()
            tl.atomic_add(here, acc, sem="relaxed")
        start = last


def even_shares() -> Any:
    a, b, c, locks = f16(64, 128), f16(128, 64), np.zeros((64, 64), np.float32), np.zeros(4, np.int32)
    stream_k[(3,)](a, b, c, locks, 2, 16, 6, N=64, K=128, M_=32, N_=32, K_=32)
    return [(c, a.astype(float) @ b.astype(float), 1e-2)]


@triton.jit
def chunked_delta(q, k, v, beta, out, n, D: tl.constexpr, T: tl.constexpr):
    """Linear attention by chunks: a state of D x D goes from chunk to chunk."""
    t, d = tl.arange(0, T), tl.arange(0, D)
    state = tl.zeros([D, D], tl.float32)
    for at in range(0, n, T):
        here = (at + t)[:, None] * D + d[None, :]
        Q, Kk, V = tl.load(q + here), tl.load(k + here), tl.load(v + here)
        g = tl.load(beta + at + t)
        scores = tl.where(t[:, None] >= t[None, :], tl.dot(Q, tl.trans(Kk)), 0.0) * g[None, :]
        tl.store(out + here, tl.dot(scores.to(tl.float16), V) + tl.dot(Q, state.to(tl.float16)))
        state += tl.dot(tl.trans((Kk * g[:, None]).to(tl.float16)), V)


def linear_attention() -> Any:
    q, k, v = (f16(64, 16) for _ in range(3))
    beta, out = R.random(64).astype(np.float32), np.zeros((64, 16), np.float32)
    chunked_delta[(1,)](q, k, v, beta, out, 64, D=16, T=16)
    s = np.tril(q.astype(float) @ k.astype(float).T) * beta
    return [(out, s @ v.astype(float), 5e-2)]


@triton.jit
def swiglu_backward(a, b, dc, n, B: tl.constexpr):
    """Gradients of two inputs in their own places."""
    i = tl.program_id(0) * B + tl.arange(0, B)
    A, G, C = (
        tl.load(a + i, mask=i < n, other=0.0),
        tl.load(b + i, mask=i < n, other=0.0),
        tl.load(dc + i, mask=i < n, other=0.0),
    )
    s = tl.sigmoid(A)
    tl.store(b + i, C * A * s, mask=i < n)
    tl.store(a + i, C * G * (s * (1 + A * (1 - s))), mask=i < n)


def gated_gradients() -> Any:
    a, b, c = f32(70), f32(70), f32(70)
    A, B, C = (x.astype(float) for x in (a, b, c))
    s = 1 / (1 + np.exp(-A))
    swiglu_backward[(2,)](a, b, c, 70, B=64)
    return [(a, C * B * s * (1 + A * (1 - s)), 1e-4), (b, C * A * s, 1e-4)]


@triton.jit
def rms_by_blocks(x, w, y, rows, n, eps, R_: tl.constexpr, B: tl.constexpr):
    """Several rows in a program, which goes over rows with a stride."""
    i = tl.arange(0, B)
    weights = tl.load(w + i, mask=i < n, other=0.0)
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, R_), tl.num_programs(0)):
        r = block * R_ + tl.arange(0, R_)
        inside = (r < rows)[:, None] & (i < n)[None, :]
        v = tl.load(x + r[:, None] * n + i[None, :], mask=inside, other=0.0)
        scale = tl.rsqrt(tl.sum(v * v, 1) / n + eps)
        tl.store(y + r[:, None] * n + i[None, :], v * scale[:, None] * weights[None, :], mask=inside)


def norms_by_blocks() -> Any:
    x, w, y = f32(13, 100), f32(100), np.zeros((13, 100), np.float32)
    rms_by_blocks[(2,)](x, w, y, 13, 100, 1e-6, R_=4, B=128)
    v = x.astype(float)
    return [(y, v / np.sqrt((v * v).mean(1, keepdims=True) + 1e-6) * w, 1e-4)]


@triton.jit
def scaled_tiles(a, b, sa, sb, c, N: tl.constexpr, K: tl.constexpr, M_: tl.constexpr):
    """A product of float8 with a scale for each 32 elements of K."""
    i, j, k, s = tl.arange(0, M_), tl.arange(0, N), tl.arange(0, K), tl.arange(0, K // 32)
    left, right = tl.load(a + i[:, None] * K + k[None, :]), tl.load(b + k[:, None] * N + j[None, :])
    ls, rs = tl.load(sa + i[:, None] * (K // 32) + s[None, :]), tl.load(sb + j[:, None] * (K // 32) + s[None, :])
    tl.store(c + i[:, None] * N + j[None, :], tl.dot_scaled(left, ls, "e4m3", right, rs, "e4m3"))


def block_scaled() -> Any:
    import ml_dtypes

    a, b = (f32(*shape).astype(ml_dtypes.float8_e4m3fn) for shape in ((32, 64), (64, 32)))
    sa, sb = (R.integers(124, 130, (32, 2)).astype(np.uint8) for _ in range(2))
    c = np.zeros((32, 32), np.float32)
    scaled_tiles[(1,)](a.view(np.uint8), b.view(np.uint8), sa, sb, c, N=32, K=64, M_=32)
    A, B = (np.repeat(2.0 ** (s.astype(float) - 127), 32, 1) for s in (sa, sb))
    return [(c, (a.astype(float) * A) @ (b.astype(float) * B.T), 5e-2)]


@triton.jit
def tma_sums(x, out, n, B: tl.constexpr):
    """Tiles are added to one tile by a tensor copy that reduces."""
    source = tl.make_tensor_descriptor(x, [n, B], [B, 1], [16, B])
    target = tl.make_tensor_descriptor(out, [16, B], [B, 1], [16, B])
    target.atomic_add([0, 0], source.load([tl.program_id(0) * 16, 0]))


def tma_reduction() -> Any:
    triton.set_allocator(allocator)
    x, out = f32(80, 32), np.zeros((16, 32), np.float32)
    tma_sums[(5,)](x, out, 80, B=32)
    return [(out, x.astype(float).reshape(5, 16, 32).sum(0), 1e-4)]


@triton.jit
def tma_rows(x, ids, out, n, B: tl.constexpr):
    """Rows by number, by TMA one after the other, through a loop of descriptors' loads."""
    source = tl.make_tensor_descriptor(x, [n, B], [B, 1], [1, B])
    target = tl.make_tensor_descriptor(out, [n, B], [B, 1], [1, B])
    for i in tl.range(0, 8, num_stages=3):
        row = tl.program_id(0) * 8 + i
        target.store([row, 0], source.load([tl.load(ids + row), 0]))


def tma_gather() -> Any:
    triton.set_allocator(allocator)
    x, ids, out = f32(16, 64), R.permutation(16).astype(np.int32), np.zeros((16, 64), np.float32)
    tma_rows[(2,)](x, ids, out, 16, B=64)
    return [(out, x[ids], 0)]


EVERYWHERE = (attention_gradients, losses_in_place, paged_decode, experts, recurrence, best, device_library, even_shares, linear_attention, gated_gradients, norms_by_blocks)  # fmt: skip
HOPPER = (float8_groups, block_scaled, tma_reduction, tma_gather)
