"""What kernels of others taught: each class that was a false alarm or refused, and its wrong twin, which is found."""

from __future__ import annotations

import numpy as np
import pytest

import kernel_dsl as kd

from ..check.images import image

ROW = " mov.u32 %r1, %tid.x; ld.param.u64 %d1, [out]; mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %d2, %d1;\n"
OUT = ".param .u64 out"


def kinds(body: str, out: np.ndarray, before: str = "", **options: object) -> set[str]:
    text = image(OUT, ROW + body, before=before)
    options = {"grid": 1, "block": 64, "schedules": ("eager", "late", "random:2"), **options}
    return {h.kind for h in kd.check(text, out, **options).hazards}


# Merge sorts read one element past the end, and have the bounds decide.
SPECULATED = """ mov.u32 %r2, s; mov.u32 %r3, 7; st.shared.u32 [%r2], %r3; ld.shared.u32 %r4, [%r2+256];
 setp.gt.u32 %p1, %r1, 99; setp.lt.u32 %p2, %r4, 5; LOGIC
 selp.u32 %r5, 1, 0, %p3; st.global.u32 [%d2], %r5;"""
SMEM = ".shared .align 4 .b32 s[128];\n"


@pytest.mark.parametrize(
    ("logic", "clean"),
    [
        ("and.pred %p3, %p2, %p1;", True),
        ("or.pred %p3, %p1, %p2;", False),
        ("not.pred %p1, %p1; or.pred %p3, %p1, %p2;", True),
        ("not.pred %p1, %p1; and.pred %p3, %p1, %p2;", False),
        ("setp.lt.and.u32 %p3, %r4, 5, %p1;", True),
        ("setp.lt.or.u32 %p3, %r4, 5, %p1;", False),
        ("xor.pred %p3, %p1, %p2;", False),
        ("and.b32 %r4, %r4, 0; setp.eq.u32 %p3, %r4, 0;", True),
        ("or.b32 %r4, %r4, -1; setp.eq.u32 %p3, %r4, 0;", True),
        ("or.b32 %r4, %r4, 1; setp.eq.u32 %p3, %r4, 0;", False),
    ],
)
def test_what_logic_decides_without_a_value_nobody_wrote(logic: str, clean: bool) -> None:
    body = SPECULATED.replace("LOGIC", logic)
    assert kinds(body, np.zeros(32, np.int32), SMEM, block=32) == (set() if clean else {"uninitialised"})


# An atomic operation made of compare-and-swap begins with an ordinary load.
SWAP = """ ld.global.u32 %r5, [%d1];
L: mov.u32 %r6, %r5; mul.lo.u32 %r7, %r6, 3; add.u32 %r7, %r7, 1; atom.global.cas.b32 %r5, [%d1], %r6, %r7; setp.ne.u32 %p1, %r5, %r6;
 @%p1 bra L; MORE"""


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (("MORE", ""), set[str]()),
        (("MORE", "st.global.u32 [%d2+4096], %r5;"), set[str]()),  # what the swap gave
        (("MORE", "st.global.u32 [%d2+4096], %r6;"), {"race_global"}),  # what was guessed, perhaps
        (("L: ", "setp.gt.u32 %p2, %r5, 9; @%p2 bra E;\nL: "), {"race_global"}),
        (("atom.global.cas.b32 %r5, [%d1], %r6, %r7;", "mov.u32 %r5, %r6; st.global.u32 [%d1], %r1;"), {"race_global", "equal_value_race"}),
    ],
)  # fmt: skip
def test_a_first_guess_of_a_compare_and_swap(change: tuple[str, str], found: set[str]) -> None:
    body = SWAP.replace(*change).replace("MORE", "") + "\nE: "
    out = np.zeros(2048, np.int32)
    got = kinds(body, out)
    assert bool(got) == bool(found) and got <= found
    if not found:
        value = 0
        for _ in range(64):
            value = value * 3 + 1 & 0xFFFFFFFF
        assert out.view(np.uint32)[0] == value


# Groups of several warps meet in the system's shared memory.
RESERVED = """ mov.u32 %r2, %reserved_smem_offset_1; and.b32 %r3, %r1, 31; setp.ne.u32 %p1, %r3, 0; @%p1 bra E;
 atom.shared.acq_rel.cta.add.u32 %r4, [%r2], 1; st.global.u32 [%d2], %r4;\nE: """


def test_the_systems_shared_memory_is_zero() -> None:
    out = np.zeros(64, np.int32)
    assert kinds(RESERVED, out) == set() and sorted(out[[0, 32]]) == [0, 1]
    assert kinds(RESERVED.replace("%reserved_smem_offset_1", "512"), out) == {"out_of_bounds"}
    assert kinds(RESERVED.replace("[%r2]", "[%r2+100000]"), out) == {"out_of_bounds"}


# Reductions by bulk copies into one place of a peer's shared memory don't race; copies do.
REDUCED = """ mov.u32 %r2, s; mov.u32 %r3, m; mov.u32 %r4, %cluster_ctarank; shl.b32 %r5, %r1, 2; add.u32 %r5, %r5, %r2;
 st.shared.u32 [%r5], %r4; mov.u32 %r6, 0; st.shared.u32 [%r5+256], %r6; setp.ne.u32 %p1, %r1, 0; setp.ne.u32 %p2, %r4, 0;
 @!%p1 mbarrier.init.shared.b64 [%r3], 1; fence.proxy.async; fence.mbarrier_init.release.cluster; barrier.cluster.arrive; barrier.cluster.wait;
 @%p1 bra W; mapa.shared::cluster.u32 %r7, %r2, 0; mapa.shared::cluster.u32 %r8, %r3, 0;
 @!%p2 mbarrier.arrive.expect_tx.shared.b64 %d3, [%r3], 1024;
 COPY [%r7+256], [%r2], 256, [%r8];
W: @%p2 bra E;
P: mbarrier.try_wait.parity.shared.b64 %p3, [%r3], 0; @!%p3 bra P; ld.shared.u32 %r9, [%r5+256]; st.global.u32 [%d2], %r9;
E: barrier.cluster.arrive; barrier.cluster.wait;"""
COPY = "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32"
TWO = ".shared .align 16 .b32 s[128];\n.shared .align 8 .b64 m;\n"


def test_bulk_reductions_of_several_blocks() -> None:
    out = np.zeros(64, np.int32)
    assert kinds(REDUCED.replace("COPY", COPY), out, TWO, grid=4, cluster=4) == set() and (out == 6).all()
    plain = COPY.replace("cp.reduce", "cp").replace(".add.u32", "")
    assert "race_shared" in kinds(REDUCED.replace("COPY", plain), out, TWO, grid=4, cluster=4)


# Warps take registers that the others of their block give back.
REGISTERS = """ mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 128; @%p1 bra B; setmaxnreg.inc.sync.aligned.u32 256;
 bar.sync 1; setmaxnreg.dec.sync.aligned.u32 40; bar.sync 1; bar.sync 2; setmaxnreg.inc.sync.aligned.u32 256; ret;
B: setmaxnreg.dec.sync.aligned.u32 120; bar.sync 1; bar.sync 1; setmaxnreg.inc.sync.aligned.u32 232;
 bar.sync 2; BACK"""


def test_registers_are_waited_for() -> None:
    def found(back: str) -> set[str]:
        text = image("", REGISTERS.replace("BACK", back)).replace(") {", ") .reqntid 384 .maxnreg 168 {")
        return {h.kind for h in kd.check(text, grid=1).hazards}

    assert found("setmaxnreg.dec.sync.aligned.u32 120;") == set()
    assert found("") == {"register_capacity"}


SMALL = """ mov.u32 %r9, STRIDE; wmma.load.a.sync.aligned.row.SHAPE.global.TYPE {%r2}, [%d1], %r9; add.s64 %d3, %d1, 512;
 wmma.load.b.sync.aligned.col.SHAPE.global.TYPE {%r3}, [%d3], %r9; mov.u32 %r4, 0; mov.u32 %r5, 1;
 wmma.mma.OPsync.aligned.row.col.SHAPE.s32.TYPE.TYPE.s32 {%r6, %r7}, {%r2}, {%r3}, {%r4, %r4}; add.s64 %d4, %d1, 1024; mov.u32 %r8, 8;
 wmma.store.d.sync.aligned.row.SHAPE.global.s32 [%d4], {%r6, %r7}, %r8;"""


@pytest.mark.parametrize(
    ("type_", "op", "stride"), [("s4", "", 32), ("u4", "", 64), ("b1", "xor.popc.", 128), ("b1", "and.popc.", 256)]
)
def test_wmma_of_parts_of_bytes(type_: str, op: str, stride: int) -> None:
    bits, k = (1, 128) if type_ == "b1" else (4, 32)
    body = SMALL.replace("SHAPE", f"m8n8k{k}").replace("TYPE", type_).replace("OP", op).replace("STRIDE", str(stride))
    memory = np.random.default_rng(3).integers(0, 2**32, 320).astype(np.uint32)

    def matrix(at: int) -> np.ndarray:
        words = memory[at : at + 8 * stride * bits // 32].reshape(8, -1)
        v = (words[:, :, None] >> np.arange(0, 32, bits, dtype=np.uint32) & ((1 << bits) - 1)).astype(np.int64)
        v = v.reshape(8, -1)[:, :k]
        return v - 16 * (v > 7) if type_ == "s4" else v

    a, b = matrix(0), matrix(128)
    want = (a[:, None] != b[None]).sum(2) if "xor" in op else a @ b.T
    assert kinds(body, memory, block=32) == set()
    np.testing.assert_array_equal(memory[256:].view(np.int32).reshape(8, 8), want)


def test_smem_that_a_launch_does_not_give() -> None:
    """All lanes are outside, the first one too, in each block."""
    body = " mov.u32 %r2, d; mad.lo.u32 %r2, %r1, 4, %r2; st.shared.u32 [%r2], %r1;"
    assert kinds(body, np.zeros(1, np.int32), ".extern .shared .align 16 .b8 d[];\n", grid=3) == {"out_of_bounds"}


# Compilers pack a value with a register that nothing has written, and use the value's half alone.
PACKED = {
    "mov.b32": "mov.b32 %r4, {%h1, %h8};",
    "bfi": "bfi.b32 %r4, %r1, %r9, 0, 16;",
    "prmt": "prmt.b32 %r4, %r1, %r9, 0x7610;",
    "shf": "shf.l.wrap.b32 %r4, %r1, %r9, 16;",
    "cvt to halves": "cvt.rn.f16x2.f32 %r4, %f8, %f1;",
    "cvt to bfloat16": "cvt.rn.bf16x2.f32 %r4, %f8, %f1;",
    "cvt to float8": "cvt.rn.satfinite.e4m3x2.f32 %h2, %f8, %f1; cvt.u32.u16 %r4, %h2;",
    "cvt.pack": "cvt.pack.sat.u16.s32 %r4, %r9, %r1;",
    "add": "add.u32 %r4, %r1, %r9;",
    "cvt": "cvt.rn.f32.u32 %f1, %r9; mov.b32 %r4, %f1;",
}


@pytest.mark.parametrize("how", PACKED)
def test_a_value_packed_with_an_unset_register(how: str) -> None:
    """%r9, %h8 and %f8 are unset. With no value beside them, the result is unset, too."""
    start = "cvt.u16.u32 %h1, %r1; cvt.rn.f32.u32 %f1, %r1; "
    body, store = PACKED[how], " st.global.u32 [%d2], %r4;"
    assert kinds(start + body + store, np.zeros(64, np.int32)) == (
        {"uninitialised"} if how in ("add", "cvt") else set()
    )
    alone = body.replace("%r1,", "%r9,").replace("%r1;", "%r9;").replace("%h1", "%h8").replace("%f1;", "%f8;")
    assert kinds(start + alone + store, np.zeros(64, np.int32)) == {"uninitialised"}


# Sorts of CUB exchange the items of a ragged tile through shared memory, those behind its end too. %r9 and %h8 are unset.
EXCHANGED = """ mov.u32 %r2, s; shl.b32 %r3, %r1, 3; add.u32 %r3, %r3, %r2; xor.b32 %r4, %r3, 8; cvt.u64.u32 %d4, %r1;
 setp.lt.u32 %p1, %r1, 32; FIRST bar.sync 0; THEN ld.shared.u32 %r5, [%r4]; USE """
STORE = "st.shared.u32 [%r3], %r9;"
USED = "st.global.u32 [%d2], %r5;"
DROPPED = "setp.gt.u32 %p2, %r1, 64; @%p2 st.global.u32 [%d2], %r5;"
THROUGH_SMEM = {
    "and nobody uses it": (STORE, "", DROPPED, True),
    "and a lane stores it": (STORE, "", USED, False),
    "and a lane branches on it": (STORE, "", "setp.eq.u32 %p2, %r5, 0; @%p2 ret;", False),
    "and a store brings data": (STORE, "st.shared.u32 [%r3], %r1; bar.sync 0;", USED, True),
    "and a wider store brings data": (STORE, "st.shared.u64 [%r3], %d4; bar.sync 0;", USED, True),
    "and a copy brings data": (
        STORE,
        "cp.async.ca.shared.global [%r3], [%d1], 8; cp.async.wait_all; bar.sync 0;",
        USED,
        True,
    ),
    "and a store brings half of it": (STORE, "st.shared.u16 [%r3], %h1; bar.sync 0;", USED, False),
    "and an atomic adds to it": (STORE, "atom.shared.add.u32 %r6, [%r3], 1;", DROPPED, False),
    "and again": (STORE, f"ld.shared.u32 %r9, [%r3]; {STORE} bar.sync 0;", USED, False),
    "beside data": ("st.shared.v2.u32 [%r3], {%r1, %r9};", "", USED, True),
    "behind data": ("st.shared.v2.u32 [%r3], {%r9, %r1};", "", USED, False),
    "where another lane has data": (f"@%p1 {STORE} @!%p1 st.shared.u32 [%r3], %r1;", "", USED, False),
    "at an unset address": ("st.shared.u32 [%r9], %r1;", "", DROPPED, False),
    "to global memory": ("st.global.u32 [%d2], %r9;", "", DROPPED, False),
}


@pytest.mark.parametrize("what", THROUGH_SMEM)
def test_an_unset_register_is_stored_to_shared_memory(what: str) -> None:
    first, then, use, clean = THROUGH_SMEM[what]
    body = EXCHANGED.replace("FIRST", first).replace("THEN", then).replace("USE", use)
    found = kinds(
        body, np.zeros(64, np.int32), ".shared .align 16 .b8 s[1024];\n", ignore=("out_of_bounds", "misaligned")
    )
    assert found == (set() if clean else {"uninitialised"})


@pytest.mark.parametrize(
    ("wait", "clean"),
    [
        ("mbarrier.try_wait.parity.shared.b64 %p1, [%r2], 1, %r9;", True),  # libcu++'s try_wait_for begins so
        ("nanosleep.u32 %r9;", True),
        ("mbarrier.try_wait.parity.shared.b64 %p1, [%r2], %r9, %r1;", False),
        ("mbarrier.try_wait.parity.shared.b64 %p1, [%r2], %r9, %r9;", False),
    ],
)
def test_an_unset_register_that_says_how_long_to_wait(wait: str, clean: bool) -> None:
    body = f"""mov.u32 %r2, s; setp.eq.u32 %p2, %r1, 0; @%p2 mbarrier.init.shared.b64 [%r2], 1; bar.sync 0; {wait}
 st.global.u32 [%d2], %r1;"""
    found = kinds(body, np.zeros(64, np.int32), ".shared .align 8 .b8 s[8];\n")
    assert found == (set() if clean else {"uninitialised"})
