"""Layout conversions: right for random pairs of layouts, and without SMEM where nothing crosses warps."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import Layout
from tests.ops.harness import INTERPRET, random

Spec = kd.ShapeDtypeStruct


def random_layout(shape: tuple[int, ...], rng: np.random.Generator) -> Layout:
    """Every index bit to a random place: lanes and warps get what is dealt to them, registers the rest."""
    bits: list[tuple[int, int]] = []
    tops: list[tuple[int, int, int]] = []
    for dim, extent in enumerate(shape):
        stride = 1
        while stride < extent:
            left = -(-extent // stride)
            if left in (3, 5) and rng.integers(2):  # a factor that is no power of two
                tops.append((dim, left, stride))
                break
            bits.append((dim, stride))
            stride *= 2
    order = [bits[i] for i in rng.permutation(len(bits))]
    places: list[tuple[int, int] | None] = [None] * 7
    for position in rng.permutation(7):
        if order and rng.integers(4):
            places[position] = order.pop()
    regs = [(d, 2, s) for d, s in order] + tops
    return Layout(len(shape), tuple(regs), tuple(places[:5]), tuple(places[5:]))


def convert(x: Any, old: Layout, new: Layout) -> Any:
    """The kernel that loads in one layout and stores in another, and its compiled form."""

    def body(x: Any, out: Any) -> None:
        out[...] = kd.layout_cast(kd.load(x, layout=old), new)

    return kd.kernel(body, out_type=Spec(x.shape, x.dtype), interpret=INTERPRET)


SHAPES = [(32,), (200,), (8, 16), (5, 24), (64, 8), (3, 4, 10), (128, 3)]
DTYPES = ["float32", "int8", "bfloat16", "float64", "bool", "int64", "float8_e5m2"]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.sampled(4)
def test_random_pairs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape, dtype = SHAPES[seed % len(SHAPES)], DTYPES[int(rng.integers(len(DTYPES)))]
    old, new = random_layout(shape, rng), random_layout(shape, rng)
    if seed % 2:  # the same warps, so that shuffles can do it
        new = with_warps_of(new, old)
    new.check()
    x = random(shape, dtype, seed=seed)
    warnings.simplefilter("ignore", RuntimeWarning)  # some of them take too many registers
    np.testing.assert_array_equal(convert(x, old, new)(x), x, err_msg=f"{dtype} {old} {new}")


def with_warps_of(layout: Layout, other: Layout) -> Layout:
    """The layout with the other's warp bits; what it had there goes to registers."""
    taken = {b for b in other.warps if b is not None}
    kept = tuple(None if b in taken else b for b in layout.lanes)
    regs = {(d, 1 << i) for d, n, s in layout.regs for i in range(20) if s <= 1 << i < s * n and n & (n - 1) == 0}
    odd = [(d, n, s) for d, n, s in layout.regs if n & (n - 1)]
    if any(d == b[0] and b[1] >= s for b in taken for d, _, s in odd):
        return other
    regs |= {b for b in layout.warps if b is not None}
    return Layout(layout.rank, (*odd, *((d, 2, s) for d, s in regs - taken)), kept, other.warps)


def blocked(lanes: list[tuple[int, int] | None], regs: list[tuple[int, int, int]], warps: Any = (None, None)) -> Layout:
    return Layout(2, tuple(regs), tuple(lanes), tuple(warps))


ROWS = blocked([(1, 1), (1, 2), (1, 4), (0, 1), (0, 2)], [(0, 4, 4)])
SWAPPED = blocked([(0, 1), (0, 2), (1, 4), (1, 1), (1, 2)], [(0, 4, 4)])
EXCHANGED = blocked([(0, 4), (0, 8), (1, 4), (0, 1), (0, 2)], [(1, 4, 1)])
ONCE = blocked([(1, 1), (1, 2), (1, 4), (0, 1), (0, 2)], [(0, 2, 4)], warps=((0, 8), None))
FEW = blocked([(1, 1), None, None, None, None], [(0, 16, 1), (1, 4, 2)])
CASES = {
    "lanes permuted": (ROWS, SWAPPED, 4),
    "registers exchanged with lanes": (ROWS, EXCHANGED, None),
    "split over warps": (ROWS, ONCE, 0),
    "from replicated lanes": (FEW, ROWS, None),
    "to registers": (ROWS, FEW, None),
}


@pytest.mark.parametrize("name", CASES)
def test_no_shared_memory(name: str) -> None:
    old, new, shuffles = CASES[name]
    x = random((16, 8), "float32")
    kernel = convert(x, old, new)
    ptx = kernel.lower(x).ptx
    assert "st.shared" not in ptx and "ld.shared" not in ptx, name
    assert shuffles is None or ptx.count("shfl.sync") == shuffles
    np.testing.assert_array_equal(kernel(x), x)


def test_a_transposed_use_costs_a_note() -> None:
    x = random((64, 64), "float32")

    def body(x: Any, out: Any) -> None:
        value = x[...] * 2.0
        turned = value.T
        out[...] = value + turned

    stages = kd.kernel(body, out_type=Spec(x.shape, x.dtype)).lower(x)
    (note,) = stages.notes
    assert "through SMEM: 16384 bytes" in str(note)
    assert "turned = value.T" in str(note) and "out[...] = value + turned" in str(note)


def test_debug_prints_the_notes_and_every_pass(capsys: pytest.CaptureFixture[str]) -> None:
    def body(x: Any, out: Any) -> None:
        value = x[...]
        out[...] = value * 2.0 + value.T

    kd.kernel(body, out_type=Spec((16, 16), kd.float32), debug=True).lower(Spec((16, 16), kd.float32))
    shown = capsys.readouterr().out
    assert "[cost] float32[16,16] changes its layout" in shown
    assert "--- after order memory" in shown and ".visible .entry" in shown


def test_a_value_too_large_for_the_registers_warns_at_its_line() -> None:
    def body(x: Any, out: Any) -> None:
        value = x[...]
        out[...] = value + 1.0

    spec = Spec((65536,), kd.float32)
    with pytest.warns(RuntimeWarning, match="takes 512 registers a lane of 255.*num_threads.*fori_loop") as seen:
        kd.kernel(body, out_type=spec).lower(spec)
    assert len(seen) == 1 and seen[0].filename == __file__ and seen[0].lineno == body.__code__.co_firstlineno + 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for small in (Spec((16384,), kd.float32), Spec((512, 0, 512), kd.float32)):  # no element takes no register
            kd.kernel(body, out_type=small).lower(small)
