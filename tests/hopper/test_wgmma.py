"""wgmma: dtypes, transposes, operands from registers, shapes beyond one instruction; and dot on every target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

from .helpers import assemble, random, relative

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

f32, f16, bf16, i32 = kd.float32, kd.float16, kd.bfloat16, kd.int32
e4m3, e5m2, s8, u8 = kd.float8_e4m3fn, kd.float8_e5m2, kd.int8, kd.uint8


def product(a_type: Any, b_type: Any, total: Any, ta: bool, tb: bool, M: int, N: int, K: int, registers: bool) -> Any:
    """A kernel of one product; operands arrive by TMA, stored as given (transposed where ta, tb)."""
    rule = {1: kd.Layout.WGMMA_8BIT, 2: kd.Layout.WGMMA, 4: kd.Layout.WGMMA_TF32}[a_type.itemsize]

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((M, N), total),
        scratch_types=[
            kd.SMEM((K, M) if ta else (M, K), a_type),
            kd.SMEM((N, K) if tb else (K, N), b_type),
            kd.ACC((M, N), total),
            kd.Barrier(2),
        ],
    )
    def kernel(a: Any, b: Any, out: Any, a_tile: Any, b_tile: Any, acc: Any, ready: Any) -> None:
        kd.copy_gmem_to_smem(a, a_tile, ready)
        kd.copy_gmem_to_smem(b, b_tile, ready)
        kd.barrier_wait(ready)
        left = a_tile.T if ta else a_tile
        kd.wgmma(acc, kd.load(left, layout=rule) if registers else left, b_tile.T if tb else b_tile)
        out[...] = acc[...]

    return kernel


# The tensor core aligns fp8 products to the largest and keeps some 14 bits of them; the interpreter adds exactly
FP8_ON_A_GPU = 1e-3

# (a, b, accumulator, a transposed, b transposed, M, N, K, a in registers, tolerance)
PRODUCTS = [
    (bf16, bf16, f32, False, True, 64, 128, 64, False, 1e-6),
    (bf16, bf16, f32, False, False, 64, 64, 128, False, 1e-6),
    (f16, f16, f32, True, False, 128, 96, 32, False, 1e-6),
    (f16, f16, f32, True, True, 64, 40, 80, False, 1e-6),
    (f16, f16, f16, False, True, 64, 64, 64, False, 5e-3),
    (bf16, bf16, f32, True, False, 64, 320, 64, False, 1e-6),
    (bf16, bf16, f32, False, False, 64, 8, 64, False, 1e-6),
    (f16, f16, f32, False, False, 128, 24, 48, True, 1e-6),
    (bf16, bf16, f32, True, False, 64, 264, 32, False, 1e-6),
    (f32, f32, f32, False, True, 64, 32, 32, False, 2e-3),
    (e4m3, e5m2, f32, False, True, 64, 64, 64, False, 1e-6),
    (e5m2, e4m3, f32, False, True, 64, 64, 64, False, 1e-6),
    (s8, s8, i32, False, True, 64, 64, 64, False, 0),
    (u8, s8, i32, False, True, 64, 288, 32, False, 0),
    (s8, s8, i32, False, True, 64, 40, 64, False, 0),
    (s8, u8, i32, False, True, 64, 264, 32, False, 0),
    (bf16, bf16, f32, False, False, 64, 64, 64, True, 1e-6),
    (f16, f16, f32, True, True, 128, 64, 32, True, 1e-6),
    (s8, s8, i32, False, True, 64, 32, 64, True, 0),
    (e4m3, e4m3, f32, False, True, 64, 32, 64, True, 1e-6),
    (f32, f32, f32, False, True, 64, 32, 32, True, 2e-3),
]


@pytest.mark.parametrize("case", PRODUCTS, ids=lambda c: " ".join(map(str, c[:-1])))
@pytest.mark.sampled(18)
def test_products(case: Any, interpret: Any, rng: Any) -> None:
    a_type, b_type, total, ta, tb, M, N, K, registers, tolerance = case
    kernel = product(a_type, b_type, total, ta, tb, M, N, K, registers)
    a = random(rng, (K, M) if ta else (M, K), a_type)
    b = random(rng, (N, K) if tb else (K, N), b_type)
    expected = (a.T if ta else a).astype(np.float64) @ (b.T if tb else b).astype(np.float64)
    assemble(kernel, a, b)
    if interpret is False and a_type in (e4m3, e5m2):
        tolerance = FP8_ON_A_GPU
    assert relative(kernel(a, b, interpret=interpret), expected) <= tolerance


KINDS = [
    (bf16, bf16, f32, 1e-6),
    (f16, f16, f32, 1e-6),
    (f16, f16, f16, 1e-2),
    (f32, f32, f32, 2e-3),
    (e4m3, e4m3, f32, 1e-6),
    (e5m2, e4m3, f32, 1e-6),
    (s8, s8, i32, 0),
    (s8, u8, i32, 0),
    (u8, s8, i32, 0),
]


def case_at_random(seed: int) -> Any:
    """A point of all that wgmma takes, as in PRODUCTS; 192 registers a lane hold the accumulator and A, if it is there."""
    rng = np.random.default_rng(seed)
    a_type, b_type, total, tolerance = KINDS[rng.integers(len(KINDS))]
    wide = a_type.itemsize == 2
    ta, tb = wide and bool(rng.integers(2)), not wide or bool(rng.integers(2))
    blocks, steps, registers = int(rng.integers(1, 4)), int(rng.integers(1, 9)), bool(rng.integers(4) == 0)
    free = 192 - 4 * blocks * steps * registers
    N = 8 * int(rng.integers(1, free * 4 // total.itemsize // (blocks * 4) + 1))
    return a_type, b_type, total, ta, tb, 64 * blocks, N, 32 // a_type.itemsize * steps, registers, tolerance


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.sampled(22)
def test_products_at_random(seed: int, rng: Any) -> None:
    case = case_at_random(seed)
    test_products(case, kd.InterpretParams(schedule="random", seed=seed), rng)


def test_accumulators_live_across_loops(interpret: Any, rng: Any) -> None:
    """Zero at allocation, summed over a loop of dynamic length, blocks of it read and scaled in place."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((64, 64), f32),
        scratch_types=[kd.SMEM((64, 64), bf16), kd.ACC((64, 64)), kd.Barrier()],
    )
    def kernel(n: Any, x: Any, out: Any, tile: Any, acc: Any, ready: Any) -> None:
        kd.copy_gmem_to_smem(x, tile, ready)
        kd.barrier_wait(ready)

        @kd.loop(0, n)
        def _(i: Any) -> None:
            kd.wgmma(acc, tile, tile)
            kd.wgmma_wait(0)

        acc[...] = acc[...] * 2.0
        kd.wgmma(acc, tile, tile)
        out[:, :32] = acc.at[:, :32][...]
        out[:, 32:] = acc.at[:, 32:][...]

    x = random(rng, (64, 64), bf16)
    square = x.astype(np.float64) @ x.astype(np.float64)
    for n in (0, 1, 3):
        assert relative(kernel(n, x, interpret=interpret), square * (2 * n + 1)) < 1e-6


@pytest.mark.parametrize("way", ["around a loop", "a branch", "a loop of nothing", "while", "scaled", "older"])
@pytest.mark.parametrize("waits", [False, True])
def test_reads_before_a_wait_along_any_path(way: str, waits: bool, rng: Any) -> None:
    """Refused while tracing, at the read; and right where the wait is on every path."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((64, 64), f32),
        scratch_types=[kd.SMEM((64, 64), bf16), kd.ACC((64, 64)), kd.ACC((64, 64))],
    )
    def kernel(n: Any, x: Any, out: Any, tile: Any, acc: Any, other: Any) -> None:
        tile[...] = x[...]
        kd.commit_smem()

        def multiply(*_: Any) -> None:
            kd.wgmma(acc, tile, tile)

        def turn(*_: Any) -> None:
            out[...] = kd.wgmma_accumulator_load(acc, None)
            multiply()
            if waits:
                kd.wgmma_wait(0)

        def wait(*_: Any) -> None:
            kd.wgmma_wait(0)

        if way == "around a loop":
            kd.loop(0, 2)(turn)
        elif way == "while":
            kd.while_loop(lambda i: i < 2, lambda i: (turn(), i + 1)[1], 0)
        else:
            multiply()
            if way == "a branch":
                kd.when(n > 0)(wait)
                if waits:
                    kd.when(n <= 0)(wait)
                    wait()
            elif way == "a loop of nothing":
                kd.loop(0, 2 if waits else n)(wait)
            elif way == "scaled":
                kd.when(n > 0)(wait)
                if waits:
                    wait()
                acc.scale_rows(kd.ones((64,), f32))
            else:
                kd.when(n > 0)(lambda: kd.wgmma(other, tile, tile))
                kd.wgmma_wait(0 if waits else 1)
            out[...] = kd.wgmma_accumulator_load(acc, None)
        kd.wgmma_wait(0)

    x = random(rng, (64, 64), bf16)
    if not waits:
        with pytest.raises(kd.Error, match="before a wait"):
            kernel.lower(1, x)
        return
    square = x.astype(np.float64) @ x.astype(np.float64)
    assert relative(kernel(1, x, interpret=True), square) < 1e-6


@pytest.mark.parametrize("waits", ["late", "before", "behind", "one turn"])
def test_operands_in_registers_around_a_loop(waits: str, interpret: Any, rng: Any) -> None:
    """The next turn makes the operand anew: once the wgmma of this one is done."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((64, 64), f32), scratch_types=[kd.SMEM((64, 64), bf16), kd.ACC((64, 64))])
    def kernel(n: Any, a: Any, b: Any, out: Any, tile: Any, acc: Any) -> None:
        tile[...] = b[...]
        kd.commit_smem()

        @kd.loop(0, 1 if waits == "one turn" else n)
        def _(i: Any) -> None:
            if waits == "before":
                kd.wgmma_wait(0)
            kd.wgmma(acc, a[i], tile)
            if waits != "before":
                kd.wgmma_wait(0 if waits == "behind" else 1)

        out[...] = acc[...]

    a, b = random(rng, (1 if waits == "one turn" else 3, 64, 64), bf16), random(rng, (64, 64), bf16)
    if waits == "late":
        with pytest.raises(kd.Error, match="computed again before a wait"):
            kernel.lower(3, a, b)
        return
    expected = a.astype(np.float64).sum(0) @ b.astype(np.float64)
    assert relative(kernel(len(a), a, b, interpret=interpret), expected) < 1e-6


def test_rows_are_scaled_in_place(interpret: Any, rng: Any) -> None:
    """By no warp, by one, by all; and an accumulator that has not started stays zero."""

    @kd.kernel(out_type=[kd.ShapeDtypeStruct((128, 32), f32)] * 2, scratch_types=[kd.ACC((128, 32))] * 2)
    def kernel(x: Any, factors: Any, out: Any, nothing: Any, acc: Any, fresh: Any) -> None:
        acc[...] = x[...]
        acc.scale_rows(factors[...])
        fresh.scale_rows(factors[...])
        out[...], nothing[...] = acc[...], fresh[...]

    x = random(rng, (128, 32), f32)
    one_row = np.ones(128, np.float32)
    one_row[77] = 3.0
    for factors in (np.ones(128, np.float32), one_row, random(rng, (128,), f32)):
        scaled, nothing = kernel(x, factors, interpret=interpret)
        assert np.array_equal(scaled, x * factors[:, None]) and not nothing.any()
    assemble(kernel, x, one_row)


def test_parts_of_a_fragment_are_joined_in_registers(interpret: Any, rng: Any) -> None:
    """Slices by whole groups of columns stay in their lanes, and so does what they are joined to."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((64, 48), f32))
    def kernel(x: Any, out: Any) -> None:
        value = kd.load(x, layout=kd.Layout.WGMMA)
        out[...] = kd.concatenate([value[:, 32:] + 1.0, value[:, :32]], axis=1)

    x = random(rng, (64, 48), f32)
    assert np.array_equal(kernel(x, interpret=interpret), np.concatenate([x[:, 32:] + 1, x[:, :32]], axis=1))
    assert "shared" not in kernel.lower(x, target="sm_90a").ptx


def test_accumulators_beside_carries(interpret: Any, rng: Any) -> None:
    """A loop passes an accumulator of its carry on, and carries the values beside it."""

    @kd.kernel(
        out_type=[kd.ShapeDtypeStruct((64, 64), f32), kd.ShapeDtypeStruct((3,), i32)],
        scratch_types=[kd.SMEM((64, 64), bf16), kd.ACC((64, 64))],
    )
    def kernel(x: Any, out: Any, counts: Any, tile: Any, acc: Any) -> None:
        tile[...] = x[...]
        kd.commit_smem()

        def step(carry: Any) -> Any:
            kd.wgmma(carry["acc"], tile, tile)
            kd.wgmma_wait(0)
            return {"acc": carry["acc"], "count": carry["count"] + 1}

        first = kd.fori_loop(0, 2, lambda i, carry: step(carry), {"acc": acc, "count": 0})
        second = kd.loop(0, 3, init_carry=first)(lambda i, carry: step(carry))
        third = kd.while_loop(lambda c: c["count"] < 6, step, second)
        alone = kd.fori_loop(0, 1, lambda i, acc: step({"acc": acc, "count": 0})["acc"], third["acc"])
        for i, end in enumerate((first, second, third)):
            counts[i] = end["count"]
        out[...] = alone[...]

    x = random(rng, (64, 64), bf16)
    out, counts = kernel(x, interpret=interpret)
    square = x.astype(np.float64) @ x.astype(np.float64)
    assert relative(out, 7 * square) < 1e-6 and list(counts) == [2, 5, 6]


DOTS = [
    (64, 64, 64, bf16, "sm_80", {}, 1e-6, True),
    (37, 45, 29, f16, "sm_80", {}, 1e-6, True),
    (64, 32, 16, s8, "sm_80", {}, 0, True),
    (16, 8, 8, f32, "sm_80", {"precision": "tf32"}, 2e-3, True),
    (16, 8, 8, f32, "sm_80", {}, 1e-6, False),
    (32, 32, 32, e4m3, "sm_80", {}, 1e-6, True),
    (32, 32, 32, e4m3, "sm_89", {}, 1e-6, True),
    (5, 7, 3, kd.float64, "sm_80", {}, 1e-14, False),
    (1, 16, 1, bf16, "sm_90a", {}, 1e-6, True),
    (6, 5, 4, i32, "sm_80", {}, 0, False),
]


@pytest.mark.parametrize("case", DOTS, ids=lambda c: " ".join(map(str, c[:5])))
@pytest.mark.sampled(2)
def test_dot_of_values(case: Any, rng: Any) -> None:
    M, K, N, dtype, target, options, tolerance, tensor = case
    want = i32 if dtype.is_integer else (kd.float64 if dtype == kd.float64 else f32)

    @kd.kernel(out_type=kd.ShapeDtypeStruct((M, N), want), compiler_params=kd.CompilerParams(target=target))
    def kernel(a: Any, b: Any, out: Any) -> None:
        out[...] = kd.dot(a[...], b[...], acc=kd.ones((M, N), want), **options)

    a, b = random(rng, (M, K), dtype), random(rng, (K, N), dtype)
    stages = kernel.lower(a, b, target=target)
    assert ("mma.sync" in stages.ptx) == tensor
    stages.compile()
    assert relative(kernel(a, b, interpret=True), a.astype(np.float64) @ b.astype(np.float64) + 1) <= tolerance


def test_dot_picks_wgmma_for_refs(interpret: Any, rng: Any) -> None:
    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((64, 64), f32),
        scratch_types=[kd.SMEM((64, 64), bf16), kd.SMEM((64, 64), bf16)],
    )
    def kernel(a: Any, b: Any, out: Any, left: Any, right: Any) -> None:
        left[...] = a[...]
        right[...] = b[...]
        out[...] = kd.dot(left, right)

    a, b = random(rng, (64, 64), bf16), random(rng, (64, 64), bf16)
    assert "wgmma" in assemble(kernel, a, b).ptx
    assert relative(kernel(a, b, interpret=interpret), a.astype(np.float64) @ b.astype(np.float64)) < 1e-6


@pytest.mark.parametrize("shape", [(16, 8, 4), (64, 40, 12), (5, 7, 9), (1, 33, 3)], ids=str)
def test_mma_of_float64(shape: Any, interpret: Any, rng: Any) -> None:
    M, N, K = shape
    f64 = kd.float64

    @kd.kernel(out_type=kd.ShapeDtypeStruct((M, N), f64))
    def kernel(a: Any, b: Any, out: Any) -> None:
        out[...] = kd.mma(kd.ones((M, N), f64), a[...], b[...])

    a, b = random(rng, (M, K), f64), random(rng, (K, N), f64)
    assert "m8n8k4" in kernel.lower(a, b).ptx
    kernel.lower(a, b, target="sm_80").compile()
    assert relative(kernel(a, b, interpret=interpret), a @ b + 1) < 1e-14


@pytest.mark.parametrize("shape", [(16, 8, 16), (64, 128, 36), (40, 9, 31), (1, 1, 17)], ids=str)
@pytest.mark.sampled(6)
def test_deep_mma_of_float64(shape: Any, interpret: Any, rng: Any) -> None:
    """16 rows and 16 of K an instruction where the target has it; what is left of K goes four at a time."""
    M, N, K = shape
    f64 = kd.float64

    @kd.kernel(out_type=kd.ShapeDtypeStruct((M, N), f64))
    def kernel(a: Any, b: Any, out: Any) -> None:
        out[...] = kd.mma(kd.ones((M, N), f64), a[...], b[...])

    a, b = random(rng, (M, K), f64), random(rng, (K, N), f64)
    for target in ("sm_80", "sm_90a", "sm_120a"):
        stages = kernel.lower(a, b, target=target)
        forms = {form for form in ("m16n8k16", "m8n8k4") if form in stages.ptx}
        assert forms == ({"m8n8k4"} if target == "sm_80" else {"m16n8k16"} | ({"m8n8k4"} if -(-K // 4) % 4 else set()))
        assert stages.compile().resources.spills == 0
    assert relative(kernel(a, b, interpret=interpret), a @ b + 1) < 1e-14


@pytest.mark.parametrize("types", [(s8, u8, i32), (u8, s8, i32), (e4m3, e5m2, f32)], ids=str)
def test_mixed_operands_of_mma(types: Any, rng: Any) -> None:
    a_type, b_type, total = types

    @kd.kernel(out_type=[kd.ShapeDtypeStruct((16, 24), total)] * 2)
    def kernel(a: Any, b: Any, one: Any, other: Any) -> None:
        one[...] = kd.mma(kd.zeros((16, 24), total), a[...], b[...])
        other[...] = kd.dot(a[...], b[...])

    a, b = random(rng, (16, 32), a_type), random(rng, (32, 24), b_type)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    kernel.lower(a, b).compile()
    one, other = kernel(a, b, interpret=True)
    assert relative(one, expected) < 1e-6 and relative(other, expected) < 1e-6


def test_vectors_and_the_operator(rng: Any) -> None:
    @kd.kernel(
        out_type=[kd.ShapeDtypeStruct((16,), f32), kd.ShapeDtypeStruct((), f32), kd.ShapeDtypeStruct((16, 16), f32)]
    )
    def kernel(a: Any, v: Any, row: Any, one: Any, square: Any) -> None:
        row[...] = kd.dot(a[...], v[...])
        one[...] = kd.dot(v[...], v[...])
        square[...] = a[...] @ a[...]

    a, v = random(rng, (16, 16), bf16), random(rng, (16,), bf16)
    row, one, square = kernel(a, v, interpret=True)
    a, v = a.astype(np.float64), v.astype(np.float64)
    assert relative(row, a @ v) < 1e-6 and relative(one, v @ v) < 1e-6 and relative(square, a @ a) < 1e-6
