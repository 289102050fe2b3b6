"""Random kernels with several Dims and their facts, whose grids and outputs are expressions of Dims and of a scalar, against NumPy.

A body adds up elements of its inputs at index expressions of the output's place and of Dims. Its text has two meanings: with
`kd` it is traced, and with NumPy's arrays it computes what the kernel must give.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.fuzz.choose import Choices
from tests.fuzz.texts import FromText

DTYPES = (np.float32, np.int32, np.int64, ml_dtypes.bfloat16, np.uint8, np.float16)
TILE, LARGEST, MOST = 600, 260, 30_000  # elements of a block; the greatest extent; elements of an array
NUMPY = SimpleNamespace(cdiv=lambda a, b: -(-a // b), minimum=min, maximum=max)


class Elements:
    """An input in the reference: elements outside of it are zeros."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape = array.astype(np.int64), array.shape

    def __getitem__(self, index: Any) -> Any:
        full = np.broadcast_arrays(*(index if isinstance(index, tuple) else (index,)))
        inside = np.ones(full[0].shape, bool)
        for i, n in zip(full, self.shape, strict=True):
            inside &= (i >= 0) & (i < n)
        place = tuple(np.clip(i, 0, max(n - 1, 0)) for i, n in zip(full, self.shape, strict=True))
        return np.where(inside, self.array[place], 0) if self.array.size else np.zeros(full[0].shape, np.int64)


class Program(FromText):
    """The kernel of a seed."""

    def __init__(self, seed: int) -> None:
        c, self.seed, self.name = Choices(seed), seed, f"dims_{seed}"
        self.facts: dict[str, tuple[int, int | None, int]] = {
            name: (
                c.weighted(((1, 4), (0, 1), (5, 1), (17, 1))),
                c.weighted(((None, 3), (1000, 2), (2**31 - 1, 1), (2**20, 1))),
                c.weighted(((1, 4), (2, 1), (3, 1), (8, 1), (16, 1))),
            )
            for name in "ABC"[: c.between(1, 3)]
        }
        self.scalar = c.chance(0.4)
        self.inputs = [[self._extent(c) for _ in range(c.between(1, 3))] for _ in range(c.between(1, 3))]
        for name in self.facts:
            if not any(name in shape for shape in self.inputs):
                self.inputs[-1].append(name)
        self.dtypes = [c.one(DTYPES) for _ in self.inputs]
        self.tiles = tuple(c.one((1, 2, 4, 7, 16, 33)) for _ in range(c.between(1, 3)))
        while np.prod(self.tiles) > TILE:
            self.tiles = tuple(max(n // 2, 1) for n in self.tiles)
        self.places = "ijk"[: len(self.tiles)]
        self.out = [self._expression(c) for _ in self.tiles]
        self.terms = [self._term(c) for _ in range(c.between(1, 3))]
        self.terms.append(c.one(("0", f"{c.one(list(self.facts))} * i", f"(i < {c.one(list(self.facts))})")))
        self.calls = [({name: self._size(c, name) for name in self.facts}, c.below(4)) for _ in range(3)]
        self._free = c.between(1, 8)

    def _extent(self, c: Choices) -> Any:
        return c.weighted(((c.one(list(self.facts)), 6), (c.between(1, 9), 2), (None, 1)))

    def _size(self, c: Choices, name: str) -> int:
        low, high, by = self.facts[name]
        first = -(-low // by) * by
        return max(min(first + by * c.below(c.one((3, 8, 40))), min(high or LARGEST, LARGEST) // by * by), first)

    def _expression(self, c: Choices) -> str:
        one, other, k = c.one(list(self.facts)), c.one(list(self.facts)), c.between(2, 5)
        made = (one, f"{one} + {k}", f"{one} * 2", f"kd.cdiv({one}, {k})", f"{one} // {k} + 1", f"kd.minimum({one}, {other})",
                f"kd.maximum({one}, {other})", f"{one} + {other}")  # fmt: skip
        return c.one((*made, f"{one} + n", "n + 1") if self.scalar else made)

    def _term(self, c: Choices) -> str:
        number = c.below(len(self.inputs))
        parts: list[str] = []
        for axis in range(len(self.inputs[number])):
            extent, i, one, k = f"x{number}.shape[{axis}]", c.one(self.places), c.one(list(self.facts)), c.between(2, 4)
            parts.append(c.weighted((
                (i, 5), (f"{extent} - 1 - {i}", 2), (f"{i} * {k}", 1), (f"{i} // {k}", 1), (f"{i} % {k}", 2),
                (f"{i} + {one}", 1), (f"{i} - {k}", 1), (f"{one} - {i}", 1), (f"{extent} // 2", 1), ("0", 1),
            )))  # fmt: skip
        return f"x{number}[{', '.join(parts)}]"

    @property
    def _sizes(self) -> list[str]:
        """Lines that give each Dim its name."""
        where = {name: f"x{n}.shape[{axis}]" for n, shape in enumerate(self.inputs) for axis, name in enumerate(shape)}
        return [f"    {name} = {where[name]}" for name in self.facts]

    def source(self) -> str:
        names = [*(f"x{n}" for n in range(len(self.inputs))), *["n"] * self.scalar]
        parameters, rank = ", ".join(names), len(self.tiles)
        grid = ", ".join(f"kd.cdiv({n}, {tile})" for n, tile in zip(self.out, self.tiles, strict=True))
        lines = ["import numpy as np", "import kernel_dsl as kd"]
        for what, result in (
            ("out_type", f"kd.ShapeDtypeStruct(({', '.join(self.out)},), kd.int64)"),
            ("grid", f"({grid},)"),
        ):
            lines += [f"def {what}({parameters}):", *self._sizes, f"    return {result}"]
        facts = [f"'{n}': kd.Dim('{n}', min={a}, max={b}, multiple_of={by})" for n, (a, b, by) in self.facts.items()]
        shapes = [f"'x{n}': ({', '.join(f'dims.get({e!r}, {e!r})' for e in x)},)" for n, x in enumerate(self.inputs)]
        lines += [f"dims = {{{', '.join(facts)}}}", f"def kernel({parameters}, out):", *self._sizes]
        for axis, (name, tile) in enumerate(zip(self.places, self.tiles, strict=True)):
            at = ", ".join(":" if other == axis else "None" for other in range(rank))
            lines.append(f"    {name} = (kd.program_id({axis}) * {tile} + kd.arange({tile}))[{at}]")
        lines.append(f"    total = kd.zeros({self.tiles}, kd.int64)")
        lines += [f"    total = total + ({term}).astype(kd.int64)" for term in self.terms[:-1]]
        at = ", ".join(f"kd.ds(kd.program_id({axis}) * {tile}, {tile})" for axis, tile in enumerate(self.tiles))
        lines.append(f"    out[{at}] = (total + {self.terms[-1]}).astype(kd.int64)")
        how = f"out_type=out_type, grid=grid, shapes={{{', '.join(shapes)}}}, name={self.name!r}"
        return "\n".join([*lines, f"kernel = kd.kernel(kernel, {how})"]) + "\n"

    def arrays(self, sizes: dict[str, int]) -> list[np.ndarray] | None:
        """The inputs of a call, unless they are large."""
        rng = np.random.default_rng(self.seed)
        shapes = [[sizes.get(e, self._free if e is None else e) for e in shape] for shape in self.inputs]
        if max(map(math.prod, shapes)) > MOST:
            return None
        return [rng.integers(0, 100, x).astype(dtype) for x, dtype in zip(shapes, self.dtypes, strict=True)]

    def wanted(self, sizes: dict[str, int], n: int, arrays: list[np.ndarray]) -> np.ndarray:
        names: dict[str, Any] = {**sizes, "n": n, "kd": NUMPY} | {f"x{i}": Elements(x) for i, x in enumerate(arrays)}
        shape = [eval(text, names) for text in self.out]
        names |= dict(zip(self.places, np.ogrid[tuple(slice(n) for n in shape)], strict=True))
        return np.broadcast_to(sum(np.asarray(eval(term, names)).astype(np.int64) for term in self.terms), shape)

    def check(self, interpret: Any) -> None:
        kernel = self.kernel()
        for sizes, n in self.calls:
            arrays = self.arrays(sizes)
            if arrays is None or (wanted := self.wanted(sizes, n, arrays)).size > MOST:
                continue
            got = kernel(*arrays, *[np.int32(n)] * self.scalar, interpret=interpret)
            np.testing.assert_array_equal(got, wanted, err_msg=f"{sizes}, n {n}\n{self.source()}")


def check_all(seeds: range, interpret: bool) -> None:
    for seed in seeds:
        Program(seed).check(interpret)


def test_sums_of_elements_at_any_places() -> None:
    check_all(range(30), True)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 250))
def test_sums_of_elements_at_any_places_long(first: int) -> None:
    check_all(range(first, first + 250), True)


@pytest.mark.gpu
def test_sums_of_elements_at_any_places_on_a_gpu() -> None:
    check_all(range(30), False)
