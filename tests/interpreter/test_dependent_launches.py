"""Planted bugs of programmatic dependent launch: launches that overlap until griddepcontrol.wait (PTX ISA 9.7.13.13)."""

from __future__ import annotations

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.interpreter import GlobalMemory, HazardError, InterpretParams, Launches, parse, run
from kernel_dsl.runtime.interpreter import HazardKind as K

from .launching import SCHEDULES, kernel
from .planted import REGISTERS

ARGS = ".param .u64 a, .param .u64 b"
HEAD = " ld.param.u64 d1, [a]; ld.param.u64 d2, [b]; mul.wide.u32 d3, r1, 4; add.s64 d4, d1, d3; add.s64 d5, d2, d3;\n"
TRIGGER, WAIT = " griddepcontrol.launch_dependents;", " griddepcontrol.wait;"
COPY = " ld.global.u32 r2, [d4]; st.global.u32 [d5], r2;"  # reads a, writes b
# Lanes of one warp wait, the others learn of it by a barrier.
WAIT_AND_TELL = " setp.ge.u32 p1, r1, 32; @p1 bra ON;" + WAIT + "\nON: bar.sync 0;"
SMEM = ".shared .align 128 .b8 t[256]; .shared .align 8 .b64 m; mov.u32 r5, t; mov.u32 r6, m; setp.ne.u32 p2, r1, 0;"
BULK = """ @p2 bra END; mbarrier.init.shared.b64 [r6], 1; fence.mbarrier_init.release.cluster;
 mbarrier.arrive.expect_tx.shared.b64 _, [r6], 256;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r5], [d1], 256, [r6];
L: mbarrier.try_wait.parity.shared.b64 p3, [r6], 0; @!p3 bra L;
END:"""


def sequence(launches: list[tuple[str, str, bool]], schedule: str = "random") -> None:
    """Launches of (body, the two arrays' letters, whether it overlaps), over arrays of one int32 a lane."""
    arrays = {letter: np.zeros(64, np.int32) for letter in "xyzuv"}
    state = Launches()
    for body, letters, overlaps in launches:
        memory = GlobalMemory()
        params = [memory.allocate(arrays[letter], letter).to_bytes(8, "little") for letter in letters]
        module = parse(kernel(ARGS, REGISTERS + HEAD + body + " ret;"))
        run(module, "k", params, grid=(1, 1, 1), block=(64, 1, 1), memory=memory, launches=state, overlaps=overlaps,
            params_cfg=InterpretParams(schedule=schedule))  # fmt: skip


FIRST = (TRIGGER + COPY, "xy", False)
# name: launches that race, the same mended
CASES = {
    "reads before it waits": ([FIRST, (COPY + WAIT, "yz", True)], [FIRST, (WAIT + COPY, "yz", True)]),
    "never waits": ([FIRST, (COPY, "yz", True)], [FIRST, (COPY, "yz", False)]),
    "writes what the first reads": ([FIRST, (COPY + WAIT, "zx", True)], [FIRST, (WAIT + COPY, "zx", True)]),
    "writes what the first writes": ([FIRST, (COPY + WAIT, "zy", True)], [FIRST, (WAIT + COPY, "zy", True)]),
    "another warp reads before the wait": (
        [FIRST, (WAIT_AND_TELL.replace("bar.sync 0;", "") + COPY, "yz", True)],
        [FIRST, (WAIT_AND_TELL + COPY, "yz", True)],
    ),
    "a bulk load before the wait": (
        [FIRST, (SMEM + BULK + WAIT, "yz", True)],
        [FIRST, (SMEM + WAIT + BULK, "yz", True)],
    ),
    "the first lets the second start too early for the one before": (
        [FIRST, (TRIGGER + WAIT, "uv", True), (COPY + WAIT, "yz", True)],
        [FIRST, (WAIT + TRIGGER, "uv", True), (COPY + WAIT, "yz", True)],
    ),
    "the one between never waits": (
        [FIRST, (TRIGGER, "uv", True), (WAIT + COPY, "yz", True)],
        [FIRST, (TRIGGER + WAIT, "uv", True), (WAIT + COPY, "yz", True)],
    ),
    "four launches, none of which waits": (
        [FIRST, (TRIGGER, "uv", True), (TRIGGER, "uv", True), (COPY, "yz", True)],
        [FIRST, (TRIGGER, "uv", True), (TRIGGER, "uv", False), (COPY, "yz", True)],
    ),
    "the first does not let it start": (
        [FIRST, (COPY, "yz", True)],
        [(COPY, "xy", False), (COPY, "yz", True)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_planted_launches(name: str) -> None:
    bad, good = CASES[name]
    for schedule in SCHEDULES:
        with pytest.raises(HazardError, match="while the launch before may still run") as caught:
            sequence(bad, schedule)
        assert caught.value.kind == K.RACE_LAUNCHES
        assert "kernel 'k'" in str(caught.value)
        sequence(good, schedule)


def test_launches_of_other_arrays_do_not_race() -> None:
    sequence([FIRST, (COPY, "uv", True), (COPY, "zz", True)])


@kd.kernel(out_type=lambda x: x)
def first(x, y):
    kd.griddepcontrol_launch_dependents()
    y[...] = x[...] + 1


def second(early: bool):
    @kd.kernel(out_type=lambda y: y)
    def second(y, z):
        if early:
            v = y[...]
            kd.griddepcontrol_wait()
        else:
            kd.griddepcontrol_wait()
            v = y[...]
        z[...] = v * 2

    return second


def test_kernels_of_the_language() -> None:
    """A kernel that waits is launched so that it may start early."""
    x = np.ones(128, np.float32)
    assert (second(False)(first(x, interpret=True), interpret=True) == 4).all()
    with pytest.raises(kd.HazardError) as caught:
        second(True)(first(x, interpret=True), interpret=True)
    assert caught.value.kind == "race_launches"
    assert "kernel 'first'" in str(caught.value)
    assert (second(True)(x, interpret=True) == 2).all()  # nothing runs any more
