"""tcgen05.mma.ws as programs, and products whose columns lie in parts of the lanes: each part takes A from its own lanes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter import HazardError, HazardKind
from kernel_dsl.runtime.interpreter.ptx.module import PtxError

from .launching import SCHEDULES, launch
from .test_tensor_programs import BOUND, DTYPES, Case, matrix, paired, program, stored

CASES = [
    Case(m=128, n=64), Case(m=64, n=128), Case(m=32, n=256), Case("bf16", "bf16", m=64, n=64, swizzle=64), Case(m=32, n=64, d="f16"),
    Case("tf32", "tf32", m=64, n=64), Case("e4m3", "e5m2", m=32, n=128), Case("s8", "u8", "s32", m=64, n=128), Case("e2m1", "e3m2", m=64, n=64, swizzle=32),
    Case(m=64, n=64, accumulates=True), Case(m=32, n=128, negative=1), Case(m=64, n=64, turned=(True, True)),
    Case(m=128, n=64, in_tensor=True), Case(m=64, n=128, in_tensor=True), Case("e4m3", "e4m3", m=32, n=128, in_tensor=True),
]  # fmt: skip


def text_of(case: Case, left: int, right: int, descs: tuple[int, int], by: tuple[int, int], steps: int) -> str:
    """The program of a product, in the columns that D takes, made stationary."""
    narrow = replace(case, n=case.n * case.m // 128)
    text = program(narrow, left, right, descs, steps, by)
    return text.replace(str(narrow.word), str(case.word)).replace("tcgen05.mma.cta_group", "tcgen05.mma.ws.cta_group")


def values_of(out: np.ndarray, case: Case) -> np.ndarray:
    """D (m, n): part number p of its columns is in lanes p * m and on."""
    words = (
        out.astype(np.uint16).view(np.float16)
        if case.d == "f16"
        else out.view(np.float32 if case.d == "f32" else np.int32)
    )
    return np.concatenate(np.split(words.astype(float), 128 // case.m, axis=0), axis=1)


def check(case: Case, schedule: str = "eager", other_rows: bool = False) -> None:
    depth = max(case.swizzle, 32) // np.dtype(DTYPES[case.a]).itemsize
    a, b = matrix((128 if other_rows else case.m, depth), case.a), matrix((case.n, depth), case.b)
    (left, da, ga), (right, db, gb) = stored(a, case.a, case, case.turned[0]), stored(b, case.b, case, case.turned[1])
    parts = 128 // case.m
    if case.in_tensor:
        left = np.ascontiguousarray(a if other_rows else np.tile(a, (parts, 1)))
    text = text_of(case, left.nbytes, right.nbytes, (da, db), (ga, gb), depth * a.itemsize // 32)
    out = np.zeros((128, case.n // parts), np.uint32)
    given = [x.view(np.uint8).reshape(-1) for x in (left, right)]
    launch(text, "k", [*given, out], block=128, schedule=schedule, target="sm_100a")
    sign = -1 if case.negative == 1 else 1
    rows = np.split(a.astype(float), parts) if other_rows else [a.astype(float)] * parts
    columns = np.split(b.astype(float), parts)
    exact = np.concatenate([sign * (x @ y.T) for x, y in zip(rows, columns, strict=True)], axis=1) + case.accumulates
    bound = np.concatenate([abs(x) @ abs(y).T for x, y in zip(rows, columns, strict=True)], axis=1) + 1
    assert (abs(values_of(out, case) - exact) <= BOUND[case.d] * bound).all()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_product(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_two_products_at_once(schedule: str) -> None:
    """Parts of the lanes with other rows of A multiply these by their columns."""
    check(Case(m=64, n=64, in_tensor=True), schedule, other_rows=True)


@pytest.mark.parametrize("same", [True, False])
def test_a_pair_takes_each_half_from_its_lanes(same: bool) -> None:
    """Of 128 rows of two blocks, the upper 64 lanes multiply by the second half of the columns."""
    case = Case(m=128, n=32, in_tensor=True)
    a, b = matrix((2, 64, 64), "f16"), matrix((32, 64), "f16")
    upper = a if same else matrix((2, 64, 64), "f16")
    given = np.concatenate([a, upper], axis=1)
    right = [stored(x, "f16", case, False) for x in (b[:16], b[16:])]
    text = program(replace(case, n=16), given[0].nbytes, right[0][0].nbytes, (0, right[0][1]), 4, (32, 32))
    text = text.replace(str(replace(case, n=16).word), str(case.word))
    out = np.zeros((2, 128, 16), np.uint32)
    data = [given, np.stack([x[0].view(np.uint8).reshape(-1) for x in right]), out]
    sizes = given[0].nbytes, right[0][0].nbytes
    launch(paired(text, 64, 16, sizes), "k", data, grid=2, block=128, cluster=(2, 1, 1), target="sm_100a")
    for block in range(2):
        low, high = a[block].astype(float) @ b[:16].T.astype(float), upper[block].astype(float) @ b[16:].T.astype(float)
        np.testing.assert_allclose(out[block].view(np.float32), np.concatenate([low, high]), atol=1e-3)


def test_what_it_does_not_have() -> None:
    case = Case(m=64, n=64)
    text = text_of(case, 8192, 8192, (0, 0), (32, 32), 4)
    given = [np.zeros(8192, np.uint8), np.zeros(8192, np.uint8), np.zeros((128, 32), np.uint32)]
    for wrong, words in (
        (replace(case, n=96), "N = 96"),
        (replace(case, m=256), "M = 256"),
        (replace(case, n=32), "N = 32"),
    ):
        with pytest.raises(PtxError, match=words):
            launch(text.replace(str(case.word), str(wrong.word)), "k", given, block=128, target="sm_100a")
    for mask in (1 << 39, 3 << 56):
        masked = text.replace(", p3;", ", p3, d11;").replace(" setp.eq.u32 p2", f" mov.b64 d11, {mask}; setp.eq.u32 p2")
        with pytest.raises(HazardError, match="mask of columns") as caught:
            launch(masked, "k", given, block=128, target="sm_100a")
        assert caught.value.kind is HazardKind.DESCRIPTOR
