"""Index arrays and slices along any extents, declared as `kd.Dim`s or not: one compile, and what lies beyond stays as it is."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

DIMS = kd.Dim("a"), kd.Dim("b"), kd.Dim("c")
SIZES = (1, 2, 3, 5, 8, 17, 31)
AROUND = 40  # elements around an array that an index may name
OLD = {"atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or", "atomic_xor", "atomic_xchg", "atomic_cas"}
OPS: dict[str, Callable[[Any, Any], Any]] = {
    "load": lambda old, x: old,
    "store": lambda old, x: x,
    "atomic_add": lambda old, x: old + x,
    "atomic_max": np.maximum,
    "atomic_min": np.minimum,
    "atomic_and": np.bitwise_and,
    "atomic_or": np.bitwise_or,
    "atomic_xor": np.bitwise_xor,
    "atomic_xchg": lambda old, x: x,
    "atomic_cas": lambda old, x: np.where(old == 3, x, old),
}
BITS = ("atomic_and", "atomic_or", "atomic_xor")
ONCE = ("store", "atomic_xchg", "atomic_cas")  # what the order of equal indices decides
INTS, FLOATS = ("int32", "uint32", "int64", "uint64"), ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True)
class Program:
    """An access to an array of `extents` (a number, or None for a Dim) by an entry for each axis.

    An entry is ("array", dimensions), ("scalar",), ("slice", size, step) or ("all",).
    """

    op: str
    dtype: str
    extents: tuple[int | None, ...]
    entries: tuple[tuple[Any, ...], ...]
    lanes: tuple[int, ...]  # the shape of the index arrays
    masked: bool
    kept: bool  # whether the old values are used
    order: str
    declared: bool  # whether extents of None are Dims

    def index(self, starts: Any, arrays: Any, slices: Any) -> tuple[Any, ...]:
        """The index by starts and index arrays of the axes; `slices` makes one from start, size and step."""
        found: list[Any] = []
        for axis, (kind, *rest) in enumerate(self.entries):
            found.append(
                arrays[axis] if kind == "array"
                else starts[axis] if kind == "scalar"
                else slice(None) if kind == "all"
                else slices(starts[axis], *rest)
            )  # fmt: skip
        return tuple(found)


def make(rng: np.random.Generator) -> Program:
    """A program; several that can't be written are drawn again."""
    op = str(rng.choice(list(OPS)))
    rank = int(rng.integers(1, 4))
    floats = () if op in BITS else FLOATS
    small = ("int8", "bool_") if op in ("load", "store") else ()
    dtype = str(rng.choice([*INTS, *floats, *small]))
    extents = tuple(None if rng.random() < 0.75 else int(rng.choice([4, 7, 16])) for _ in range(rank))
    entries: list[tuple[Any, ...]] = []
    for extent in extents:
        kinds = ["array", "array", "scalar", "slice"] + ["all"] * (extent is not None)
        kind = str(rng.choice(kinds))
        entries.append((kind, int(rng.choice([1, 4, 8])), int(rng.choice([1, 1, 2]))) if kind == "slice" else (kind,))
    lanes = ((64,), (128,), (8, 16), (16, 4))[int(rng.integers(4))]
    order = str(rng.choice(["relaxed", "relaxed", "release", "acq_rel"]))
    masked, kept, declared = (bool(rng.random() < p) for p in (0.4, 0.5, 0.5))
    return Program(op, dtype, extents, tuple(entries), lanes, masked, kept, order, declared)


def shape_of(p: Program) -> tuple[int, ...]:
    """The shape of the result, as NumPy has it."""
    whole = np.zeros([e if kind == "all" else AROUND for e, (kind, *_) in zip(p.extents, p.entries, strict=True)], bool)
    arrays = [np.zeros(p.lanes, int)] * len(p.entries)
    return whole[p.index([0] * 3, arrays, lambda start, size, step: slice(start, start + size * step, step))].shape


def kernel_of(p: Program) -> Any:
    """The kernel (target, starts, index arrays, values, mask) -> (target after it, old values)."""
    rank, shape = len(p.extents), shape_of(p)
    dims = tuple(DIMS[i] if e is None else e for i, e in enumerate(p.extents))

    def body(target: Any, starts: Any, indices: Any, values: Any, mask: Any, out: Any, old: Any) -> None:
        index = p.index(
            [starts[i] for i in range(rank)],
            [indices[i] for i in range(rank)],
            kd.ds,
        )
        guard = {"mask": mask[...] != 0} if p.masked else {}
        if p.op == "load":
            old[...] = kd.load(target, index, **guard, **({"fill": 1} if p.masked else {}))
            return
        if p.op == "store":
            kd.store(out, index, values[...], **guard)
            return
        given = (3, values[...]) if p.op == "atomic_cas" else (values[...],)
        found = getattr(kd, p.op)(out.at[index], *given, order=p.order, **guard)
        if p.kept:
            old[...] = found

    dtype = getattr(kd, p.dtype)
    old = kd.ShapeDtypeStruct(shape, dtype, init=0)
    return kd.kernel(
        body,
        out_type=(kd.ShapeDtypeStruct(dims, dtype), old) if p.declared else lambda x, *_: (x, old),
        shapes={0: dims, 1: (3,), 2: (3, *p.lanes), 3: shape, 4: shape} if p.declared else None,
        input_output_aliases={0: 0},
        name=p.op,
    )


def check(p: Program, kernel: Any, rng: np.random.Generator, interpret: bool | None) -> tuple[int, ...]:
    """One call of new sizes beside NumPy. Returns what the signature has of the sizes: by how much extents are divisible."""
    sizes = tuple(int(rng.choice(SIZES)) if e is None else e for e in p.extents)
    shape = shape_of(p)
    dtype = getattr(kd, p.dtype).numpy
    high = 2 if p.dtype == "bool_" else 6
    target, values = (rng.integers(0, high, s).astype(dtype) for s in (sizes, shape))
    mask = rng.integers(0, 2, shape).astype(np.int8)
    starts = np.array([int(rng.integers(-3, n + 3)) for n in (*sizes, 1, 1)][:3], np.int32)
    indices = np.stack([rng.integers(-4, n + 4, p.lanes) for n in (*sizes, 1, 1)][:3]).astype(np.int32)
    if p.op in ONCE:
        many = int(np.prod(p.lanes))  # each index once, whatever the other axes say
        indices[:] = (rng.permutation(many) - 4).reshape(p.lanes)
    # the number of each element in a frame of elements that are outside
    frame = np.pad(np.arange(target.size).reshape(sizes), [(AROUND, AROUND + 140)] * len(sizes), constant_values=-1)
    rows = [slice(AROUND, AROUND + n) for n in sizes]
    whole = frame[tuple(r if kind == "all" else slice(None) for r, (kind, *_) in zip(rows, p.entries, strict=True))]
    moved = p.index(starts + AROUND, indices.astype(int) + AROUND, lambda s, n, step: slice(s, s + n * step, step))
    at = whole[moved]
    assert at.shape == shape
    inside = (at >= 0) & (mask != 0 if p.masked else True)
    expected = target.copy()
    flat = expected.reshape(-1)
    before = np.where(inside, flat[np.where(inside, at, 0)], np.array(1 if p.masked else 0, dtype))
    if p.op != "load":
        for i, x in zip(at[inside], values[inside], strict=True):
            flat[i] = OPS[p.op](flat[i], x)
    got, old = kernel(target, starts, indices, values, mask, interpret=interpret)
    got, old = np.asarray(got), np.asarray(old)
    divisors = tuple(math.gcd(n, 16 // dtype.itemsize) for n in sizes[1:])
    if p.op == "load":
        np.testing.assert_array_equal(old, before)
        return divisors
    np.testing.assert_array_equal(got, expected)
    if p.op in OLD and p.kept and np.unique(at[inside]).size == inside.sum():
        np.testing.assert_array_equal(old[inside], before[inside])
    return divisors


def run(seed: int, interpret: bool | None = True) -> Program:
    rng = np.random.default_rng(seed)
    p = make(rng)
    kernel = kernel_of(p)
    divisors = {check(p, kernel, rng, interpret) for _ in range(4)}
    assert len(kernel.specialisations()) <= (1 if p.declared else len(divisors)), p
    return p


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.sampled(2)
def test_any_extent(seed: int) -> None:
    run(seed)


@pytest.mark.slow
def test_any_extent_at_length() -> None:
    for seed in range(10, 200):
        run(seed)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(40))
def test_any_extent_on_a_gpu(seed: int) -> None:
    run(seed, None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--gpu", action="store_true")
    given = parser.parse_args()
    for number in range(given.seed, given.seed + given.count):
        try:
            run(number, None if given.gpu else True)
        except Exception as error:
            print(number, make(np.random.default_rng(number)), f"{type(error).__name__}: {error}"[:900], flush=True)


SIGNED = (np.int8, np.int16, np.int32, np.int64)


@pytest.mark.parametrize("where", ["extent", "Dim", "short Dim", "value"])
def test_static_indices_of_every_dtype(where: str) -> None:
    """Arrays and lists of small dtypes over long axes, from either end. Of a Dim's axis they may be past an end, too."""
    rng = np.random.default_rng(8)
    dims = {"Dim": kd.Dim("N", min=0), "short Dim": kd.Dim("N", min=0, max=400)}
    sizes = (0, 1, 5, 300) if where in dims else (300,)
    given: list[Any] = [[0, 3, 1, 2], [], np.array([[1, 2], [3, 0]], np.uint64)]
    for dtype in (*SIGNED, np.uint8, np.uint16, np.uint32, np.uint64):
        low = -100 if dtype in SIGNED else 0
        given.append(rng.integers(low, 101, 4).astype(dtype))
    given += [[400, -301, 2, 2**40], np.array([2**63 + 1], np.uint64)] if where in dims else []
    given = [index for index in given if np.size(index) or where in dims]

    def body(x: Any, out: Any) -> None:
        source = x[...] if where == "value" else x
        for number, index in enumerate(given):
            out[number] = kd.sum(source[index]) if np.size(index) else 0.0

    declared: dict[str, Any] = {"shapes": {"x": (dims[where],)}} if where in dims else {}
    kernel = kd.kernel(body, out_type=kd.ShapeDtypeStruct((len(given),), kd.float32), grid=(1,), **declared)
    for n in sizes:
        x = np.arange(1, n + 1).astype(np.float32)
        flat = [[int(i) for i in np.asarray(index).ravel().astype(object)] for index in given]
        want = [sum(x[i] for i in index if -n <= i < n) for index in flat]
        np.testing.assert_array_equal(kernel(x, interpret=True), np.array(want, np.float32))
    assert len(kernel.specialisations()) == 1


def test_static_indices_of_stores_along_a_dim() -> None:
    @kd.kernel(
        out_type=lambda x: kd.ShapeDtypeStruct(x.shape, kd.float32, 0),
        grid=(1,),
        shapes={"x": (kd.Dim("N", min=0),), "out": (kd.Dim("N", min=0),)},
    )
    def store(x: Any, out: Any) -> None:
        out[[1, -1]] = x[[0, 3]]

    for n in (0, 1, 2, 5):
        x, want = np.arange(1, n + 1).astype(np.float32), np.zeros(n, np.float32)
        for place, source in ((1, 0), (-1, 3)):
            if -n <= place < n:
                want[place] = x[source] if source < n else 0
        if n != 2:  # there, both are one element
            np.testing.assert_array_equal(store(x, interpret=True), want)
