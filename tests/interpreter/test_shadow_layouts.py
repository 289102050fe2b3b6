"""Races are found however shadow memory lays out what it knows: in parts, in one, with readers apart, after collections."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter import HazardError
from kernel_dsl.runtime.interpreter.checks import columns, parted_shadow, readers
from kernel_dsl.runtime.interpreter.machine import program

from . import test_hazards_equal, test_hazards_memory, test_hazards_order, test_hazards_proxies
from .launching import SCHEDULES, kernel, launch
from .planted import REGISTERS, Planted, check

FILES = (test_hazards_memory, test_hazards_equal, test_hazards_order, test_hazards_proxies)
CASES: list[Planted] = [case for file in FILES for case in getattr(file, "CASES", ())]
ALWAYS = dict.fromkeys((1, 2, 4, 8, 16), 1 << 40)


@pytest.fixture(autouse=True)
def every_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report races of values that nobody needs, too: these tests ask what shadow memory knows."""
    monkeypatch.setattr(program, "may_doubt", lambda code: False)


def in_parts(m: pytest.MonkeyPatch) -> None:
    m.setattr(parted_shadow, "_PART", 64)


def joined(m: pytest.MonkeyPatch) -> None:
    m.setattr(parted_shadow, "_PART", 64)
    m.setattr(parted_shadow, "_ENTRIES", ALWAYS)


def readers_apart(m: pytest.MonkeyPatch) -> None:
    m.setattr(readers, "_PAIRS", ALWAYS)
    m.setattr(readers, "FEW", 0)


def collected(m: pytest.MonkeyPatch) -> None:
    m.setattr(columns, "FEW", 2)
    m.setattr(columns, "_PER_ENTRY", 1 << 40)


LAYOUTS = (in_parts, joined, readers_apart, collected)


def test_there_are_cases() -> None:
    assert len(CASES) > 60 and any("global" in case.name for case in CASES)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_planted_bug(case: Planted, layout, monkeypatch: pytest.MonkeyPatch) -> None:
    layout(monkeypatch)
    check(case)


# All warps read one word, or words of their own and of others, by one instruction, then one warp writes there.
BROADCAST = " ld.param.u64 d1, [a]; ld.global.u32 r2, [d1];\n bar.sync 0;\n setp.ne.u32 p1, r1, WHO; @!p1 st.global.u32 [d1], r2; ret;"
SHARED = """ .shared .align 16 .b32 s[64];
 mov.u32 r3, s; setp.ne.u32 p2, r1, 0; @!p2 st.shared.u32 [r3], r1; bar.sync 0;
 ld.shared.u32 r2, [r3];
 bar.sync 0;
 setp.ne.u32 p1, r1, WHO; @!p1 st.shared.u32 [r3], r2; ret;"""


@pytest.mark.parametrize("who", [0, 32, 96, 127])
@pytest.mark.parametrize("layout", [None, *LAYOUTS], ids=lambda f: f.__name__ if f else "usual")
@pytest.mark.parametrize("body", [BROADCAST, SHARED], ids=["global", "shared"])
def test_a_write_after_all_warps_have_read(body: str, layout, who: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if layout is not None:
        layout(monkeypatch)
    good = REGISTERS + body.replace("WHO", str(who))
    at = good.rindex(" bar.sync 0;")
    bad = good[:at] + good[at:].replace(" bar.sync 0;", "", 1)
    for schedule in SCHEDULES:
        options = {"block": 128, "schedule": schedule, "ignore": ("equal_value_race",)}
        launch(kernel(".param .u64 a", good), "k", [np.zeros(1, np.int32)], **options)
        with pytest.raises(HazardError, match="race_"):
            launch(kernel(".param .u64 a", bad), "k", [np.zeros(1, np.int32)], **options)


# Each warp reads words, then warp WRITER writes to 32 words. It is ordered after all readers but warp LATE.
READERS = """ .shared .align 16 .b32 s[64];
 mov.u32 r3, s; setp.ge.u32 p2, r1, 64; shl.b32 r4, r1, 2; add.u32 r4, r3, r4; @!p2 st.shared.u32 [r4], r1; bar.sync 0;
 shr.u32 r5, r1, 5; and.b32 r6, r1, 31; WHERE shl.b32 r7, r7, 2; add.u32 r7, r3, r7; ld.shared.u32 r2, [r7];
 setp.eq.u32 p3, r5, LATE; @!p3 bar.sync 1, 96;
 setp.ne.u32 p1, r5, WRITER; shl.b32 r8, r6, 2; add.u32 r8, r3, r8; @!p1 st.shared.u32 [r8], r2; ret;"""
WHERES = {
    "one word": "mov.u32 r7, 5;",
    "some lanes": "mov.u32 r7, 5; setp.lt.u32 p4, r6, 9; @!p4 mov.u32 r7, 6;",
    "a word of each lane": "mov.u32 r7, r6;",
    "two classes": "and.b32 r7, r5, 1; shl.b32 r7, r7, 3; add.u32 r7, r7, r6; and.b32 r7, r7, 31;",
    "rows that overlap": "shl.b32 r7, r5, 1; add.u32 r7, r7, r6; and.b32 r7, r7, 31;",
}


@pytest.mark.parametrize("where", WHERES)
def test_every_reader_is_kept(where: str) -> None:
    for late in range(4):
        writer = (late + 1) % 4
        body = READERS.replace("WHERE", WHERES[where]).replace("LATE", str(late)).replace("WRITER", str(writer))
        source = kernel(".param .u64 a", REGISTERS + body)
        with pytest.raises(HazardError, match=rf"(?s)race_shared.*read by [^\n]* warp {late}\b"):
            launch(source, "k", [np.zeros(1, np.int32)], block=128, ignore=("equal_value_race",))
