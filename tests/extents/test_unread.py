"""Extents that a body does not read are no part of what it is compiled for: right at every size, and compiled once."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.text_parser import parse

Spec = kd.ShapeDtypeStruct


def example(name: str) -> Any:
    return importlib.import_module(f"examples.{name}")


def unmasked(stages: Any) -> bool:
    return all(op.view.masked == () for op in stages.ir.walk() if op.op_name in ("load", "store"))


@pytest.mark.parametrize("make", ["rows_kernel", "row_kernel"])
def test_softmax_compiles_once_for_all_rows(make: str) -> None:
    module = example("01_softmax")
    kernel = getattr(module, make)(2)
    rng = np.random.default_rng(0)
    for rows in (5, 1, 0, 2, 7):
        x = rng.standard_normal((rows, 40)).astype(np.float32)
        found = kernel(x, interpret=True)
        assert found.shape == x.shape
        if rows:
            np.testing.assert_allclose(found, module.reference(x), rtol=2e-6)
    assert len(kernel.specialisations()) == 1
    kernel(np.ones((2, 48), np.float32), interpret=True)  # the columns are read
    assert len(kernel.specialisations()) == 2
    assert [repr(s).partition(": ")[2] for s in kernel.specialisations()] == ["(*, 40), (*, *)>", "(*, 48), (*, *)>"]


def tiled_sum(x: Any, y: Any, out: Any) -> None:
    tile = kd.ds(kd.axis_index("i") * 16, 16), kd.ds(kd.axis_index("j") * 32, 32)
    out[tile] = x[tile] + y[tile]


def test_the_key_has_what_vectors_and_addresses_need() -> None:
    """Rows that are not multiples of a vector, arrays with gaps, addresses off by an element: each its own code."""
    kernel = kd.kernel(
        tiled_sum,
        out_type=lambda x, y: x,
        grid=lambda x, y: (kd.cdiv(x.shape[0], 16), kd.cdiv(x.shape[1], 32)),
        grid_names=("i", "j"),
    )
    rng = np.random.default_rng(1)

    def check(shape: tuple[int, int], gaps: bool = False, off: int = 0) -> int:
        x = rng.standard_normal(shape).astype(np.float32)
        store = np.zeros(2 * x.size + 8, np.float32)
        store = store[(-store.ctypes.data // 4) % 4 + off :]
        y = store[: 2 * x.size].reshape(shape[0], -1)[:, ::2] if gaps else store[: x.size].reshape(shape)
        y[...] = rng.standard_normal(shape)
        np.testing.assert_array_equal(kernel(x, y, interpret=True), x + y)
        return len(kernel.specialisations())

    assert [check((16, 32)), check((33, 64)), check((1, 96)), check((0, 32))] == [1, 1, 1, 1]
    assert [check((5, 7)), check((40, 33)), check((1, 1))] == [2, 2, 2]
    assert check((16, 32), gaps=True) == 3
    assert check((20, 64), gaps=True) == 3
    assert check((16, 32), off=1) == 4
    assert check((2, 32), off=1) == 4


def test_an_extent_is_read_where_python_takes_it() -> None:
    def body(x: Any, out: Any) -> None:
        scale = 1.0 / x.shape[0]
        part = kd.ds(kd.program_id(0) * 32, 32)
        out[part] = x[part] * scale

    kernel = kd.kernel(body, out_type=lambda x: x, grid=lambda x: (kd.cdiv(x.shape[0], 32),))
    for n in (8, 40, 8):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_allclose(kernel(x, interpret=True), x * np.float32(1.0 / n), rtol=1e-6)
    assert len(kernel.specialisations()) == 2


def test_an_extent_that_is_read_late() -> None:
    """The body has stored by a mask before it asks: the code must be for the extent all the same."""

    def body(x: Any, out: Any) -> None:
        part = kd.ds(kd.program_id(0) * 32, 32)
        value = x[part]
        out[part] = value + float(out.shape[0] % 3)

    kernel = kd.kernel(body, out_type=lambda x: x, grid=lambda x: (kd.cdiv(x.shape[0], 32),))
    for n in (40, 41, 42):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(kernel(x, interpret=True), x + n % 3)
    assert len(kernel.specialisations()) == 3


def test_a_grid_that_asks_for_values_is_asked_at_each_call() -> None:
    def body(x: Any, out: Any) -> None:
        row = kd.program_id(0)
        out[row] = x[row] * 2

    kernel = kd.kernel(body, out_type=lambda x: x, grid=lambda x: (min(x.shape[0], 1000),))
    for rows in (3, 5, 1):
        x = np.arange(rows * 8, dtype=np.float32).reshape(rows, 8)
        np.testing.assert_array_equal(kernel(x, interpret=True), x * 2)
    assert len(kernel.specialisations()) == 1


def test_the_size_of_a_grid_is_read_by_its_name() -> None:
    def body(x: Any, out: Any) -> None:
        row = kd.axis_index("row")
        out[row] = x[row] * kd.axis_size("row")

    kernel = kd.kernel(body, out_type=lambda x: x, grid=lambda x: (min(x.shape[0], 4),), grid_names=("row",))
    for rows, sizes in ((3, 1), (4, 2), (3, 2)):
        x = np.ones((rows, 8), np.float32)
        np.testing.assert_array_equal(kernel(x, interpret=True), x * rows)
        assert len(kernel.specialisations()) == sizes


def added(out: Any, value: Any, **how: Any) -> None:
    kd.atomic_add(out, value, **how)


SMALLER: dict[str, tuple[Any, Any, Any]] = {  # (body, dtype of the output, what NumPy gives)
    "sum": (lambda x, out: out.__setitem__(..., kd.sum(x[...])), np.float32, lambda x: x.sum()),
    "one element": (lambda x, out: out.__setitem__(slice(None), x[:1, :1]), np.float32, lambda x: x[:1, :1]),
    "a row": (lambda x, out: out.__setitem__(..., x[1]), np.float32, lambda x: x[1]),
    "a column": (lambda x, out: out.__setitem__(..., x[:, 2:3]), np.float32, lambda x: x[:, 2:3]),
    "masked": (lambda x, out: kd.store(out, ..., x[0, 1], mask=x[0, 0] > -9), np.float32, lambda x: x[0, 1]),
    "atomic": (lambda x, out: added(out, x[0, 0]), np.float32, lambda x: x[0, 0]),
    "atomic row": (lambda x, out: added(out, x[0], mask=x[0, 0] > -9), np.float32, lambda x: x[0]),
    "4 bits": (
        lambda x, out: out.__setitem__(..., kd.sum(x[...]).astype(kd.int4)),
        kd.int4,
        lambda x: np.trunc(x.sum()),
    ),
}


@pytest.mark.parametrize("name", SMALLER)
def test_smaller_values_fill_a_whole_output(name: str) -> None:
    """Without a read of its extents before: each call's own are then read."""
    body, dtype, wanted = SMALLER[name]
    kernel = kd.kernel(body, out_type=lambda x: Spec(x.shape, dtype, init=0))
    for rows, columns in ((4, 16), (3, 16), (4, 32)):
        x = np.random.default_rng(rows).uniform(-0.1, 0.1, (rows, columns)).astype(np.float32)
        found = np.asarray(kernel(x, interpret=True)).astype(np.float64)
        np.testing.assert_allclose(found, np.broadcast_to(wanted(x.astype(np.float64)), x.shape), atol=1e-5)
    assert len(kernel.specialisations()) == 3


def test_outputs_that_are_computed_of_extents() -> None:
    def body(x: Any, out: Any) -> None:
        part = kd.ds(kd.program_id(0) * 16, 16)
        out[part] = x[part] + 1

    kernel = kd.kernel(
        body,
        out_type=lambda x: Spec((2 * x.shape[0] + 1,), x.dtype, init=7),
        grid=lambda x: (kd.cdiv(x.shape[0], 16),),
    )
    for n in (5, 16, 3, 50):
        x = np.arange(n, dtype=np.int32)
        want = np.full(2 * n + 1, 7, np.int32)
        reach = min(-(-n // 16) * 16, 2 * n + 1)
        want[:reach] = 1
        want[:n] = x + 1
        np.testing.assert_array_equal(kernel(x, interpret=True), want)
    assert len(kernel.specialisations()) == 1


def test_no_mask_where_the_grid_is_the_extent() -> None:
    def body(x: Any, out: Any) -> None:
        row = kd.program_id(0)
        out[row] = x[row]

    stages = kd.kernel(body, out_type=lambda x: x, grid=lambda x: (x.shape[0],)).lower(Spec((1000, 512), kd.float32))
    assert "setp" not in stages.ptx and stages.ptx.count(".param .u64") == 2
    assert parse(stages.ir_text).grid == stages.ir.grid
    assert unmasked(stages)


def test_no_mask_where_whole_blocks_fit() -> None:
    def body(x: Any, out: Any) -> None:
        part = kd.ds(kd.program_id(0) * 128, 128)
        out[part] = x[part]

    grid = lambda x: (x.shape[0] // 128,)  # noqa: E731
    stages = kd.kernel(body, out_type=lambda x: x, grid=grid).lower(Spec((1024,), kd.float32))
    assert unmasked(stages)


def test_extents_beyond_32_bits() -> None:
    """One code for 300 elements and for 2^32 + 300: the index is 64 bits wide, and so is the extent."""

    def body(x: Any, start: Any, out: Any) -> None:
        out[...] = x[kd.ds(start, 256)]

    kernel = kd.kernel(body, out_type=Spec((256,), kd.float32))
    small = np.broadcast_to(np.float32(3), (300,))
    large = np.broadcast_to(np.float32(5), (2**32 + 300,))
    for x, start in ((small, 100), (large, 2**32 + 200), (large, 2**31 - 10)):
        want = np.zeros(256, np.float32)
        want[: max(0, min(256, len(x) - start))] = x[0]
        np.testing.assert_array_equal(kernel(x, np.int64(start), interpret=True), want)
    assert len(kernel.specialisations()) == 1


def test_the_text_of_a_kernel_has_no_size_that_it_is_not_for() -> None:
    kernel = example("01_softmax").rows_kernel(2)
    one, other = (kernel.lower(Spec((rows, 64), kd.float32)) for rows in (10, 4000))
    assert one.key_text == other.key_text and one.ptx == other.ptx
    assert one.kernel.launch.grid != other.kernel.launch.grid
    assert one.for_any == other.for_any


def test_what_each_block_has_of_its_own_is_for_this_many() -> None:
    def body(x: Any, out: Any, count: Any) -> None:
        row = kd.program_id(0)
        kd.semaphore_signal(count, 1)
        out[row] = x[row] + kd.semaphore_read(count)

    kernel = kd.kernel(
        body, out_type=lambda x: x, grid=lambda x: (x.shape[0],), scratch_types=[kd.SemaphoreType.REGULAR]
    )
    for rows in (2, 5, 2):
        x = np.arange(rows * 4, dtype=np.int32).reshape(rows, 4)
        np.testing.assert_array_equal(kernel(x, interpret=True), x + 1)
    assert len(kernel.specialisations()) == 2


def test_a_grid_of_four_axes() -> None:
    def body(x: Any, out: Any) -> None:
        where = tuple(kd.program_id(axis) for axis in range(4))
        out[where] = x[where] * 3

    kernel = kd.kernel(body, out_type=lambda x: x, grid=lambda x: x.shape[:4])
    for shape in ((2, 3, 2, 2, 4), (1, 2, 3, 1, 4)):
        x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
        np.testing.assert_array_equal(kernel(x, interpret=True), x * 3)


def test_a_grid_that_is_folded_has_its_own_code() -> None:
    """More than 65535 blocks along y are counted along x, in code of their own."""

    def body(x: Any, out: Any) -> None:
        row, part = kd.program_id(0), kd.program_id(1)
        out[row, kd.ds(part * 4, 4)] = x[row, kd.ds(part * 4, 4)]

    kernel = kd.kernel(body, out_type=lambda x: x, grid=lambda x: (x.shape[0], kd.cdiv(x.shape[1], 4)))
    small, large = (kernel.lower(Spec((rows, 8), kd.int32)) for rows in (5, 70000))
    assert small.kernel.launch.grid == (2, 5, 1) and large.kernel.launch.grid == (140000, 1, 1)
    assert "ctaid.y" in small.ptx and "ctaid.y" not in large.ptx


def test_a_ref_shows_the_extents_of_the_call() -> None:
    """Which reads none of them: the code still serves all."""
    shown: list[str] = []

    def body(x: Any, out: Any) -> None:
        shown.append(repr(x))
        out[kd.program_id(0)] = x[kd.program_id(0)]

    kernel = kd.kernel(body, out_type=lambda x: kd.ShapeDtypeStruct(x.shape, x.dtype), grid=lambda x: (x.shape[0],))
    for rows in (3, 5):
        _ = kernel(np.zeros((rows, 8), np.float32), interpret=True)
    assert set(shown) == {"<Ref x gmem float32[3,8]>"} and len(kernel.specialisations()) == 1


@pytest.mark.parametrize("kind", [np.int8, np.uint16, np.int32, np.int64, int])
def test_outputs_that_a_number_decides_go_to_out(kind: Any) -> None:
    """Numbers of NumPy are numbers, too, where `out=` is checked."""

    @kd.kernel(out_type=lambda x, n: kd.ShapeDtypeStruct((n, *x.shape), x.dtype), grid=lambda x, n: (n,))
    def repeat(x: Any, n: Any, out: Any) -> None:
        out[kd.program_id(0)] = x[...] * n.astype(kd.float32)

    x, out = np.ones(64, np.float32), np.zeros((3, 64), np.float32)
    assert repeat(x, kind(3), out=out, interpret=True) is out and (out == 3).all()
    with pytest.raises(kd.Error, match=r"\[4, 64\]"):
        repeat(x, kind(4), out=out, interpret=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
@pytest.mark.parametrize("minor", [1, 3, 4, 6, 24])
def test_an_extent_is_asked_for_what_its_neighbours_lack(dtype: Any, minor: int) -> None:
    """Rows start at multiples of a vector by their own length or, at one place, by an unread extent's divisor."""
    part = math.gcd(minor + 2, 8)  # the elements of a row that the last two kernels read

    def rows(whole: bool, some: bool) -> Any:
        def body(x: Any, out: Any) -> None:
            at = tuple(kd.axis_index(name) for name in "ijk")
            at = (*at, kd.ds(kd.axis_index("i") * 16, part)) if some else at
            out[at] = x[at] + 1

        def grid(x: Any) -> tuple[Any, ...]:
            return (*x.shape[:2], x.shape[2] if whole else 1)

        return kd.kernel(body, out_type=lambda x: x, grid=grid, grid_names=("i", "j", "k"))

    kernels = [rows(whole, some) for whole in (True, False) for some in (False, True)]
    lacking = math.gcd(part, 16 // np.dtype(dtype).itemsize) // math.gcd(minor, part, 16 // np.dtype(dtype).itemsize)
    answers: set[int] = set()
    for middle in (1, 2, 3, 4, 6, 8):
        x = np.random.default_rng(middle).integers(-9, 9, (1, 3, middle, minor)).astype(dtype)
        for number, kernel in enumerate(kernels):
            there = np.s_[:, :, : middle if number < 2 else 1, : part if number % 2 else minor]
            assert np.array_equal(kernel(x, interpret=True)[there], x[there] + 1)
        answers.add(math.gcd(middle, lacking))
    assert [len(kernel.specialisations()) for kernel in kernels] == [1, 1, 1, len(answers)]
