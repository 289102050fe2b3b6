"""`kd.check`: images and kernels, arguments, schedules, verdicts, outputs, sequences."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd

from ..interpreter.launching import kernel
from ..interpreter.planted import REGISTERS
from ..interpreter.test_explore import ANYONE, FIRST, HELD, RING
from .images import ADD, FILL, RACE, image


def zeros(n: int = 4) -> Any:
    return np.zeros(n, np.int32)


@pytest.mark.parametrize("form", [str, str.encode, lambda text: bytearray(text.encode() + b"\0")])
def test_parameters_in_raw_order(form: Any) -> None:
    out = zeros()
    report = kd.check(form(FILL), 7, out, entry="k", grid=1, block=4)
    assert report.verdict == "none" and report.hazards == []
    assert out.tolist() == [7] * 4 and report.outputs[0] is out


def test_each_schedule_starts_from_the_same_memory() -> None:
    out = np.arange(4, dtype=np.int32)
    kd.check(ADD, 10, out, grid=1, block=4)
    assert out.tolist() == [10, 11, 12, 13]


def test_a_race_is_reported_and_not_raised() -> None:
    report = kd.check(RACE, 0, zeros(), grid=2, block=64)
    (hazard,) = report.hazards
    assert report.verdict == "found" and hazard.kind == "race_blocks" and hazard.kind is kd.HazardKind.RACE_BLOCKS
    assert (hazard.file, hazard.line, hazard.source) == ("<ptx>", 7, "st.global.u32 [%d1], %r1;")
    assert (hazard.other_file, hazard.other_line) == ("<ptx>", 7)
    assert (hazard.buffer, hazard.index) == ("out", (0,))
    assert "block" in hazard.who and "block" in hazard.other_who and hazard.who != hazard.other_who
    assert "nothing orders" in hazard.why and "semaphore" in hazard.fix
    assert hazard.schedules == ["eager", "late", *(f"random seed {n}" for n in range(8))]
    with pytest.raises(kd.HazardError, match="race_blocks") as caught:
        report.raise_for_hazards()
    assert caught.value.kind == "race_blocks"


def test_no_hazard_raises_nothing() -> None:
    kd.check(FILL, 1, zeros(), grid=1, block=4).raise_for_hazards()


def test_ignored_kinds() -> None:
    report = kd.check(RACE, 0, zeros(), grid=2, block=64, ignore=("race_blocks",))
    assert report.verdict == "none" and not report.hazards
    assert kd.check(RACE, 0, zeros(), grid=2, block=64, ignore="race_shared").verdict == "found"


@pytest.mark.parametrize("options", [{"target": ""}, {"target": 0}, {"ignore": b""}, {"schedules": b""}])
def test_empty_options_of_another_type(options: dict[str, Any]) -> None:
    with pytest.raises(kd.Error, match=next(iter(options))):
        kd.check(FILL, 0, zeros(), grid=1, block=4, **options)


FLAG = image(".param .u64 out", " ld.param.u64 %d1, [out]; atom.global.add.u32 %r1, [%d1], 1;")


def test_the_verdict_counts_schedules_where_they_matter() -> None:
    assert kd.check(FLAG, zeros(), grid=2, block=32).verdict == "none up to 10 schedules"
    report = kd.check(FLAG, zeros(), grid=2, block=32, schedules=("eager", "random:3"))
    assert report.verdict == "none up to 4 schedules"
    assert kd.check(FLAG, zeros(), grid=2, block=32, schedules="late,random").schedules == ("late", "random seed 0")


def test_what_ends_a_run_is_a_hazard_too() -> None:
    (hazard,) = kd.check(image("", " trap;"), grid=1, block=32).hazards
    assert hazard.kind == "trap" and hazard.other is None and hazard.line == 6
    report = kd.check(
        image("", "L: add.u32 %r1, %r1, 1; bra L;"), grid=1, block=32, schedules=["eager"], step_budget=500
    )
    assert [h.kind for h in report.hazards] in (["step_budget"], ["livelock"])


SCALARS = [
    (".f32", 3, np.float32(3)), (".f32", 0.1, np.float32(0.1)), (".f64", 0.1, np.float64(0.1)), (".f16", 0.1, np.float16(0.1)),
    (".u8", 200, np.uint8(200)), (".s16", -3, np.int16(-3)), (".u32", -1, np.uint32(2**32 - 1)), (".s32", 2**31, np.uint32(2**31)),
    (".u64", 2**64 - 1, np.uint64(2**64 - 1)), (".b32", 1.5, np.float32(1.5)), (".b64", 1.5, np.float64(1.5)), (".u8", True, np.uint8(1)),
    (".b32", np.float32(2), np.float32(2)), (".u64", None, np.uint64(0)), (".b16", ml_dtypes.bfloat16(2.5), ml_dtypes.bfloat16(2.5)),
    (".align 8 .b8", struct.pack("<iq", 3, 4), b""), (".align 4 .b8", bytes(range(12)), b""),
]  # fmt: skip


@pytest.mark.parametrize("declared,given,stored", SCALARS, ids=[f"{d} {g!r}" for d, g, _ in SCALARS])
def test_scalars_take_the_declared_type(declared: str, given: Any, stored: Any) -> None:
    """The kernel copies its parameter's bytes into memory."""
    data = given if isinstance(given, bytes) else stored.tobytes()
    array = f"[{len(data)}]" if "align" in declared else ""
    body = " ld.param.u64 %d1, [out];\n" + "".join(
        f" ld.param.u8 %h1, [x+{i}]; st.global.u8 [%d1+{i}], %h1;\n" for i in range(len(data))
    )
    out = np.zeros(len(data), np.uint8)
    kd.check(
        image(f".param {declared} x{array}, .param .u64 out", body), given, out, grid=1, block=1, schedules="eager"
    )
    assert out.tobytes() == data


def test_arrays_twice_and_with_strides() -> None:
    two = image(
        ".param .u64 a, .param .u64 b",
        " ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; ld.global.u32 %r1, [%d1+8]; st.global.u32 [%d2], %r1;",
    )
    x = np.arange(8, dtype=np.int32)
    kd.check(two, x, x, grid=1, block=1)
    assert x[0] == 2
    y = np.arange(8, dtype=np.int32)
    kd.check(two, y[1::2], np.zeros(1, np.int32), grid=1, block=1)
    assert kd.check(two, y, y[:1], grid=1, block=1).verdict == "none" and y[0] == 2


def test_a_read_only_array() -> None:
    out = zeros()
    out.flags.writeable = False
    (hazard,) = kd.check(FILL, 1, out, grid=1, block=4).hazards
    assert hazard.kind == "read_only" and hazard.buffer == "out" and out.tolist() == [0] * 4


CLUSTER = image(
    ".param .u64 out", " ld.param.u64 %d1, [out]; mov.u32 %r1, %cluster_nctaid.y; st.global.u32 [%d1], %r1;"
).replace("out) {", "out) .maxntid 64 {")


def test_blocks_and_clusters_as_ints_and_tuples() -> None:
    out = zeros()
    kd.check(CLUSTER, out, grid=(1, 2), block=(8, 4), cluster=(1, 2), schedules="eager", ignore="race_blocks")
    assert out[0] == 2
    kd.check(CLUSTER, out, grid=2, block=32, cluster=2, schedules="eager", ignore=["race_blocks"])
    assert out[0] == 1
    assert kd.check(CLUSTER, out, grid=(0, 5), block=32).launches == ()


def test_dynamic_shared_memory() -> None:
    body = """ ld.param.u64 %d1, [out]; mov.u32 %r1, s; mov.u32 %r2, %dynamic_smem_size; add.u32 %r3, %r1, %r2; st.shared.u32 [%r3+-4], 5;
 ld.shared.u32 %r4, [%r3+-4]; st.global.u32 [%d1], %r4;"""
    text = image(".param .u64 out", body, before=".extern .shared .align 16 .b8 s[];\n")
    out = zeros()
    assert kd.check(text, out, grid=1, block=1, smem=64).verdict == "none" and out[0] == 5
    assert kd.check(text, out, grid=1, block=1, smem=0).hazards[0].kind == "out_of_bounds"


def test_a_file_names_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "race.ptx"
    path.write_text(RACE)
    for given in (path, str(path)):
        assert kd.check(given, 0, zeros(), grid=2, block=64, schedules="eager").hazards[0].file == str(path)
    for missing in (tmp_path / "none.ptx", str(tmp_path / "none.ptx")):
        with pytest.raises(kd.Error, match=r"none\.ptx' can't be read"):
            kd.check(missing, grid=1, block=64)


# --- traced kernels -------------------------------------------------------------------------------

X = np.arange(256, dtype=np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct(X.shape, kd.float32), grid=(2,))
def doubled_by_both(x: Any, out: Any) -> None:
    out[...] = x[...] * 2 + kd.program_id(0)


@kd.kernel(out_type=(kd.ShapeDtypeStruct(X.shape, kd.float32), kd.ShapeDtypeStruct(X.shape, kd.float32)))
def doubled_and_halved(x: Any, twice: Any, half: Any) -> None:
    twice[...] = x[...] * 2
    half[...] = x[...] / 2


def test_a_traced_kernel() -> None:
    report = kd.check(doubled_and_halved, X)
    assert report.verdict == "none" and report.launches == ("doubled_and_halved",)
    twice, half = report.outputs
    np.testing.assert_array_equal(twice, X * 2)
    np.testing.assert_array_equal(half, X / 2)


def test_a_race_of_a_traced_kernel_is_at_the_authors_line() -> None:
    (hazard,) = kd.check(doubled_by_both, X).hazards
    assert hazard.file == __file__ and "program_id" in hazard.source and hazard.line == hazard.other_line
    assert hazard.buffer == "out" and hazard.side.ptx_line > 0


def test_a_traced_kernel_has_a_launch_of_its_own() -> None:
    with pytest.raises(kd.Error, match="grid= is of images"):
        kd.check(doubled_and_halved, X, grid=1)


# --- sequences ------------------------------------------------------------------------------------


def test_launches_that_follow_one_another_share_arrays() -> None:
    out = zeros()
    steps = [(FILL, 7, out, {"grid": 1, "block": 4}), kd.check.launch(ADD, 3, out, grid=1, block=4)]
    report = kd.check.sequence(steps)
    assert report.verdict == "none" and report.launches == ("k", "k") and out.tolist() == [10] * 4
    assert len(report.outputs) == 2 and report.outputs[1][0] is out
    assert kd.check.sequence(steps[:1]).outputs[0][0] is out  # a list of one


def test_a_sequence_of_traced_kernels() -> None:
    a, b, c = (np.zeros_like(X) for _ in range(3))
    report = kd.check.sequence(
        [kd.check.launch(doubled_and_halved, X, out=(a, b)), kd.check.launch(doubled_and_halved, a, out=(c, b))]
    )
    assert report.verdict == "none"
    np.testing.assert_array_equal(c, X * 4)


@pytest.mark.parametrize("wrong", [3, [3], [()], "text"])
def test_no_sequence(wrong: Any) -> None:
    with pytest.raises(kd.Error):
        kd.check.sequence(wrong)


EARLY = image(
    ".param .u64 a, .param .u64 b",
    """ ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; mov.u32 %r1, %tid.x; mul.wide.u32 %d3, %r1, 4; add.s64 %d1, %d1, %d3; add.s64 %d2, %d2, %d3;
 griddepcontrol.launch_dependents; FIRST ld.global.u32 %r2, [%d1]; SECOND add.u32 %r2, %r2, 1; st.global.u32 [%d2], %r2;""",
)


@pytest.mark.parametrize(
    ("early", "wait", "found"), [(True, "FIRST", False), (True, "SECOND", True), (False, "SECOND", False)]
)
def test_launches_that_start_early(early: bool, wait: str, found: bool) -> None:
    """What a launch reads before griddepcontrol.wait, the launch before may still write, if it starts early."""
    text = EARLY.replace(wait, "griddepcontrol.wait;").replace("FIRST", "").replace("SECOND", "")
    a, b, c = (np.full(32, n, np.int32) for n in (1, 0, 0))
    steps = [
        kd.check.launch(text, x, y, grid=1, block=32, programmatic_dependent_launch=e)
        for x, y, e in ((a, b, False), (b, c, early))
    ]
    report = kd.check.sequence(steps)
    assert {h.kind for h in report.hazards} == ({"race_launches"} if found else set())
    assert (c == 3).all()


def test_the_launch_attribute_is_of_images() -> None:
    @kd.kernel(out_type=lambda x: x)
    def same(x, out):
        out[...] = x[...]

    with pytest.raises(kd.Error, match="programmatic_dependent_launch"):
        kd.check.sequence([kd.check.launch(same, np.zeros(128, np.float32), programmatic_dependent_launch=True)])


@pytest.mark.parametrize(("body", "verdict"), [(RING, "none"), (HELD, "none"), (ANYONE, "none"), (FIRST, "found")])
def test_orders_of_shared_memory_and_barriers_are_explored(body: str, verdict: str) -> None:
    """What the schedules miss, one order shows; where no order is left the verdict is 'none'."""
    text = kernel(".param .u64 a", REGISTERS + body)
    block = 96 if body == HELD else 64
    report = kd.check(text, np.zeros(64, np.int32), grid=1, block=block, schedules=("eager", "late"))
    assert report.verdict == verdict
    if report.hazards:
        assert report.hazards[0].schedules == ["order 2"]
    alone = kd.check(text, np.zeros(64, np.int32), grid=1, block=block, schedules="eager")
    assert alone.verdict == "none up to 1 schedules"
