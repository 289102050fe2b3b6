"""tcgen05.mma.sp as programs, against dense products in NumPy. Metadata is laid out element by element, by loops."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter import HazardError, HazardKind
from kernel_dsl.runtime.interpreter.isa.semantics.tensor_core import product_of
from kernel_dsl.runtime.interpreter.ptx.module import PtxError

from .launching import SCHEDULES, launch
from .test_tensor_programs import BOUND, DTYPES, Case, matrix, paired, program, stored

RNG = np.random.default_rng(17)
FIRST = 320  # column of the metadata
PAIRS = {0b0100: (0, 1), 0b1000: (0, 2), 0b1100: (0, 3), 0b1001: (1, 2), 0b1101: (1, 3), 0b0110: (2, 1), 0b1110: (2, 3)}
CASES = [
    Case(), Case("bf16", "bf16", n=16), Case("tf32", "tf32"), Case("e4m3", "e5m2"), Case("s8", "u8", "s32"), Case("e2m1", "e3m2", n=32),
    Case(d="f16"), Case(accumulates=True), Case(negative=2), Case(in_tensor=True, n=32), Case("tf32", "tf32", in_tensor=True),
    Case("s8", "s8", "s32", in_tensor=True), Case(turned=(False, True)), Case("e4m3", "e4m3", swizzle=0), Case(off=0xF0F0000F),
]  # fmt: skip


def compressed(case: Case, rows: int, depth: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A (rows, depth) with zeros, what is stored of it, and its metadata: words (128 lanes, columns) of each 128 rows."""
    stored_a = matrix((rows, depth // 2), case.a)
    dense = np.zeros((rows, depth), stored_a.dtype)
    chunk, per = (2 if size == 4 else 4), 64 // size  # elements of a chunk, and of k in one product
    columns = 1 if size > 1 else 2
    words = np.zeros((rows, depth // per * columns), np.uint32)
    for row in range(rows):
        for k in range(0, depth, chunk):
            if chunk == 2:
                bits, places = (0b1110, (1,)) if RNG.random() < 0.5 else (0b0100, (0,))
            else:
                bits, places = list(PAIRS.items())[RNG.integers(len(PAIRS))]
            for n, place in enumerate(places):
                dense[row, k + place] = stored_a[row, k // 2 + n]
            product, inside = divmod(k, per)
            if size > 1:  # half a word of the row's, and of the row 8 below it
                lane = row // 16 * 16 + inside // (per // 2) * 8 + row % 8
                nibble, column = row // 8 % 2 * 4 + inside % (per // 2) // chunk, product
            else:
                lane, nibble, column = row, inside // chunk % 8, 2 * product + inside // 32
            words[lane, column] |= np.uint32(bits << 4 * nibble)
    return dense, stored_a, words


def sparse(text: str, case: Case, columns: int, each: int) -> str:
    """The program of a dense product, with metadata from an array, in `columns` columns of which each product takes `each`."""
    text = text.replace(".param .u64 out)", ".param .u64 out, .param .u64 meta)")
    regs = "{" + ", ".join(f"v{i}" for i in range(columns)) + "}"
    bring = f""" ld.param.u64 d1, [meta]; mul.wide.u32 d9, r1, {4 * columns}; add.s64 d9, d9, d1;
{"".join(f" ld.global.b32 v{i}, [d9+{4 * i}];" for i in range(columns))}
 add.u32 r9, t1, {FIRST}; tcgen05.st.sync.aligned.32x32b.x{columns}.b32 [r9], {regs}; tcgen05.wait::st.sync.aligned;
"""
    text = text.replace(" bar.sync 0;\n shr.u32 r9", bring + " bar.sync 0;\n shr.u32 r9")
    count = iter(range(99))

    def product(found: re.Match[str]) -> str:
        n = next(count)
        at, selector = (n & ~1, n & 1) if each == 1 else (2 * n, 0)
        return f"[t0+{FIRST + at}], {case.word | 4 | selector},"

    return re.sub(rf"(?<=d6, ){case.word},", product, text).replace("tcgen05.mma.", "tcgen05.mma.sp.")


def check(case: Case, schedule: str = "eager") -> None:
    size = np.dtype(DTYPES[case.a]).itemsize
    depth = 128 // size
    dense, a, words = compressed(case, 128, depth, size)
    b = matrix((case.n, depth), case.b)
    (left, da, ga), (right, db, gb) = (
        stored(a, case.a, replace(case, swizzle=case.swizzle and 64), False),
        stored(b, case.b, case, case.turned[1]),
    )
    given = np.ascontiguousarray(a) if case.in_tensor else left
    text = program(case, given.nbytes, right.nbytes, (da, db), 2, (ga, 2 * gb))
    out = np.zeros((128, case.n), np.uint32)
    arrays = [given.view(np.uint8).reshape(-1), right.view(np.uint8).reshape(-1), out, words]
    launch(
        sparse(text, case, words.shape[1], 1 if size > 1 else 2),
        "k",
        arrays,
        block=128,
        schedule=schedule,
        target="sm_100a",
    )
    sign = -1 if case.negative else 1
    exact = sign * (dense.astype(float) @ b.astype(float).T) + case.accumulates
    bound = BOUND[case.d] * (abs(dense.astype(float)) @ abs(b.astype(float)).T + 1)
    if case.d == "f16":
        values = out.astype(np.uint16).view(np.float16).astype(float)
    else:
        values = out.view(np.float32 if case.d == "f32" else np.int32).astype(float)
    kept = np.array([bool(case.off >> (lane % 32) & 1) for lane in range(128)])
    assert (abs(values - exact)[~kept] <= bound[~kept]).all()
    assert (values[kept] == 1).all()


@pytest.mark.sampled(7)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_product(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules(schedule: str) -> None:
    for case in (Case(n=16), Case("e4m3", "e4m3", n=16, in_tensor=True)):
        check(case, schedule)


@pytest.mark.parametrize("type_", ["f16", "e4m3"])
def test_pair(type_: str) -> None:
    """Each block of a pair has the metadata of its own rows."""
    case = Case(type_, type_, m=256, n=32)
    size = np.dtype(DTYPES[type_]).itemsize
    depth = 128 // size
    dense, a, words = compressed(case, 256, depth, size)
    b = matrix((32, depth), type_)
    left = [stored(x, type_, replace(case, swizzle=64), False) for x in (a[:128], a[128:])]
    right = [stored(x, type_, case, False) for x in (b[:16], b[16:])]
    sizes = left[0][0].nbytes, right[0][0].nbytes
    text = program(case, *sizes, (left[0][1], right[0][1]), 2, (32, 64))
    text = paired(sparse(text, case, words.shape[1], 1 if size > 1 else 2), 128, 32, sizes)
    load = "ld.param.u64 d1, [meta];"
    text = text.replace(load, f"{load} mul.wide.u32 d10, r11, {words[:128].nbytes}; add.s64 d1, d1, d10;")
    meet = " barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"
    text = text.replace(" bar.sync 0;\n shr.u32 r9", meet + " shr.u32 r9")
    out = np.zeros((256, 32), np.uint32)
    given = [np.stack([x[0].view(np.uint8).reshape(-1) for x in pieces]) for pieces in (left, right)]
    launch(text, "k", [*given, out, words], grid=2, block=128, cluster=(2, 1, 1), target="sm_100a")
    exact = dense.astype(float) @ b.astype(float).T
    bound = BOUND["f32"] * (abs(dense.astype(float)) @ abs(b.astype(float)).T)
    assert (abs(out.view(np.float32) - exact) <= bound).all()


def arrays_of(case: Case) -> tuple[str, list[np.ndarray]]:
    _, a, words = compressed(case, 128, 64, 2)
    (left, da, ga), (right, db, gb) = (
        stored(a, case.a, replace(case, swizzle=64), False),
        stored(matrix((case.n, 64), case.b), case.b, case, False),
    )
    text = sparse(program(case, left.nbytes, right.nbytes, (da, db), 2, (ga, 2 * gb)), case, 2, 1)
    return text, [
        left.view(np.uint8).reshape(-1),
        right.view(np.uint8).reshape(-1),
        np.zeros((128, case.n), np.uint32),
        words,
    ]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_hazards(schedule: str) -> None:
    case = Case(n=16)
    text, arrays = arrays_of(case)
    wait = " tcgen05.wait::st.sync.aligned;\n bar.sync 0;\n shr.u32 r9"
    wrong = arrays[3].copy()
    wrong[17, 1] = 0x33333333
    cases = [
        (text, [*arrays[:3], wrong], HazardKind.DESCRIPTOR, "does not name which elements"),
        (text.replace(wait, " bar.sync 0;\n shr.u32 r9"), arrays, HazardKind.RACE_TMEM, "tensor memory, column 320"),
        (
            text.replace(f"[t0+{FIRST}]", f"[t0+{FIRST + 2}]"),
            arrays,
            HazardKind.UNINITIALISED,
            "before anything was written",
        ),
        (text.replace(f"[t0+{FIRST}]", f"[t0+{FIRST + 1}]"), arrays, HazardKind.DESCRIPTOR, "even column"),
        (
            text.replace("[r8], 512;", "[r8], 256;").replace("b32 t0, 512", "b32 t0, 256"),
            arrays,
            HazardKind.TMEM_MISUSE,
            "column 320",
        ),
    ]
    for bad, given, kind, words in cases:
        with pytest.raises(HazardError, match=words) as caught:
            launch(bad, "k", [x.copy() for x in given], block=128, schedule=schedule, target="sm_100a")
        assert caught.value.kind is kind, str(caught.value)
    launch(text, "k", arrays, block=128, schedule=schedule, target="sm_100a")


def test_what_no_text_tells_is_refused() -> None:
    case = Case(n=16)
    text, arrays = arrays_of(case)
    for instead, words in (
        (case.word, "A is dense"),
        (case.word | 6, "selector of 2"),
        (replace(case, m=64).word | 4, "M = 64"),
    ):
        with pytest.raises(PtxError, match=words):
            launch(text.replace(str(case.word | 4), str(instead)), "k", arrays, block=128, target="sm_100a")
    with pytest.raises(PtxError, match="A is sparse"):
        dense = re.sub(r"\[t0\+\d+\], ", "", text).replace("mma.sp.", "mma.")
        launch(dense, "k", arrays, block=128, target="sm_100a")


def test_scaled_blocks() -> None:
    """Scale factors are of the 64 elements of a row that a product takes, stored or not."""
    case = Case("e4m3", "e5m2", n=32)
    dense, a, words = compressed(case, 128, 128, 1)
    b = matrix((32, 128), "e5m2")
    (left, da, ga), (right, db, gb) = (
        stored(a, "e4m3", replace(case, swizzle=64), False),
        stored(b, "e5m2", case, False),
    )
    powers = [RNG.integers(-3, 4, (128, 2)), RNG.integers(-3, 4, (32, 2))]
    columns = np.zeros(
        (128, 8), np.uint32
    )  # A's in columns 0 to 3, B's in column 4: of 32 rows in each, the same in all partitions
    for first, table in ((0, powers[0]), (4, powers[1])):
        for row, product in np.ndindex(table.shape):
            for part in range(4):
                columns[32 * part + row % 32, first + row // 32] |= np.uint32(
                    (int(table[row, product]) + 127) << 8 * product
                )
    text = sparse(program(case, left.nbytes, right.nbytes, (da, db), 2, (ga, 2 * gb)), case, 8, 2)
    for product in range(2):
        word = 4 | product << 4 | 0 << 7 | 1 << 10 | 32 >> 3 << 17 | 1 << 23 | 128 >> 7 << 27 | product << 29
        old, scales = f"[t0+{FIRST + 2 * product}], {case.word | 4},", f"[t0+{FIRST + 8}], [t0+{FIRST + 12}],"
        assert old in text
        text = text.replace(old, f"[t0+{FIRST + 2 * product}], {word}, {scales}")
    text = text.replace("kind::f8f6f4", "kind::mxf8f6f4.block_scale").replace(
        "sp.cta_group::1.kind::mx", "sp.cta_group::1.kind::mx"
    )
    # The eight columns that are brought hold metadata in four; the scales follow them.
    wide = np.concatenate([words, np.zeros((128, 4), np.uint32)], axis=1)
    text = text.replace(".param .u64 meta)", ".param .u64 meta, .param .u64 factors)")
    start = text.index(" ld.param.u64 d1, [meta];")
    end = text.index(" bar.sync 0;\n shr.u32 r9")
    again = (
        text[start:end]
        .replace("[meta]", "[factors]")
        .replace(f"add.u32 r9, t1, {FIRST}", f"add.u32 r9, t1, {FIRST + 8}")
    )
    text = text[:end] + again + text[end:]
    out = np.zeros((128, 32), np.uint32)
    given = [x.view(np.uint8).reshape(-1) for x in (left, right)]
    launch(text, "k", [*given, out, wide, columns], block=128, target="sm_100a")
    exact = np.zeros((128, 32))
    for product in range(2):
        part = slice(64 * product, 64 * product + 64)
        x = dense[:, part].astype(float) * 2.0 ** powers[0][:, product, None]
        exact += x @ (b[:, part].astype(float) * 2.0 ** powers[1][:, product, None]).T
    np.testing.assert_allclose(out.view(np.float32), exact, rtol=1e-5, atol=1e-3)


def test_pairs_of_elements_of_4_bits() -> None:
    """Four bits name two pairs of eight elements."""
    word = 4 | 1 << 7 | 1 << 10 | 64 >> 3 << 17 | 1 << 23 | 1 << 27
    form = product_of(word, "mxf4", False, "block32", sparse=True)
    names = RNG.integers(len(PAIRS), size=(128, 16))
    words, wanted = np.zeros((1, 128, 2), np.uint32), np.zeros((1, 128, 64), np.int64)
    for row, chunk in np.ndindex(names.shape):
        bits, pairs = list(PAIRS.items())[names[row, chunk]]
        words[0, row, chunk // 8] |= np.uint32(bits << 4 * (chunk % 8))
        wanted[0, row, 4 * chunk : 4 * chunk + 4] = [8 * chunk + 2 * pair + i for pair in pairs for i in range(2)]
    assert (form.k, form.metadata_columns) == (128, 2)
    np.testing.assert_array_equal(form.places(words), wanted)
