"""tcgen05 as programs: products of each kind against float64 ones of matrices laid out on the host, and moves of each shape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kernel_dsl.runtime.interpreter import HazardError

from .launching import SCHEDULES, launch
from .test_tma import swizzle_bytes

HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n"
SWIZZLE = {0: 0, 128: 2, 64: 4, 32: 6}
DTYPES: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2, "s8": np.int8, "u8": np.uint8, "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn, "e2m1": ml_dtypes.float4_e2m1fn,
}  # fmt: skip
KIND = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "s8": "i8", "u8": "i8"}
CODE = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5, "u8": 0, "s8": 1}
DTYPE = {"f16": 0, "f32": 1, "s32": 2}
BOUND = {"f32": 2e-6, "f16": 1e-3, "s32": 0}
RNG = np.random.default_rng(3)


def matrix(shape: tuple[int, ...], type_: str) -> np.ndarray:
    if type_ in ("s8", "u8"):
        info = np.iinfo(DTYPES[type_])
        return RNG.integers(info.min, info.max + 1, shape).astype(DTYPES[type_])
    x = RNG.standard_normal(shape).astype(DTYPES[type_])
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) if type_ == "tf32" else x


def codes(x: np.ndarray, type_: str) -> np.ndarray:
    """Elements in bytes: of 4 and 6 bits, sixteen at the start of 16 bytes."""
    if type_ not in ("e2m1", "e2m3", "e3m2"):
        return x
    raw, out = x.view(np.uint8).reshape(-1, 16), np.zeros((x.size // 16, 16), np.uint8)
    bits = 4 if type_ == "e2m1" else 6
    for n, chunk in enumerate(raw):
        whole = sum(int(c) << (bits * i) for i, c in enumerate(chunk))
        out[n] = np.frombuffer(whole.to_bytes(16, "little"), np.uint8)
    return out.reshape(x.shape)


def k_major(x: np.ndarray, swizzle: int) -> tuple[np.ndarray, int]:
    """(rows, k) in memory, and its descriptor without an address: rows of `swizzle` bytes, or cores of 8 rows of 16 bytes."""
    if swizzle:
        assert x.shape[1] * x.itemsize == swizzle
        return swizzle_bytes(np.ascontiguousarray(x), swizzle), descriptor(swizzle, 16, 8 * swizzle)
    raw = np.ascontiguousarray(x).view(np.uint8).reshape(x.shape[0] // 8, 8, -1, 16)
    cores = raw.transpose(2, 0, 1, 3)  # (chunk of k, group of rows, row, byte)
    return np.ascontiguousarray(cores), descriptor(0, x.shape[0] * 16, 128)


def mn_major(x: np.ndarray, swizzle: int) -> tuple[np.ndarray, int]:
    """(rows, k) in memory with the rows of one k beside each other: atoms of `swizzle` bytes by 8 k."""
    per = swizzle // x.itemsize
    atoms = np.ascontiguousarray(x.T).reshape(x.shape[1] // 8, 8, x.shape[0] // per, per).transpose(2, 0, 1, 3)
    data = np.concatenate([swizzle_bytes(np.ascontiguousarray(a.reshape(-1, per)), swizzle).reshape(-1) for a in atoms])
    return data, descriptor(swizzle, x.shape[1] // 8 * 8 * swizzle, 8 * swizzle)


def atoms_of_32(x: np.ndarray) -> tuple[np.ndarray, int]:
    """Words (rows, k) in memory with rows beside each other: 128 bytes by 4 k, of which 32 bytes move together."""
    atoms = np.ascontiguousarray(x.T).reshape(x.shape[1] // 4, 4, x.shape[0] // 32, 4, 8).transpose(2, 0, 1, 3, 4)
    out = np.empty_like(atoms)
    for row in range(4):
        for piece in range(4):
            out[:, :, row, piece ^ row] = atoms[:, :, row, piece]
    return out, descriptor(0, x.shape[1] // 4 * 512, 512) | 1 << 61


def descriptor(swizzle: int, leading: int, stride: int) -> int:
    return leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | SWIZZLE[swizzle] << 61


@dataclass(frozen=True)
class Case:
    """One product, repeated over the k of its swizzle."""

    a: str = "f16"
    b: str = "f16"
    d: str = "f32"
    m: int = 128
    n: int = 64
    swizzle: int = 128
    turned: tuple[bool, bool] = (False, False)
    negative: int = 0  # bits: A, B
    accumulates: bool = False
    scale: int = 0
    off: int = 0  # lanes without output, of the first 32
    in_tensor: bool = False
    saturates: bool = False

    @property
    def word(self) -> int:
        found = (
            DTYPE[self.d] << 4 | CODE[self.a] << 7 | CODE[self.b] << 10 | self.negative << 13 | int(self.saturates) << 3
        )
        return found | int(self.turned[0]) << 15 | int(self.turned[1]) << 16 | self.n >> 3 << 17 | self.m >> 4 << 24


def stored(x: np.ndarray, type_: str, case: Case, turned: bool) -> tuple[np.ndarray, int, int]:
    """A matrix in memory, its descriptor, and bytes from one product's k to the next."""
    x = codes(x, type_)
    if turned and x.itemsize == 4:
        return *atoms_of_32(x), 1024
    data, found = mn_major(x, case.swizzle) if turned else k_major(x, case.swizzle)
    step = 32 // x.itemsize // 8 * 8 * case.swizzle if turned else 32 if case.swizzle else x.shape[0] * 32
    return np.ascontiguousarray(data), found, step


def program(case: Case, a_bytes: int, b_bytes: int, descs: tuple[int, int], steps: int, by: tuple[int, int]) -> str:
    """Copies A and B in, starts D with 1, multiplies `steps` times, and writes D's 128 lanes by n words out."""
    kind = KIND.get(case.a, "f8f6f4")
    columns = ", ".join(f"v{i}" for i in range(case.n))
    off = f"{{{', '.join(str(case.off) for _ in range(4))}}}, " if case.off else ""
    products = ""
    for i in range(steps):
        a = f"[t0+{256 + 8 * i}]" if case.in_tensor else "d5"
        also = f", {case.scale}" if case.scale else ""
        products += f""" add.s64 d5, d3, {i * by[0] >> 4}; add.s64 d6, d4, {i * by[1] >> 4};
 setp.ne.u32 p3, {int(i > 0 or case.accumulates)}, 0;
 @p2 tcgen05.mma.cta_group::1.kind::{kind} [t0], {a}, d6, {case.word}, {off}p3{also if not i else ""};\n"""
    to_tensor = ""
    if case.in_tensor:  # each thread brings its row of A: 32 bytes a product
        words = ", ".join(f"v{i}" for i in range(8 * steps))
        loads = "".join(f" ld.global.b32 v{i}, [d9+{4 * i}];" for i in range(8 * steps))
        to_tensor = f""" ld.param.u64 d1, [a]; mul.wide.u32 d9, r1, {32 * steps}; add.s64 d9, d9, d1;
{loads} add.u32 r9, t1, 256; tcgen05.st.sync.aligned.32x32b.x{8 * steps}.b32 [r9], {{{words}}};
 tcgen05.wait::st.sync.aligned;\n"""
    start = {"f32": 0x3F800000, "f16": 0x3C00, "s32": 1}[case.d]
    ones = "".join(f" mov.b32 v{i}, {start};" for i in range(case.n))
    stores = "".join(f" st.global.b32 [d8+{4 * i}], v{i};\n" for i in range(case.n))
    copies = "".join(
        f""" ld.param.u64 d1, [{name}]; shl.b32 r4, r1, 2;
L{name}: setp.ge.u32 p1, r4, {size}; @p1 bra E{name}; cvt.u64.u32 d7, r4; add.s64 d8, d1, d7; ld.global.u32 r5, [d8];
 add.u32 r6, r2, r4; st.shared.u32 [r6+{at}], r5; add.u32 r4, r4, 512; bra L{name};
E{name}:\n""" for name, size, at in (("a", a_bytes, 0), ("b", b_bytes, a_bytes)))  # fmt: skip
    return f"""{HEAD}.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 out) {{
 .reg .pred p<6>; .reg .b32 r<20>; .reg .b64 d<12>; .reg .b32 v<256>; .reg .b32 t<2>;
 .shared .align 1024 .b8 s[{a_bytes + b_bytes}]; .shared .align 8 .b8 bar[8]; .shared .align 4 .b8 slot[4];
 mov.u32 r1, %tid.x; mov.u32 r2, s; mov.u32 r7, bar; mov.u32 r8, slot; shr.u32 r3, r1, 5;
 setp.eq.u32 p2, r1, 0; setp.eq.u32 p4, r3, 0;
 @p4 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [r8], 512;
 @p2 mbarrier.init.shared.b64 [r7], 1;
{copies} fence.proxy.async.shared::cta; bar.sync 0;
 ld.shared.b32 t0, [r8]; shl.b32 t1, r3, 21; add.u32 t1, t1, t0;
{ones} tcgen05.st.sync.aligned.32x32b.x{case.n}.b32 [t1], {{{columns}}}; tcgen05.wait::st.sync.aligned;
{to_tensor} bar.sync 0;
 shr.u32 r9, r2, 4; cvt.u64.u32 d3, r9; add.s64 d4, d3, {a_bytes >> 4}; or.b64 d3, d3, {descs[0]}; or.b64 d4, d4, {descs[1]};
{products} @p2 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [r7];
W: mbarrier.try_wait.parity.shared.b64 p5, [r7], 0; @!p5 bra W;
 tcgen05.ld.sync.aligned.32x32b.x{case.n}.b32 {{{columns}}}, [t1]; tcgen05.wait::ld.sync.aligned;
 ld.param.u64 d7, [out]; mul.wide.u32 d8, r1, {4 * case.n}; add.s64 d8, d8, d7;
{stores} bar.sync 0;
 @p4 tcgen05.dealloc.cta_group::1.sync.aligned.b32 t0, 512;
 ret;
}}
"""


def run(case: Case, schedule: str = "eager", **options: Any) -> None:
    size = np.dtype(DTYPES[case.a]).itemsize
    depth = max(case.swizzle, 32) // size if not all(case.turned) else 64 // size
    a, b = matrix((case.m, depth), case.a), matrix((case.n, depth), case.b)
    (left, da, ga), (right, db, gb) = (stored(*given) for given in (
        (a, case.a, case, case.turned[0]), (b, case.b, case, case.turned[1])))  # fmt: skip
    given = left
    if case.in_tensor:
        given = np.ascontiguousarray(a)
    text = program(case, given.nbytes, right.nbytes, (da, db), depth * size // 32, (ga, gb))
    out = np.zeros((128, case.n), np.uint32)
    launch(text, "k", [given.view(np.uint8).reshape(-1), right.view(np.uint8).reshape(-1), out], block=128,
           schedule=schedule, target="sm_100a", **options)  # fmt: skip
    sign = -1 if case.negative in (1, 2) else 1
    exact = sign * (a.astype(np.float64) @ b.astype(np.float64).T) + (2.0**-case.scale if case.accumulates else 0)
    bound = BOUND[case.d] * (abs(a.astype(np.float64)) @ abs(b.astype(np.float64)).T + 1)
    if case.d == "f16":
        values = out.astype(np.uint16).view(np.float16).astype(float)
    else:
        values = out.view(np.float32 if case.d == "f32" else np.int32).astype(float)
    lanes = np.arange(128) if case.m == 128 else np.arange(64) // 16 * 32 + np.arange(64) % 16
    kept = np.array([bool(case.off >> (lane % 32) & 1) for lane in lanes])
    assert (abs(values[lanes] - exact)[~kept] <= bound[~kept]).all()
    assert (values[lanes[kept]] == 1).all()
    assert (values[np.setdiff1d(np.arange(128), lanes)] == 1).all()


CASES = [
    *(Case(t, t, swizzle=s) for t in ("f16", "bf16", "tf32") for s in (128, 64, 32, 0)),
    *(Case(a, b, swizzle=32, n=16) for a in ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1") for b in ("e4m3", "e3m2", "e2m1")),
    Case(d="f16"), Case("e4m3", "e5m2", "f16", m=64, n=128), Case(m=64), Case(m=64, n=128, swizzle=64), Case(n=128), Case(n=8),
    Case("s8", "u8", "s32"), Case("u8", "u8", "s32", n=32), Case("s8", "s8", "s32", saturates=True, accumulates=True),
    Case(turned=(False, True)), Case(turned=(True, False)), Case("bf16", "bf16", turned=(True, True)),
    Case("e4m3", "e4m3", turned=(True, True), n=128), Case("tf32", "tf32", turned=(True, True)), Case("s8", "s8", "s32", turned=(True, False)),
    Case(negative=1), Case(negative=2), Case(negative=3), Case(accumulates=True), Case("tf32", "tf32", accumulates=True, scale=3),
    Case(d="f16", accumulates=True), Case(off=0xF0F0000F), Case(m=64, off=0x3), Case(in_tensor=True, n=32), Case("bf16", "bf16", in_tensor=True, swizzle=64),
    Case("e4m3", "e4m3", in_tensor=True, n=32), Case("s8", "s8", "s32", in_tensor=True), Case("tf32", "tf32", in_tensor=True),
]  # fmt: skip


@pytest.mark.sampled(14)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_product(case: Case) -> None:
    run(case)


@pytest.mark.parametrize("type_", ["e2m1", "e2m3", "e3m2"])
def test_narrow_elements_in_tensor_memory_are_refused(type_: str) -> None:
    """How they are packed there is not known to the interpreter."""
    with pytest.raises(HazardError, match=f"A of {type_} in tensor memory is not interpreted"):
        run(Case(type_, "e4m3", in_tensor=True, swizzle=32, n=16))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules(schedule: str) -> None:
    for case in (Case(), Case("e4m3", "e4m3", m=64), Case(in_tensor=True)):
        run(replace(case, n=16), schedule)


# --- pairs of blocks ---------------------------------------------------------------------------------------------------


def paired(text: str, rows: int, n: int, sizes: tuple[int, int]) -> str:
    """The program of a product, for two blocks that each bring half of A's rows and of B's, and get half of D."""
    meet = " barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"
    text = text.replace("cta_group::1", "cta_group::2").replace(
        "setp.eq.u32 p2, r1, 0;", "mov.u32 r11, %cluster_ctarank; setp.eq.u32 p2, r1, 0;"
    )
    for name, size in (("a", sizes[0]), ("b", sizes[1]), ("out", 512 * n)):
        register = "d7" if name == "out" else "d1"
        load = f"ld.param.u64 {register}, [{name}];"
        assert load in text
        text = text.replace(load, f"{load} mul.wide.u32 d10, r11, {size}; add.s64 {register}, {register}, d10;")
    text = text.replace(" ld.shared.b32 t0, [r8];", meet + " ld.shared.b32 t0, [r8];").replace(
        " bar.sync 0;\n shr.u32 r9", meet + " shr.u32 r9"
    )
    text = (
        text.replace("@p2 tcgen05.mma", "@p3 tcgen05.mma")
        .replace("p3;\n", "p5;\n")
        .replace("setp.ne.u32 p3,", "setp.ne.u32 p5,")
    )
    text = text.replace("add.s64 d4, d3,", "setp.eq.and.u32 p3, r11, 0, p2; add.s64 d4, d3,")
    commit = "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster"
    text = text.replace(f"@p2 {commit}.b64 [r7];", f"mov.u16 h1, 3; @p3 {commit}.multicast::cluster.b64 [r7], h1;")
    return text.replace(" bar.sync 0;\n @p4 tcgen05.dealloc", meet + " @p4 tcgen05.dealloc").replace(
        ".reg .pred p<6>;", ".reg .pred p<6>; .reg .b16 h<2>;"
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "case",
    [Case(m=256, n=32), Case(m=128, n=32), Case("e4m3", "e4m3", m=256, n=64), Case("s8", "s8", "s32", m=128, n=64)],
    ids=str,
)
def test_pair(case: Case, schedule: str) -> None:
    size = np.dtype(DTYPES[case.a]).itemsize
    depth = 128 // size
    a, b = matrix((case.m, depth), case.a), matrix((case.n, depth), case.b)
    rows, half = case.m // 2, case.n // 2
    left = [stored(x, case.a, case, False) for x in (a[:rows], a[rows:])]
    right = [stored(x, case.b, case, False) for x in (b[:half], b[half:])]
    sizes = left[0][0].nbytes, right[0][0].nbytes
    width = case.n if case.m == 256 else half
    text = program(replace(case, n=width), *sizes, (left[0][1], right[0][1]), 4, (32, 32))
    text = text.replace(str(replace(case, n=width).word), str(case.word))
    out = np.zeros((2, 128, width), np.uint32)
    given = [np.stack([x[0].view(np.uint8).reshape(-1) for x in pieces]) for pieces in (left, right)]
    launch(
        paired(text, rows, width, sizes),
        "k",
        [*given, out],
        grid=2,
        block=128,
        cluster=(2, 1, 1),
        schedule=schedule,
        target="sm_100a",
    )
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    values = out.view(np.float32 if case.d == "f32" else np.int32).astype(float)
    if case.m == 128:  # the upper lanes hold the second half of the columns
        values = np.concatenate([values[:, :64], values[:, 64:]], axis=2)
    bound = BOUND[case.d] * (abs(a.astype(np.float64)) @ abs(b.astype(np.float64)).T)
    assert (abs(values.reshape(case.m, case.n) - exact) <= bound).all()


# --- loads and stores --------------------------------------------------------------------------------------------------


def at(shape: str, num: int, lane: int, i: int) -> tuple[int, int]:
    """(lane of tensor memory, word) of register i of a lane (PTX ISA, figures 183 to 187)."""
    g, t = lane // 4, lane % 4
    if shape == "32x32b":
        return lane, i
    if shape == "16x64b":
        return g + 8 * (lane & 1), 2 * i + (lane >> 1 & 1)
    if shape == "16x128b":
        return g + 8 * (i & 1), 4 * (i >> 1) + t
    if shape == "16x256b":
        return g + 8 * (i >> 1 & 1), 8 * (i >> 2) + 2 * t + (i & 1)
    return lane % 16, i  # 16x32bx2: lanes 16 to 31 have the second half


MOVES = [("32x32b", 8), ("16x64b", 1), ("16x64b", 4), ("16x128b", 1), ("16x128b", 2), ("16x256b", 1), ("16x256b", 4), ("16x32bx2", 1), ("16x32bx2", 8)]  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape,num", MOVES)
def test_moves(shape: str, num: int, packed: bool) -> None:
    """Registers are stored in one shape and columns looked at in another; loads are the inverse."""
    count = num * {"16x128b": 2, "16x256b": 4}.get(shape, 1)
    split = 64
    half = f", {split}" if shape == "16x32bx2" else ""
    regs = "{" + ", ".join(f"v{i}" for i in range(count)) + "}"
    wide = "{" + ", ".join(f"w{i}" for i in range(128)) + "}"
    fill = "".join(f" mad.lo.u32 v{i}, r1, 256, {i + 1}; mul.lo.u32 v{i}, v{i}, 0x10003;" for i in range(count))
    text = f"""{HEAD}.visible .entry k(.param .u64 out, .param .u64 back) {{
 .reg .pred p<4>; .reg .b32 r<8>; .reg .b64 d<6>; .reg .b32 v<128>; .reg .b32 w<128>; .shared .align 4 .b8 slot[4];
 mov.u32 r1, %tid.x; mov.u32 r2, slot; tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [r2], 128; bar.warp.sync -1;
 ld.shared.b32 r3, [r2]; {"".join(f" mov.b32 w{i}, 0;" for i in range(128))}
 tcgen05.st.sync.aligned.32x32b.x128.b32 [r3], {wide}; tcgen05.wait::st.sync.aligned;
{fill} tcgen05.st.sync.aligned.{shape}.x{num}{".unpack::16b" if packed else ""}.b32 [r3]{half}, {regs}; tcgen05.wait::st.sync.aligned;
 tcgen05.ld.sync.aligned.32x32b.x128.b32 {wide}, [r3]; tcgen05.wait::ld.sync.aligned;
 ld.param.u64 d1, [out]; mul.wide.u32 d2, r1, 512; add.s64 d1, d1, d2;
{"".join(f" st.global.b32 [d1+{4 * i}], w{i};" for i in range(128))}
 tcgen05.ld.sync.aligned.{shape}.x{num}{".pack::16b" if packed else ""}.b32 {regs}, [r3]{half}; tcgen05.wait::ld.sync.aligned;
 ld.param.u64 d1, [back]; mul.wide.u32 d2, r1, {4 * count}; add.s64 d1, d1, d2;
{"".join(f" st.global.b32 [d1+{4 * i}], v{i};" for i in range(count))}
 tcgen05.dealloc.cta_group::1.sync.aligned.b32 r3, 128; ret;
}}
"""
    out, back = np.zeros((32, 128), np.uint32), np.zeros((32, count), np.uint32)
    launch(text, "k", [out, back], block=32, target="sm_100a")
    wanted, values = np.zeros((32, 128), np.uint32), np.zeros((32, count), np.uint32)
    for lane in range(32):
        for i in range(count):
            value = values[lane, i] = np.uint32((lane * 256 + i + 1) * 0x10003 & 0xFFFFFFFF)
            row, word = at(shape, num, lane, i)
            column = split if half and lane >= 16 else 0
            if packed:
                wanted[row, column + 2 * word], wanted[row, column + 2 * word + 1] = value & 0xFFFF, value >> 16
            else:
                wanted[row, column + word] = value
    assert (out == wanted).all()
    assert (back == values).all()
