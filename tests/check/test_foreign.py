"""What nvcc 13.0 makes of CUDA C++: structures by value, constants, the heap, no outputs; fat binaries and cubins with PTX."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.interpreter import encode_tensor_map

from .images import FILL, HEAD, image

FOLDER = Path(__file__).parent
CUDA = FOLDER / "cuda.ptx"


def test_the_heap_of_kernels() -> None:
    out = np.zeros(64, np.int32)
    assert kd.check(CUDA, out, 10, entry="heap", grid=1, block=64).verdict == "none"
    np.testing.assert_array_equal(out, 45 + 10 * np.arange(64))


def test_a_full_heap_gives_a_null_pointer() -> None:
    body = """ .param .b64 a; .param .b64 b; ld.param.u64 %d2, [out]; st.param.b64 [a], 8388609; call (b), malloc, (a);
 ld.param.b64 %d1, [b]; st.global.u64 [%d2], %d1;"""
    out = np.ones(1, np.uint64)
    before = ".extern .func (.param .b64 r) malloc (.param .b64 p);\n"
    assert kd.check(image(".param .u64 out", body, before=before), out, grid=1, block=1).verdict == "none"
    assert out[0] == 0


def test_freed_memory_belongs_to_nobody() -> None:
    (hazard,) = kd.check(CUDA, np.zeros(32, np.int32), entry="use_after_free", grid=1, block=32).hazards
    assert hazard.kind == "out_of_bounds" and hazard.buffer.startswith("heap") and "were freed" in hazard.why


@pytest.mark.parametrize("size,offset,bad", [(10, 8, False), (10, 9, False), (10, 10, True), (16, 15, False), (16, 16, True),
                                             (16, 31, True), (24, 24, True), (24, -1, True)])  # fmt: skip
def test_the_ends_of_allocations(size: int, offset: int, bad: bool) -> None:
    """Each lane stores a byte in or beside its own allocation. Those of other lanes lie before and behind it."""
    body = f""" .param .b64 a; .param .b64 b; st.param.b64 [a], {size}; call (b), malloc, (a); ld.param.b64 %d1, [b];
 st.u8 [%d1+{offset}], 7;"""
    before = ".extern .func (.param .b64 r) malloc (.param .b64 p);\n"
    found = kd.check(image("", body, before=before), grid=1, block=32).hazards
    assert [str(h.kind) for h in found] == ["out_of_bounds"] * bad
    assert not bad or f"of an allocation of {size} bytes" in found[0].why or offset < 0


def test_freeing_twice() -> None:
    body = """ .param .b64 a; .param .b64 b; st.param.b64 [a], 32; call (b), malloc, (a); ld.param.b64 %d1, [b];
 st.param.b64 [a], %d1; call free, (a); call free, (a);"""
    before = ".extern .func (.param .b64 r) malloc (.param .b64 p);\n.extern .func free (.param .b64 p);\n"
    (hazard,) = kd.check(image("", body, before=before), grid=1, block=1).hazards
    assert hazard.kind == "out_of_bounds" and "freed before" in hazard.why


def test_structures_and_constants() -> None:
    out = np.zeros(8, np.float32)
    given = struct.pack("<ifd5s3x", 1, 2.0, 3.0, b"\0\0\0\0\4")
    report = kd.check(CUDA, given, out, 5, entry="by_value", grid=1, block=8)
    assert report.verdict == "none"
    np.testing.assert_array_equal(out, 15 + np.array([1, 2, 3, 4] * 2, np.float32))


def test_symbols() -> None:
    out = np.zeros(8, np.float32)
    given = struct.pack("<ifd5s3x", 0, 0.0, 0.0, bytes(5))
    values = np.array([5, 6, 7, 8], np.float32)
    options = {"entry": "by_value", "grid": 1, "block": 8}
    assert kd.check(CUDA, given, out, 0, symbols={"coefficients": values}, **options).verdict == "none"
    np.testing.assert_array_equal(out, np.tile(values, 2))
    kd.check(CUDA, given, out, 0, **options)
    assert out[0] == 1
    for wrong in ({"nothing": values}, {"coefficients": np.zeros(5)}, {"coefficients": 3}, 3):
        with pytest.raises(kd.Error, match=r"symbols|no variable"):
            kd.check(CUDA, given, out, 0, symbols=wrong, **options)


def test_no_outputs() -> None:
    assert kd.check(CUDA, entry="nothing", grid=3, block=64).verdict == "none up to 10 schedules"
    assert kd.precompiled_cuda_kernel(CUDA.read_bytes(), entry="nothing", grid=3, block=64, interpret=True) == []


def test_a_fat_binary() -> None:
    out = np.zeros(4, np.int32)
    data = (FOLDER / "cuda.fatbin").read_bytes()
    assert kd.check(data, out, 3, entry="heap", grid=1, block=4).verdict == "none" and out[1] == 6
    with pytest.raises(kd.Error):
        kd.check(data[:300], out, 3, entry="heap", grid=1, block=4)


def elf(sections: dict[bytes, bytes]) -> bytes:
    """A 64-bit little-endian ELF file for a GPU with these sections."""
    names = b"\0" + b"\0".join(sections) + b"\0.shstrtab\0"
    parts, rows, at = b"", [(0, 0, 0)], 64
    for name, data in (*sections.items(), (b".shstrtab", names)):
        rows.append((names.index(b"\0" + name + b"\0") + 1, at + len(parts), len(data)))
        parts += data
    table = b"".join(struct.pack("<IIQQQQIIQQ", n, 1, 0, 0, o, s, 0, 0, 1, 0) for n, o, s in rows)
    head = b"\x7fELF\2\1\1" + bytes(9)
    return struct.pack("<16sHHIQQQIHHHHHH", head, 2, 190, 1, 0, 0, at + len(parts), 0, 64, 56, 0, 64, len(rows), len(rows) - 1) + parts + table  # fmt: skip


def test_a_cubin_with_its_ptx() -> None:
    """Cubins made with -G hold their PTX, a zero byte after each line."""
    out = np.zeros(4, np.int32)
    data = elf({b".text.k": bytes(64), b".nv_debug_ptx_txt": FILL.replace("\n", "\0").encode()})
    assert kd.check(data, 7, out, grid=1, block=4).verdict == "none" and out.tolist() == [7] * 4
    with pytest.raises(kd.Error, match="machine code alone"):
        kd.check(elf({b".text.k": bytes(64)}), 7, out, grid=1, block=4)
    within = elf({b".nv_fatbin": (FOLDER / "cuda.fatbin").read_bytes()})
    assert kd.check(within, out, 3, entry="heap", grid=1, block=4).verdict == "none"


def fat_binary(texts: list[tuple[int, str]]) -> bytes:
    """A fat binary of PTX texts, each with its architecture."""
    bodies = [
        struct.pack("<HHIQIIIIIIQQQ", 1, 1, 64, len(t), 0, 0, 0, arch, 64, 0, 0, 0, 0) + t.encode() for arch, t in texts
    ]
    data = b"".join(bodies)
    return struct.pack("<4sHHQ", b"\x50\xed\x55\xba", 1, 16, len(data)) + data


def test_a_binary_of_several_sources_and_architectures() -> None:
    """A shared library has a fat binary for each of its sources: `entry=` and `target=` choose among their texts."""
    old = FILL.replace(".target sm_90a", ".target sm_80")
    first = fat_binary([(80, old.replace("entry k", "entry early")), (90, FILL.replace("entry k", "entry late"))])
    library = elf({b".nv_fatbin": fat_binary([]) + first + fat_binary([(80, old), (90, FILL)])})
    for entry, target in (("k", None), ("k", "sm_80"), ("late", None), ("early", None)):
        out = np.zeros(4, np.int32)
        report = kd.check(library, 7, out, entry=entry, target=target, grid=1, block=4)
        assert report.verdict == "none" and out.tolist() == [7] * 4
    with pytest.raises(kd.Error, match="no entry 'nothing'"):
        kd.check(library, 7, np.zeros(4, np.int32), entry="nothing", grid=1, block=4)


@pytest.mark.parametrize("device,chosen", [("sm_80", 8), ("sm_86", 8), ("sm_90", 8), ("sm_90a", 9), ("sm_100a", 8),
                                           ("sm_103a", 8), ("sm_120a", 12), ("sm_121a", 12), ("sm_110a", 8), (None, 12)])  # fmt: skip
def test_the_text_of_a_binary_that_a_device_runs(device: str | None, chosen: int) -> None:
    """A text for sm_90a is for this device alone, one for sm_120f for its family."""
    texts = [(80, "sm_80", 8), (90, "sm_90a", 9), (120, "sm_120f", 12)]
    data = fat_binary([
        (number, FILL.replace("8.6", "8.8").replace("sm_90a", name).replace("[%d3], %r2", f"[%d3], {word}"))
        for number, name, word in texts
    ])  # fmt: skip
    out = np.zeros(4, np.int32)
    kd.check(data, 7, out, grid=1, block=4, target=device)
    assert out.tolist() == [chosen] * 4


TARGETS = [
    "sm_75",
    "sm_80",
    "sm_86",
    "sm_89",
    "sm_90",
    "sm_90a",
    "sm_100",
    "sm_100a",
    "sm_101",
    "sm_101a",
    "sm_103a",
    "sm_120",
    "sm_120a",
    "sm_121a",
]


@pytest.mark.parametrize("target", TARGETS)
def test_targets(target: str) -> None:
    """An image runs on its own target, and without a suffix on later ones; `target=` names the device."""
    text = FILL.replace("sm_90a", target).replace("8.6", "8.8")
    out = np.zeros(4, np.int32)
    assert kd.check(text, 7, out, grid=1, block=4).verdict == "none" and out[0] == 7
    later = target[-1] != "a"
    if later:
        assert kd.check(text, 7, out, grid=1, block=4, target="sm_121a").verdict == "none"
    if target == "sm_75":
        return
    with pytest.raises(kd.Error, match="the device is"):
        kd.check(text, 7, out, grid=1, block=4, target="sm_75")


def test_a_block_is_as_large_as_the_targets() -> None:
    """sm_75 has 64 KiB of SMEM, sm_86 has 99, sm_80 has 163."""
    for target, most in (("sm_75", 64), ("sm_86", 99), ("sm_80", 163), ("sm_90a", 227)):
        text = FILL.replace("sm_90a", "sm_75")
        assert (
            kd.check(text, 7, np.zeros(4, np.int32), grid=1, block=4, smem=most << 10, target=target).verdict == "none"
        )
        with pytest.raises(kd.Error, match="bytes of SMEM"):
            kd.check(text, 7, np.zeros(4, np.int32), grid=1, block=4, smem=(most << 10) + 1, target=target)


TMA = image(
    ".param .align 64 .b8 map[128], .param .u64 out",
    """ mov.u32 %r1, tile; mov.u32 %r2, bar; ld.param.u64 %d5, [out]; mov.u64 %d1, map; cvta.param.u64 %d1, %d1;
 mbarrier.init.shared.b64 [%r2], 1; fence.proxy.async; mbarrier.arrive.expect_tx.shared.b64 %d3, [%r2], 64; mov.u32 %r4, 4; mov.u32 %r5, 1;
 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d1, {%r4, %r5}], [%r2];
W: mbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0; @!%p1 bra W;
 ld.shared.u32 %r6, [%r1+20]; st.global.u32 [%d5], %r6;""",
    head=HEAD,
    before=".shared .align 128 .b8 tile[64];\n.shared .align 8 .b8 bar[8];\n",
)


@pytest.mark.parametrize("how", ["check", "precompiled"])
def test_a_tensor_map_by_value(how: str) -> None:
    x = np.arange(16 * 8, dtype=np.int32).reshape(16, 8)
    out = np.zeros(1, np.int32)
    given: Any = kd.check.tensor_map(x, (4, 4))
    if how == "check":
        report = kd.check(TMA, given, out, grid=1, block=1)
        assert report.hazards == []
        assert report.outputs[0] is x and report.outputs[1] is out
    else:
        kd.precompiled_cuda_kernel(TMA, given, out, grid=1, block=1, interpret=True)
    assert out[0] == x[1 + 1, 4 + 1]


def test_bytes_of_a_tensor_map_are_no_array() -> None:
    made = encode_tensor_map(0, kd.int32, (8, 16), (32,), (4, 4), (1, 1), *_plain())
    assert {h.kind for h in kd.check(TMA, made, np.zeros(1, np.int32), grid=1, block=1).hazards} >= {"descriptor"}


def _plain() -> tuple[Any, Any]:
    from kernel_dsl.compiled import OobFill, Swizzle

    return Swizzle.NONE, OobFill.ZEROS


_NONE: list[dict[str, Any]] = [
    {"box": (4,)}, {"box": "x"}, {"box": (4, 0)}, {"box": (4, 257)}, {"box": (4, 3)}, {"swizzle": 16}, {"box": (4, 64), "swizzle": 128},
    {"array": 3}, {"array": np.zeros((0, 8), np.int32)}, {"array": np.zeros((16, 16), np.int32)[:, ::2]}, {"array": np.zeros((16, 9), np.int32)},
    {"array": np.int32(3), "box": ()},
]  # fmt: skip


@pytest.mark.parametrize("options", _NONE)
def test_tensor_maps_that_are_none(options: dict[str, Any]) -> None:
    given = {"array": np.zeros((16, 8), np.int32), "box": (4, 4), **options}
    with pytest.raises(kd.Error):
        kd.check.tensor_map(given["array"], given["box"], swizzle=given.get("swizzle", 0))


@pytest.mark.gpu
@pytest.mark.tma
def test_a_tensor_map_on_a_gpu() -> None:
    x, out = np.arange(16 * 8, dtype=np.int32).reshape(16, 8), np.zeros(1, np.int32)
    kd.precompiled_cuda_kernel(TMA, kd.check.tensor_map(x, (4, 4)), out, grid=1, block=1, interpret=False)
    assert out[0] == x[2, 5]
