"""Atomics on elements chosen by index arrays, `ref.at[array]`: NumPy's `ufunc.at`, out-of-range indices dropped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

LENGTH = 300


def _kernel(update: Any, out: Any, *, fill: int = 0) -> Any:
    """A kernel of (index, value) that applies `update(out, index array, value array)`."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct(out, kd.int32, init=fill))
    def run(index: Any, value: Any, result: Any) -> None:
        update(result, index[...], value[...])

    return run


@pytest.mark.parametrize(
    ("atomic", "ufunc", "fill"),
    [(kd.atomic_add, np.add, 0), (kd.atomic_max, np.maximum, -50), (kd.atomic_xor, np.bitwise_xor, 5)],
)
def test_duplicates_are_all_applied(atomic: Any, ufunc: Any, fill: int) -> None:
    rng = np.random.default_rng(0)
    index = rng.integers(-3, 23, LENGTH).astype(np.int32)
    value = rng.integers(-99, 99, LENGTH).astype(np.int32)

    def update(out: Any, i: Any, x: Any) -> None:
        atomic(out.at[i], x)

    got = _kernel(update, (20,), fill=fill)(index, value)
    expected = np.full(20, fill, np.int32)
    inside = (index >= 0) & (index < 20)
    ufunc.at(expected, index[inside], value[inside])
    assert np.array_equal(got, expected)


def test_rows_and_columns_are_checked_apart() -> None:
    """An index that leaves its row is dropped, not taken to the next one; a mask drops more."""
    rng = np.random.default_rng(1)
    index = rng.integers(-2, 10, LENGTH).astype(np.int32)
    value = rng.integers(1, 9, LENGTH).astype(np.int32)

    def update(out: Any, i: Any, x: Any) -> None:
        kd.atomic_add(out.at[1:].at[x - 1, i], 1, mask=x != 4)

    got = _kernel(update, (7, 8))(index, value)
    expected = np.zeros((7, 8), np.int32)
    for i, x in zip(index, value, strict=True):
        if 0 <= i < 8 and 1 <= x < 7 and x != 4:
            expected[x, i] += 1
    assert np.array_equal(got, expected)


def test_old_values_in_smem_are_a_permutation() -> None:
    """Each lane that adds 1 to a counter gets a number of its own."""

    @kd.kernel(
        out_type=(kd.ShapeDtypeStruct((LENGTH,), kd.uint32), kd.ShapeDtypeStruct((4,), kd.uint32)),
        scratch_types={"counts": kd.SMEM((4,), kd.uint32)},
    )
    def run(index: Any, old: Any, total: Any, *, counts: Any) -> None:
        counts[...] = kd.zeros((4,), kd.uint32)
        old[...] = kd.atomic_add(counts.at[index[...]], kd.uint32(1))
        total[...] = counts[...]

    index = np.random.default_rng(2).integers(0, 4, LENGTH).astype(np.uint8)
    old, total = run(index)
    assert np.array_equal(total, np.bincount(index, minlength=4))
    for bin in range(4):
        assert np.array_equal(np.sort(old[index == bin]), np.arange(total[bin]))


def test_compare_and_swap_takes_the_first() -> None:
    def update(out: Any, i: Any, x: Any) -> None:
        kd.atomic_cas(out.at[i], 0, x)

    index = (np.arange(LENGTH) % 16).astype(np.int32)
    value = (np.arange(LENGTH) + 1).astype(np.int32)
    got = _kernel(update, (16,))(index, value)
    assert np.all(got % 16 == (np.arange(16) + 1) % 16) and np.all(got > 0)


def test_unwanted_old_values_cost_nothing() -> None:
    """`red` where nobody looks at the old value, `atom` where somebody does."""

    def ptx(used: bool) -> str:
        def update(out: Any, i: Any, x: Any) -> None:
            old = kd.atomic_add(out.at[i], x)
            if used:
                kd.atomic_max(out, kd.max(old))

        spec = kd.ShapeDtypeStruct((LENGTH,), kd.int32)
        return _kernel(update, (20,)).lower(spec, spec, target="sm_90a").ptx

    assert "red.relaxed.gpu.global.add." in ptx(False) and "atom." not in ptx(False)
    assert "atom.relaxed.gpu.global.add." in ptx(True)


def test_other_uses_are_refused() -> None:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((4,), kd.int32))
    def run(x: Any, out: Any) -> None:
        kd.store(out.at[x[...]], ..., 1)

    with pytest.raises(kd.Error, match="index arrays"):
        run(np.zeros(4, np.int32))


INTS, FLOATS = ("int32", "uint32", "int64", "uint64"), ("float16", "bfloat16", "float32", "float64")
KINDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "add": (lambda old, x: old + x, INTS + FLOATS),
    "max": (np.maximum, INTS + FLOATS),
    "min": (np.minimum, INTS + FLOATS),
    "and": (np.bitwise_and, INTS),
    "or": (np.bitwise_or, INTS),
    "xor": (np.bitwise_xor, INTS),
    "xchg": (lambda old, x: x, INTS + FLOATS),
    "cas": (lambda old, x: np.where(old == 2, x, old), INTS + FLOATS),
}


@pytest.mark.parametrize("device", ["interpret", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("space", ["gmem", "smem"])
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.sampled(4)
def test_every_dtype(kind: str, space: str, device: str) -> None:
    """The new and the old values of an atomic of each dtype, in GMEM and in SMEM."""
    combine, names = KINDS[kind]
    atomic = getattr(kd, f"atomic_{kind}")
    dtypes = [getattr(kd, name) for name in names]

    def body(first: Any, x: Any, new: Any, old: Any, unused: Any, *places: Any) -> None:
        for i, dtype in enumerate(dtypes):
            for target, kept in ((new[i], True), (unused[i], False)):
                place = places[i] if places else target
                place[...] = first[i][...]
                given = (dtype(2), x[i][...]) if kind == "cas" else (x[i][...],)
                found = atomic(place, *given)
                if kept:
                    old[i][...] = found
                if places:
                    target[...] = place[...]

    outs = [kd.ShapeDtypeStruct((LENGTH,), dtype) for dtype in dtypes]
    scratch = [kd.SMEM((LENGTH,), dtype) for dtype in dtypes] if space == "smem" else []
    kernel = kd.kernel(body, out_type=(outs, outs, outs), scratch_types=scratch)
    rng = np.random.default_rng(5)
    first, x = ([rng.integers(0, 5, LENGTH).astype(dtype.numpy) for dtype in dtypes] for _ in range(2))
    for dtype, before, given, new, old, unused in zip(
        names, first, x, *kernel(first, x, interpret=device == "interpret"), strict=True
    ):
        np.testing.assert_array_equal(new, combine(before, given), err_msg=dtype)
        np.testing.assert_array_equal(old, before, err_msg=dtype)
        np.testing.assert_array_equal(unused, new, err_msg=dtype)
