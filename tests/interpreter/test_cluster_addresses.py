"""Shared addresses in clusters: what they look like, and that .shared reaches the block's own memory alone."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_dsl.runtime.arrays.array_view import view
from kernel_dsl.runtime.devices.devices import cuda_device
from kernel_dsl.runtime.interpreter import HazardKind as K

from .launching import kernel, launch
from .planted import REGISTERS, Planted, check, swap

RANKS = 4
# Each block stores what it sees of its own variable and of its peers'.
NUMBERS = """ .shared .align 16 .b32 s[64];
 ld.param.u64 d1, [a]; mov.u32 r2, %cluster_ctarank; mul.wide.u32 d2, r2, 64; add.s64 d1, d1, d2;
 mov.u32 r3, s; and.b32 r4, r3, 0xffffff; sub.u32 r5, r3, r4;
 mapa.shared::cluster.u32 r6, r3, r2; sub.u32 r6, r6, r3;
 add.u32 r7, r2, 1; and.b32 r7, r7, 3; mapa.shared::cluster.u32 r8, r3, r7; sub.u32 r9, r8, r4;
 mapa.shared::cluster.u32 r10, s+4, r7; sub.u32 r10, r10, r8;
 mov.u64 d3, s; cvta.shared.u64 d4, d3; mapa.u64 d5, d4, r7; sub.s64 d6, d5, d4; cvt.u32.u64 r11, d6;
 cvta.to.shared.u64 d7, d4; cvt.u32.u64 r12, d7; sub.u32 r12, r12, r3;
 getctarank.shared::cluster.u32 r13, r3; getctarank.u64 r14, d5;
 isspacep.shared::cta p1, d4; isspacep.shared p2, d5; isspacep.shared::cluster p3, d5;
 selp.u32 r15, 1, 0, p1; selp.u32 r16, 1, 0, p2; selp.u32 r17, 1, 0, p3;
 st.global.v4.u32 [d1], {r5, r6, r9, r10};
 st.global.v4.u32 [d1+16], {r11, r12, r13, r14};
 st.global.v4.u32 [d1+32], {r15, r16, r17, r2};
 ret;"""


def expected() -> np.ndarray:
    rank = np.arange(RANKS)
    after = (rank + 1) % RANKS
    zero, one = np.zeros(RANKS, int), np.ones(RANKS, int)
    step = (after - rank) << 24
    columns = [rank << 24, zero, after << 24, 4 * one, step, zero, rank, after, one, zero, one, rank]
    return np.stack([*columns, *[zero] * 4], axis=1).astype(np.int32)


def test_numbers():
    out = np.zeros((RANKS, 16), np.int32)
    launch(kernel(".param .u64 a", REGISTERS + NUMBERS), "k", [out], grid=RANKS, cluster=(RANKS, 1, 1))
    np.testing.assert_array_equal(out, expected())


@pytest.mark.gpu
def test_numbers_are_the_gpus():
    torch = pytest.importorskip("torch")
    device, out = cuda_device(), torch.zeros((RANKS, 16), dtype=torch.int32, device="cuda")
    image = device.load_image(kernel(".param .u64 a", REGISTERS + NUMBERS), "k")
    image.launch([view(out)], grid=(RANKS, 1, 1), block=(32, 1, 1), cluster=(RANKS, 1, 1))
    torch.cuda.synchronize()
    np.testing.assert_array_equal(out.cpu().numpy(), expected())


def test_without_a_cluster_addresses_are_offsets():
    out = np.zeros((2, 16), np.int32)
    text = " .shared .align 16 .b32 s[64]; ld.param.u64 d1, [a]; mov.u32 r2, %ctaid.x; mul.wide.u32 d2, r2, 64;"
    text += " add.s64 d1, d1, d2; mov.u32 r3, s; st.global.u32 [d1], r3; ret;"
    launch(kernel(".param .u64 a", REGISTERS + text), "k", [out], grid=2)
    assert out[:, 0].tolist() == [1024, 1024]


# r6 and r7: the peer's word of this lane, and the peer's barrier; r3 and r8: the block's own.
PEER = """ .shared .align 16 .b8 s[1024]; .shared .align 8 .b64 bar; ld.param.u64 d1, [a];
 mov.u32 r2, s; mov.u32 r8, bar; shl.b32 r3, r1, 4; add.u32 r3, r3, r2;
 mov.u32 r4, %cluster_ctarank; xor.b32 r5, r4, 1; mov.u32 r10, 0;
 setp.ne.u32 p1, r1, 0; setp.ne.u32 p2, r4, 0;
 st.shared.v4.u32 [r3], {r10, r10, r10, r10};
 @p1 bra MADE; mbarrier.init.shared::cta.b64 [r8], 64; fence.mbarrier_init.release.cluster;
MADE: fence.proxy.async.shared::cta; barrier.cluster.arrive; barrier.cluster.wait;
 mapa.shared::cluster.u32 r6, r3, r5; mapa.shared::cluster.u32 r7, r8, r5; and.b32 r9, r3, 0xffffff;
 OP
 barrier.cluster.arrive; barrier.cluster.wait;
 ret;"""
PAIR = {"cluster": (2, 1, 1), "grid": 2}


def peer(name: str, good: str, bad: str, *mentions: str) -> Planted:
    """An instruction that may reach a peer, or its own memory, beside one that names the wrong window."""
    return swap(
        name,
        K.OUT_OF_BOUNDS,
        PEER.replace("OP", good),
        good,
        bad,
        params=".param .u64 a",
        args=lambda: [np.zeros((2, 1024), np.uint8)],
        options=PAIR,
        mentions=("of the cluster", "mapa", *mentions),
    )


BULK = "@p1 bra X; mul.wide.u32 d2, r4, 1024; add.s64 d1, d1, d2;"
BULK += " cp.async.bulk.global.shared::cta.bulk_group [d1], [{}], 1024;"
BULK += " cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;\nX:"
COPY = "cp.async.ca.shared.global [{}], [d1], 4; cp.async.wait_all;"
CASES = [
    peer("load", "ld.shared::cluster.u32 r11, [r6];", "ld.shared.u32 r11, [r6];"),
    peer("load of a vector", "ld.shared::cluster.v4.u32 {r11, r12, r13, r14}, [r6];", "ld.shared::cta.u32 r11, [r6];"),
    peer("store", "st.shared::cluster.u32 [r6], r1;", "st.shared::cta.u32 [r6], r1;"),
    peer("atomic", "atom.shared::cluster.add.u32 r11, [r6], 1;", "atom.shared.add.u32 r11, [r6], 1;"),
    peer("compare and swap", "atom.shared::cluster.cas.b32 r11, [r6], 0, 1;", "atom.shared.cas.b32 r11, [r6], 0, 1;"),
    peer("reduction", "red.shared::cluster.add.u32 [r6], 1;", "red.shared::cta.add.u32 [r6], 1;"),
    peer(
        "arrival",
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r7];",
        "mbarrier.arrive.shared::cta.b64 _, [r7];",
    ),
    peer(
        "wait",
        "mbarrier.test_wait.parity.shared::cta.b64 p3, [r8], 0;",
        "mbarrier.test_wait.parity.shared::cta.b64 p3, [r7], 0;",
    ),
    peer(
        "ldmatrix",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {r11}, [r3];",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {r11}, [r6];",
    ),
    peer("cp.async", COPY.format("r3"), COPY.format("r6")),
    peer("bulk store", BULK.format("r2"), BULK.format("r6")),
    peer(
        "rank 0's address in rank 1",
        "@p2 ld.shared::cluster.u32 r11, [r9];",
        "@p2 ld.shared::cta.u32 r11, [r9];",
        "is of rank 0",
        "has rank 1",
        "block (1, 0, 0)",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_own_window(case: Planted):
    check(case)


def test_generic_addresses_reach_peers():
    out = np.zeros((2, 64), np.int32)
    body = PEER.replace(
        "OP",
        """cvt.u64.u32 d2, r3; cvta.shared.u64 d2, d2; mapa.u64 d3, d2, r5; add.u32 r11, r4, 5; st.u32 [d3], r11;
 barrier.cluster.arrive; barrier.cluster.wait; ld.shared.u32 r12, [r3];
 mul.wide.u32 d4, r4, 256; add.s64 d1, d1, d4; mul.wide.u32 d4, r1, 4; add.s64 d1, d1, d4; st.global.u32 [d1], r12;""",
    )
    launch(kernel(".param .u64 a", REGISTERS + body), "k", [out], block=64, **PAIR)
    assert (out == [[6], [5]]).all()
