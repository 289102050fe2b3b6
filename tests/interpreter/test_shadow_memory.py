"""What finding races takes in memory beside the arrays, and the error where a machine has too little."""

from __future__ import annotations

import tracemalloc
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.interpreter.checks import global_shadow, parted_shadow
from kernel_dsl.runtime.interpreter.checks.columns import Accesses
from kernel_dsl.runtime.interpreter.checks.doubts import Doubts
from kernel_dsl.runtime.interpreter.checks.numbers import Numbers, Whole
from kernel_dsl.runtime.interpreter.checks.readers import Readers

from .launching import kernel, launch
from .planted import REGISTERS

BYTES = 1 << 17
HEAD = (
    REGISTERS
    + """ .reg .b32 own<10>; .reg .b64 at<10>;
 ld.param.u64 d1, [a]; mov.u32 r2, %ctaid.x; mov.u32 r3, %ntid.x; mad.lo.u32 r2, r2, r3, r1;
"""
)
VALUES = {1: ("u8", "h1"), 2: ("u16", "h1"), 4: ("u32", "r4"), 8: ("u64", "d9"), 16: ("v4.u32", "{r4, r5, r6, r7}")}
# The word of a thread in four orders: its own, that of the next warp, down the columns of a matrix, and scattered.
ORDERS = {
    "own": "mov.u32 r20, r2;",
    "next": "add.u32 r20, r2, 32; and.b32 r20, r20, LAST;",
    "columns": "and.b32 r20, r2, 255; shr.u32 r21, r2, 8; mad.lo.u32 r20, r20, ROWS, r21;",
    "scattered": "mul.lo.u32 r20, r2, 2654435761; and.b32 r20, r20, LAST;",
    "elsewhere": "mul.lo.u32 r20, r2, 2246822519; add.u32 r20, r20, 12345; and.b32 r20, r20, LAST;",
}
PATTERNS = ("w own", "r own w own", "r own r next", "r own w own r next", "w own r columns", "w own r scattered")
MANY = "w own r own r columns r scattered"


@pytest.fixture(name="shadows")
def the_shadows(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[global_shadow.GlobalShadow]]:
    """The shadows that launches make."""
    made: list[global_shadow.GlobalShadow] = []
    start = global_shadow.GlobalShadow.__init__

    def kept(self: global_shadow.GlobalShadow, *args: Any) -> None:
        start(self, *args)
        made.append(self)

    monkeypatch.setattr(global_shadow.GlobalShadow, "__init__", kept)
    yield made
    made.clear()


def text_of(pattern: str, width: int, size: int) -> str:
    """A kernel that accesses each word of `width` bytes in these orders."""
    words = size // width
    type_, value = VALUES[width]
    lines = [HEAD]
    steps = pattern.split()
    for access, order in zip(steps[::2], steps[1::2], strict=True):
        place = ORDERS[order].replace("LAST", str(words - 1)).replace("ROWS", str(words // 256))
        lines.append(f" {place} mul.wide.u32 d2, r20, {width}; add.s64 d3, d1, d2;")
        lines.append(f" st.global.{type_} [d3], {value};" if access == "w" else f" ld.global.{type_} {value}, [d3];")
    return kernel(".param .u64 a", "\n".join(lines) + " ret;")


def run(pattern: str, width: int, size: int, detect: bool = True) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # words that another warp has read are races
        data = np.zeros(size, np.uint8)
        launch(
            text_of(pattern, width, size), "k", [data], grid=size // width // 512, block=512,
            detect_hazards=detect, on_hazard="warn",
        )  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("width", VALUES)
def test_bytes_of_shadow_a_byte(width: int, pattern: str, shadows: list[Any]) -> None:
    run(pattern, width, BYTES)
    shadow = shadows[-1]  # those of runs before, which found races in doubt, are gone
    assert not any(vars(other) for other in shadows[:-1])
    assert 0 < shadow.nbytes <= 6 * BYTES
    assert shadow.nbytes <= {1: 6, 2: 3, 4: 1.5, 8: 0.8, 16: 0.5}[width] * BYTES


FAR = (
    "w scattered r elsewhere",
    "w own r scattered",
    "w scattered r scattered",
    "r elsewhere w scattered",
    "r own w own r own",
)


@pytest.mark.parametrize("pattern", [FAR[0], *(pytest.param(p, marks=pytest.mark.slow) for p in FAR[1:])])
def test_single_bytes_of_more_warps_than_two_bytes_can_number(pattern: str, shadows: list[Any]) -> None:
    size = 1 << 21
    run(pattern, 1, size)
    assert 2 * size < shadows[-1].nbytes <= 6 * size


SIX = "w scattered w elsewhere w columns r scattered r elsewhere r columns"


@pytest.mark.parametrize("pattern", [SIX, *(pytest.param(p, marks=pytest.mark.slow) for p in (
    "w scattered w elsewhere r own", "w scattered w elsewhere r columns r own",
    "w own w scattered w elsewhere r columns r own r scattered"))])  # fmt: skip
def test_single_bytes_in_several_orders_that_nothing_orders(pattern: str, shadows: list[Any]) -> None:
    size = 1 << 21
    run(pattern, 1, size)
    assert 2 * size < shadows[-1].nbytes <= 5.5 * size


def test_entries_that_a_column_may_have() -> None:
    """Two columns of single bytes take less than 6 bytes a byte, up to 16 GB."""
    for bits in range(10, 35):
        column = Accesses(0, np.uint16, lambda needed: None)
        column.size, column.folding = 1 << bits, lambda: None
        few = column.usual()
        planes = max(0, (few - 1).bit_length() - 16)
        assert 2 * (2 + planes / 8 + 11 * few / column.size) < 5.9 and (bits > 24 or few == column.size // 32)


@pytest.mark.parametrize("width", [2, 4, 16])
def test_words_that_are_read_in_several_orders(width: int, shadows: list[Any]) -> None:
    run(MANY, width, BYTES)
    assert 0 < shadows[-1].nbytes <= 6 * BYTES


@pytest.mark.parametrize("width", [2, 4])
def test_parts_of_an_array_become_one_where_warps_access_many(
    width: int, shadows: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parted_shadow, "_PART", 1 << 13)
    monkeypatch.setattr(Doubts, "put_off", lambda self, shadow, a, g, rows, bad, *rest: bad)  # all loads are in it
    run("r own w own", width, BYTES)
    assert len(shadows[-1].parts) == BYTES >> 13
    run("w own r scattered", width, BYTES)
    assert len(shadows[-1].parts) == 1
    assert shadows[-1].nbytes <= 6 * BYTES


@pytest.mark.slow
@pytest.mark.parametrize("pattern", FAR)
def test_memory_at_its_highest_for_single_bytes(pattern: str) -> None:
    test_memory_at_its_highest(1, pattern, 6.5)  # with what exists for a moment


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [*PATTERNS, MANY])
@pytest.mark.parametrize("width", [2, 4, 16])
def test_memory_at_its_highest(width: int, pattern: str, most: float = 6) -> None:
    size = 1 << 24
    highest: list[int] = []
    for detect in (False, True):
        tracemalloc.start()
        run(pattern, width, size, detect)
        highest.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert highest[1] - highest[0] <= most * size


def test_a_peak_with_all_that_the_interpreter_takes() -> None:
    size = 1 << 20
    run("w own", 4, size)  # what is made once
    highest: list[int] = []
    for detect in (False, True):
        tracemalloc.start()
        run("r own w own r next", 4, size, detect)
        highest.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert highest[1] - highest[0] <= 6 * size


def test_entries_that_nobody_refers_to_are_dropped() -> None:
    column = Accesses(1 << 10, np.uint16, lambda needed: None)
    g = np.arange(1 << 10)
    for step in range(1, 200):
        epochs = np.arange(32) + (step << 32)
        column.put(g, column.of(epochs, step, 0)[g % 32])
        assert (column.epoch[column.get(g)] == epochs[g % 32]).all()
        assert (column.site[column.get(g)] == step).all()
    assert column.collected > 0 and column.count < 2000 and not column.numbers.planes


def test_a_loop_of_several_accesses_makes_no_further_entries() -> None:
    writes = Accesses(1 << 10, np.uint16, lambda needed: None)
    reads = Readers(1 << 10, np.uint16, lambda needed: None)
    for step in range(100):
        for site, first in ((1, 0), (2, 0), (1, 500)):  # two groups of warps
            epochs = np.arange(first, first + 32) + (1 << 32)
            writes.put(np.arange(step, step + 32), writes.of(epochs, site, 0))
            reads.put(np.arange(step, step + 32), reads.of(epochs, site, 0))
    assert writes.count == reads.count == 1 + 3 * 32


def test_numbers_grow_where_two_bytes_are_too_few() -> None:
    size = 1 << 17
    column = Accesses(size, np.uint16, lambda needed: None)
    for start in range(0, size, 1024):
        g = np.arange(start, start + 1024)
        column.put(g, column.add((g + 1) << 32, 1, 0))
    assert column.numbers.most == 1 << 18 and column.numbers.nbytes == size * 9 // 4
    assert (column.epoch[column.get(np.arange(size))] >> 32 == np.arange(1, size + 1)).all()


@pytest.mark.parametrize("count", [1 << 10, 1 << 16, (1 << 16) + 1, 1 << 20, (1 << 20) + 1])
def test_numbers_of_any_length(count: int) -> None:
    rng = np.random.default_rng(count)
    size = 5001
    numbers = Numbers(size)
    numbers.make(lambda needed: None)
    numbers.fit(count, lambda needed: None)
    want = np.zeros(size, np.int64)
    for _ in range(50):
        g = rng.integers(0, size, 700)
        given = rng.integers(0, count, 700) if rng.random() < 0.9 else rng.integers(0, count)
        numbers.put(g, given)
        want[g] = given
    assert (numbers.get(np.arange(size)) == want).all() and numbers.most >= count
    assert (np.concatenate([part for _, part in numbers.chunks()]) == want).all()
    for end in (2 * size, 2 * size - 1):  # the last granule may have reached past the buffer
        twice = numbers.refined(2, end, Whole(end), lambda needed: None)
        assert (twice.get(np.arange(end)) == np.repeat(want, 2)[:end]).all()
    numbers.fill(1000, want[2000:])
    assert (numbers.get(np.arange(1000, size - 1000)) == want[2000:]).all()
    assert (numbers.get(np.arange(1000)) == want[:1000]).all()


@pytest.mark.parametrize("starts", [(0, 0), (0, 3000)])
def test_columns_that_become_one(starts: tuple[int, int]) -> None:
    """Parts with entries in common, and with more entries than two bytes can number."""
    rng = np.random.default_rng(7)
    size, parts = 1 << 17, []
    whole = Whole(2 * size)
    for number, first in enumerate(starts):
        part = Accesses(size, np.uint16, lambda needed: None, number * size, whole)
        g = rng.permutation(size) + number * size
        part.put(g, part.add((first + np.arange(1, size + 1)) << 32, 1, 0))
        parts.append(part)
    every = np.arange(2 * size)
    want = np.concatenate([part.epoch[part.get(every[:size] + part.start)] for part in parts])
    made = Accesses(2 * size, np.uint16, lambda needed: None, 0, whole)
    made.join(parts)
    assert (made.epoch[made.get(every)] == want).all()
    assert made.count == 1 + size + starts[1] and all(part.count == 1 and part.blank for part in parts)


def test_an_array_whose_shadow_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parted_shadow, "_SMALL", 1)
    monkeypatch.setattr(parted_shadow, "memory_left", lambda: 1000)
    text = text_of("w own", 4, 16384)
    with pytest.raises(
        kd.Error, match=r"find races in 'a', of 16384 bytes.*needs 8192 bytes more, and this machine has 1000"
    ):
        kd.check(text, np.zeros(4096, np.int32), grid=8, block=512)


def test_memory_that_runs_out_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter([1 << 30, 1 << 30, 500])
    monkeypatch.setattr(parted_shadow, "_SMALL", 1 << 10)
    monkeypatch.setattr(parted_shadow, "memory_left", lambda: next(left))
    text = text_of("r own w own", 4, 16384)
    with pytest.raises(kd.Error, match=r"find races in 'a', of 16384 bytes.*this machine has 500 left.*detect_hazards"):
        kd.check(text, np.zeros(4096, np.int32), grid=8, block=512)


def test_what_this_machine_has_left() -> None:
    left = parted_shadow.memory_left()
    assert left is None or 0 < left < 1 << 50
