"""Index arithmetic where int32 could overflow for the grid and the extents: done in int64, and masks still proved away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests.ops.harness import INTERPRET, random

Spec = kd.ShapeDtypeStruct
HUGE = Spec((2**33,), kd.float32)


def lowered(index: Callable[[Any], Any], grid: int, source: kd.ShapeDtypeStruct = HUGE) -> Any:
    """A kernel that loads 128 elements of an array at an index made from the instance's number."""

    def body(x: Any, out: Any) -> None:
        out[kd.program_id(0)] = x[index(kd.program_id(0))]

    return kd.kernel(body, out_type=Spec((grid, 128), kd.float32), grid=(grid,)).lower(source)


INDICES: dict[str, Callable[[Any], Any]] = {
    "a product": lambda i: kd.ds(i * 2**27, 128),
    "halved again": lambda i: kd.ds(i * 2**27 // 2 * 2, 128),
    "truncated": lambda i: kd.ds(kd.div(i * 2**27, 2) * 2, 128),
    "with a truncated remainder": lambda i: kd.ds(i * 2**27 + kd.rem(i * 2**27, 1024), 128),
    "with a remainder": lambda i: kd.ds(i * 2**27 + (i * 2**27) % 1024, 128),
    "shifted": lambda i: kd.ds((i << 27) + 5, 128),
    "chosen": lambda i: kd.ds(kd.where(i > 3, i * 2**27, 0), 128),
    "clipped": lambda i: kd.ds(kd.minimum(i * 2**27, 2**30), 128),
    "cast": lambda i: kd.ds((i * 2**27).astype(kd.int64) + 1, 128),
    "gathered": lambda i: i * 2**27 + kd.arange(128) * 2,
}


@pytest.mark.parametrize("name", INDICES)
def test_products_are_wide(name: str) -> None:
    stages = lowered(INDICES[name], 64)
    reads = [op for op in stages.ir.walk() if op.op_name in ("load", "gather")]
    (start,) = reads[0].offsets or reads[0].indices
    assert start.type.dtype == kd.int64, str(stages)
    if reads[0].op_name == "load":
        assert reads[0].view.masked == (), "the range proves it in bounds"
    assert stages.ptx.count("ld.global.nc")


def test_small_extents_stay_narrow() -> None:
    stages = lowered(lambda i: kd.ds(i * 128, 128), 64, Spec((64 * 128,), kd.float32))
    (load,) = (op for op in stages.ir.walk() if op.op_name == "load")
    assert load.offsets[0].type.dtype == kd.int32 and load.view.masked == ()


def test_an_order_of_tiles_stays_narrow() -> None:
    """Quotients and remainders of what is bounded are bounded, in tiles that follow `planar_snake` too."""

    def body(x: Any, out: Any) -> None:
        m, n = kd.planar_snake(kd.program_id(0), (10, 6), 0, 4)
        tile = kd.ds(m * 128, 128), kd.ds(n * 128, 128)
        out[tile] = x[tile]

    spec = Spec((1280, 768), kd.float32)
    stages = kd.kernel(body, out_type=spec, grid=(60,)).lower(spec)
    (load,) = (op for op in stages.ir.walk() if op.op_name == "load")
    assert [v.type.dtype for v in load.offsets] == [kd.int32] * 2


def test_overflow_on_the_way_to_a_small_index() -> None:
    """The quotient fits int32 and its dividend does not: in int32 it would wrap, and the mask is proved away."""
    x = random((16,), "float32")

    def body(x: Any, out: Any) -> None:
        i = kd.program_id(0)
        far = i * 2**30
        small = x[far // 2**29] + x[kd.where(i > 3, far, 0) >> 30] + x[(far + 5) & 7]
        out[i] = small + x[kd.div(far, 2**29)] + x[kd.rem(far + 5, 7)]

    got = kd.kernel(body, out_type=Spec((8,), kd.float32), grid=(8,), interpret=INTERPRET)(x)
    i = np.arange(8)
    small = x[2 * i] + x[np.where(i > 3, i, 0)] + x[5]
    np.testing.assert_array_equal(got, small + x[2 * i] + x[(i * 2**30 + 5) % 7])


def test_ranges_beyond_int64_are_forgotten() -> None:
    """Squares of squares: nothing is known of them, and nothing grows with them."""
    x = random((16,), "float32")

    def body(x: Any, out: Any) -> None:
        i = kd.program_id(0) + 3
        for _ in range(60):
            i = i * i
        out[kd.program_id(0)] = x[i & 15] + x[i]

    kernel = kd.kernel(body, out_type=Spec((8,), kd.float32), grid=(8,), interpret=INTERPRET)
    wrapped = np.arange(8, dtype=np.int32) + np.int32(3)
    for _ in range(60):
        wrapped = wrapped * wrapped
    inside = (wrapped >= 0) & (wrapped < 16)
    np.testing.assert_array_equal(kernel(x), x[wrapped & 15] + np.where(inside, x[wrapped % 16], 0))


def test_unsigned_and_narrow_integers_wrap() -> None:
    x = random((256,), "float32")

    def body(x: Any, out: Any) -> None:
        i = kd.program_id(0)
        byte = (i.astype(kd.uint8) + np.uint8(250)).astype(kd.int32)
        word = (i.astype(kd.uint32) + np.uint32(2**32 - 3)) % np.uint32(7)
        out[i] = x[byte] + x[word]

    got = kd.kernel(body, out_type=Spec((20,), kd.float32), grid=(20,), interpret=INTERPRET)(x)
    i = np.arange(20, dtype=np.int64)
    np.testing.assert_array_equal(got, x[(i + 250) % 256] + x[(i + 2**32 - 3) % 2**32 % 7])


def test_promises_and_multiples_remove_masks() -> None:
    def body(x: Any, n: Any, out: Any, bounds: str | None = None, factor: int = 1) -> None:
        part = kd.ds(kd.multiple_of(n, factor), 512)
        kd.store(out, part, kd.load(x, part, bounds=bounds), bounds=bounds)

    spec = Spec((4096,), kd.float32)

    def ptx(bounds: str | None, factor: int) -> str:
        def made(x: Any, n: Any, out: Any) -> None:
            body(x, n, out, bounds, factor)

        return kd.kernel(made, out_type=spec).lower(spec, kd.int32(8)).ptx

    masked, aligned, promised = ptx(None, 1), ptx(None, 4), ptx("promise", 4)
    assert "setp" in masked and ".v4" not in masked
    assert ".v4" in aligned and "setp" in aligned
    assert ".v4" in promised and "setp" not in promised


LOW_BITS: dict[str, Callable[[Any, Any], Any]] = {
    "a mask of a sum": lambda a, b: a + b & 7,
    "a mask of a product": lambda a, b: 5 & a * b - 3,
    "a remainder of a difference": lambda a, b: (a - b * 3) % 8,
    "a remainder of a shifted number": lambda a, b: ((a << 3) + b) % 2,
}


@pytest.mark.parametrize("name", LOW_BITS)
def test_low_bits_stay_narrow(name: str) -> None:
    """Overflow does not change the low bits of a number: 32 bits are enough for them."""
    x = random((8,), "float32")

    @kd.kernel(out_type=Spec((), kd.float32))
    def kernel(x: Any, a: Any, b: Any, out: Any) -> None:
        out[...] = x[LOW_BITS[name](a, b)]

    ints = np.random.default_rng(0).integers(-(2**31), 2**31, (20, 2))
    for a, b in ((2**31 - 1, 2**31 - 1), (-(2**31), -5), *((int(a), int(b)) for a, b in ints)):
        assert kernel(x, np.int32(a), np.int32(b), interpret=INTERPRET) == x[LOW_BITS[name](a, b)]
    stages = kernel.lower(x, kd.int32(0), kd.int32(0))
    (load,) = (op for op in stages.ir.walk() if op.op_name == "load")
    assert load.offsets[0].type.dtype == kd.int32 and load.view.masked == ()
