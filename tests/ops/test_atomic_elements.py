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
