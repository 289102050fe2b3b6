"""Planted bugs of scopes: flags, fences and atomics that do not reach those whom they are to order (PTX ISA 8.5 to 8.8)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.interpreter import HazardKind as K

from .launching import kernel
from .planted import Planted, check, swap

PTR = ".param .u64 a"
REGISTERS = " .reg .pred p<9>; .reg .b32 r<9>; .reg .b64 d<9>; mov.u32 r1, %tid.x;\n"


def zeros() -> Any:
    return [np.zeros(64, np.int32)]


TWO = {"grid": 2, "block": 32}
# The writer stores word 1 and raises the flag in word 0; the reader waits for it and reads word 1. By warp or by block.
FLAG = """ ld.param.u64 d1, [a]; WHO setp.eq.u32 p2, r2, 1; @p2 bra READER;
 st.global.u32 [d1+4], 7; fence.acq_rel.gpu; // writer
 st.relaxed.gpu.global.u32 [d1], 1; ret;
READER: ld.relaxed.gpu.global.u32 r3, [d1]; setp.eq.u32 p3, r3, 0; @p3 bra READER;
 fence.acq_rel.gpu; // reader
 ld.global.u32 r4, [d1+4]; st.global.u32 [d1+8], r4; ret;"""
BLOCKS = FLAG.replace("WHO", "mov.u32 r2, %ctaid.x; setp.ne.u32 p1, r1, 0; @p1 ret;")
CLUSTERS = FLAG.replace(
    "WHO", "mov.u32 r2, %clusterid.x; mov.u32 r5, %cluster_ctarank; or.b32 r5, r5, r1; setp.ne.u32 p1, r5, 0; @p1 ret;"
)
WARPS = FLAG.replace("WHO", "shr.u32 r2, r1, 5;").replace(".gpu", ".cta")
VOLATILE = BLOCKS.replace("st.relaxed.gpu", "st.volatile").replace("ld.relaxed.gpu", "ld.volatile")
MEMBAR = VOLATILE.replace("fence.acq_rel.gpu", "membar.gl")
PAIR = {"grid": 2, "cluster": (2, 1, 1), "block": 32}
PAIRS = {"grid": 4, "cluster": (2, 1, 1), "block": 32}
# Two blocks of a cluster, or two clusters: what .cluster holds, and what it does not.
WITHIN = FLAG.replace("WHO", "mov.u32 r2, %cluster_ctarank; setp.ne.u32 p1, r1, 0; @p1 ret;").replace(
    ".gpu", ".cluster"
)
COUNT = " ld.param.u64 d1, [a]; atom.global.gpu.add.u32 r2, [d1], 1; ret;"


def racy(name: str, body: str, line: str, instead: str, kind: K = K.RACE_BLOCKS, **options: Any) -> Planted:
    return swap(name, kind, body, line, instead, params=PTR, args=zeros, **options)


CASES = [
    racy("writer's fence of a block's scope", BLOCKS, "fence.acq_rel.gpu; // writer", "fence.acq_rel.cta; // writer", options=TWO),
    racy("reader's fence of a block's scope", BLOCKS, "fence.acq_rel.gpu; // reader", "fence.acq_rel.cta; // reader", options=TWO),
    racy("no writer's fence", BLOCKS, "fence.acq_rel.gpu; // writer", "", options=TWO),
    racy("no reader's fence", BLOCKS, "fence.acq_rel.gpu; // reader", "// reader", options=TWO),
    racy("store of a block's scope", BLOCKS, "st.relaxed.gpu", "st.relaxed.cta", options=TWO),
    racy("load of a block's scope", BLOCKS, "ld.relaxed.gpu", "ld.relaxed.cta", options=TWO),
    racy("volatile flag, no writer's fence", VOLATILE, "fence.acq_rel.gpu; // writer", "", options=TWO),
    racy("volatile flag, no reader's fence", VOLATILE, "fence.acq_rel.gpu; // reader", "// reader", options=TWO),
    racy("membar.cta by the writer", MEMBAR, "membar.gl; // writer", "membar.cta; // writer", options=TWO),
    racy("membar.cta by the reader", MEMBAR, "membar.gl; // reader", "membar.cta; // reader", options=TWO),
    racy("warps, no writer's fence", WARPS, "fence.acq_rel.cta; // writer", "", K.RACE_GLOBAL),
    racy("warps, no reader's fence", WARPS, "fence.acq_rel.cta; // reader", "// reader", K.RACE_GLOBAL),
    racy("in a cluster, a fence of a block's scope", WITHIN, "fence.acq_rel.cluster; // writer", "fence.acq_rel.cta; // writer",
        K.RACE_BLOCKS, options=PAIR),
    racy("in a cluster, a store of a block's scope", WITHIN, "st.relaxed.cluster", "st.relaxed.cta", K.RACE_BLOCKS, options=PAIR),
    racy("between clusters, a cluster's fence by the writer", CLUSTERS, "fence.acq_rel.gpu; // writer",
        "fence.acq_rel.cluster; // writer", options=PAIRS),
    racy("between clusters, a cluster's fence by the reader", CLUSTERS, "fence.acq_rel.gpu; // reader",
        "fence.acq_rel.cluster; // reader", options=PAIRS),
    racy("between clusters, a cluster's store", CLUSTERS, "st.relaxed.gpu", "st.relaxed.cluster", options=PAIRS),
    racy("between clusters, a cluster's atomic", COUNT, ".gpu", ".cluster", options=PAIRS, mentions=("scope",)),
    Planted("a cluster's atomic within it", K.RACE_BLOCKS, COUNT.replace(".gpu", ".cluster"), COUNT.replace(".gpu", ".cluster"),
        params=PTR, args=zeros, options=PAIR, bad_options={"grid": 4}),
    racy("a block's atomic in a cluster", COUNT.replace(".gpu", ".cluster"), ".cluster", ".cta", K.RACE_BLOCKS, options=PAIR),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_planted_bug(case: Planted) -> None:
    check(case)


@pytest.mark.parametrize(
    "side,place", [("writer", "between the write and the store"), ("reader", "after the load that polls")]
)
def test_the_fix_of_a_relaxed_flag_names_the_fence_that_is_missing(side: str, place: str) -> None:
    text = kernel(PTR, REGISTERS + BLOCKS.replace(f"fence.acq_rel.gpu; // {side}", ""))
    report = kd.check(text, np.zeros(64, np.int32), grid=2, block=32, ignore=("equal_value_race",))
    assert {h.kind for h in report.hazards} == {K.RACE_BLOCKS}
    assert all(h.fix.startswith(f"put fence.acq_rel.gpu {place}") for h in report.hazards), str(report)


def test_a_misaligned_access_names_the_array_and_the_byte() -> None:
    report = kd.check(
        kernel(PTR, REGISTERS + " ld.param.u64 d1, [a]; ld.global.u32 r1, [d1+2]; ret;"),
        np.zeros(64, np.int32),
        grid=1,
        block=32,
    )
    whys = [h.why for h in report.hazards if h.kind == K.MISALIGNED]
    assert whys == ["access of 4 bytes at byte 2 of 'a', where the address is not a multiple of 4"], str(report)
