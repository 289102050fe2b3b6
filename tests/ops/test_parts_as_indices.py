"""Random gathers, scatters and atomics by several index arrays, each a part of a shape, of whose layouts none is known yet.

A body is text with two meanings: with `Language` it is traced, and with `Numpy` it computes what the kernel must give.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests.fuzz.choose import Choices
from tests.fuzz.texts import FromText

Shape = tuple[int, ...]
KINDS = ((("load", 5), ("value", 3), ("add", 3)), (("load", 5), ("value", 3), ("store", 3)))


def fitting(mask: Any, indices: Any) -> Any:
    """The mask, if it broadcasts to the shape of the indices; else None."""
    shape = np.broadcast_shapes(*(np.shape(i) if not hasattr(i, "shape") else i.shape for i in indices))
    try:
        return mask if np.broadcast_shapes(mask.shape, shape) == shape else None
    except ValueError:
        return None


class Language:
    """What bodies call, as the language says it."""

    arange, where, minimum, int64 = map(staticmethod, (kd.arange, kd.where, kd.minimum, kd.int64))

    @staticmethod
    def load(x: Any, indices: Any, mask: Any, fill: int) -> Any:
        return kd.load(x, indices, mask=fitting(mask, indices), fill=fill)

    @staticmethod
    def value(x: Any, indices: Any) -> Any:
        return x[...][indices]

    @staticmethod
    def store(x: Any, indices: Any, number: int, mask: Any) -> None:
        kd.store(x, indices, kd.full((), number, kd.int32), mask=fitting(mask, indices))

    @staticmethod
    def add(x: Any, indices: Any, number: int, mask: Any) -> None:
        kd.atomic_add(x.at[indices], kd.full((), number, kd.int32), mask=fitting(mask, indices))


class Numpy:
    """The same on NumPy arrays: elements outside of an array are masked, and ints wrap as Python's."""

    arange, where, minimum, int64 = map(staticmethod, (np.arange, np.where, np.minimum, np.int64))

    @staticmethod
    def _chosen(x: Any, indices: Any, mask: Any) -> tuple[Any, Any]:
        mask = fitting(mask, indices)
        full = np.broadcast_arrays(*indices, True if mask is None else mask)
        inside = full[-1].astype(bool)
        for i, n in zip(full[:-1], x.shape, strict=True):
            inside = inside & (i >= 0) & (i < n)
        return tuple(np.clip(i, 0, n - 1) for i, n in zip(full[:-1], x.shape, strict=True)), inside

    @staticmethod
    def load(x: Any, indices: Any, mask: Any, fill: int) -> Any:
        place, inside = Numpy._chosen(x, indices, mask)
        return np.where(inside, x[place], fill)

    @staticmethod
    def value(x: Any, indices: Any) -> Any:
        return x[indices]

    @staticmethod
    def store(x: Any, indices: Any, number: int, mask: Any) -> None:
        place, inside = Numpy._chosen(x, indices, mask)
        x[tuple(i[inside] for i in place)] = number

    @staticmethod
    def add(x: Any, indices: Any, number: int, mask: Any) -> None:
        place, inside = Numpy._chosen(x, indices, mask)
        np.add.at(x, tuple(i[inside] for i in place), number)


class Program(FromText):
    """The kernel of a seed: index arrays along each axis of a shape, values derived from them, and accesses by those."""

    def __init__(self, seed: int) -> None:
        c, self.name, self.seed = Choices(seed), f"parts_{seed}", seed
        self.shape: Shape = tuple(c.one((1, 2, 3, 5, 8, 16, 33)) for _ in range(c.between(1, 3)))
        while np.prod(self.shape) > 1500:
            self.shape = tuple(max(n // 2, 1) for n in self.shape)
        self.of: Shape = tuple(c.between(1, 7) for _ in range(c.between(1, 4)))
        rank, self.lines = len(self.shape), list[str]()
        self._names = [f"i{axis}" for axis in range(rank)]
        for axis, n in enumerate(self.shape):
            place = ", ".join(":" if other == axis else "None" for other in range(rank))
            self.lines.append(f"i{axis} = do.arange({n})[{place}]")
        for number in range(c.between(0, 3)):
            self.lines.append(f"d{number} = {self._expression(c)}")
            self._names.append(f"d{number}")
        kinds = c.one(KINDS)
        self.writes = kinds[-1][0]
        for number in range(1, c.between(2, 4)):
            self.lines.append(self._access(c, c.weighted(kinds), number))

    def _expression(self, c: Choices) -> str:
        one, other, k = c.one(self._names), c.one(self._names), c.between(1, 5)
        return c.weighted((
            (one, 4), (f"{one} * {k}", 1), (f"{one} // {k + 1}", 2), (f"{one} % {k + 1}", 2), (f"({one} + {other})", 2),
            (f"do.where({one} < {k}, {other}, {one})", 1), (f"do.minimum({one}, {other} * {k})", 1),
            (f"{k - 1} - {one}", 1), (f"s[{one} % 4]", 2), (f"{one}.astype(do.int64)", 1),
        ))  # fmt: skip

    def _access(self, c: Choices, kind: str, number: int) -> str:
        def index(extent: int) -> str:
            made = c.weighted(((self._expression(c), 6), (str(c.below(extent)), 1), ("r", 1)))
            return f"({made}) % {extent}" if kind == "value" and not made.isdigit() else made

        at = f"({', '.join(map(index, self.of))},)"
        one, other, least = c.one(self._names), c.one(self._names), c.below(3)
        mask = c.one((f"{one} >= 0", f"{one} > {least}", f"({one} + {other}) % 2 == 0"))
        if kind in ("load", "value"):
            rest = f", {mask}, {number}" if kind == "load" else ""
            return f"total = total + do.{kind}(x, {at}{rest})"
        return f"do.{kind}(acc, {at}, {1 if kind == 'store' else number}, {mask})"  # stores have no order

    def body(self) -> str:
        lines = ["s = s_[...]", "r = r_[0]", "total = do.arange(1)[0] * 0", *self.lines, "out[...] = total"]
        return "\n".join(["def body(x, s_, r_, out, acc, do):", *(f"    {line}" for line in lines)]) + "\n"

    def source(self) -> str:
        shapes = f"kd.ShapeDtypeStruct({self.shape}, kd.int32), kd.ShapeDtypeStruct({self.of}, kd.int32, init=0)"
        return f"""import kernel_dsl as kd
from tests.ops.test_parts_as_indices import Language

{self.body()}
@kd.kernel(out_type=({shapes}), name="{self.name}")
def kernel(x, s_, r_, out, acc):
    body(x, s_, r_, out, acc, Language)
"""

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(self.seed)
        shapes = (self.of, 0, 100), ((4,), 0, 6), ((1,), 0, 8)
        return [rng.integers(low, high, shape).astype(np.int32) for shape, low, high in shapes]

    def wanted(self) -> list[np.ndarray]:
        names: dict[str, Any] = {}
        exec(self.body(), names)
        made = [np.zeros(self.shape, np.int64), np.zeros(self.of, np.int64)]
        names["body"](*(x.astype(np.int64) for x in self.arrays()), *made, Numpy)
        return made

    def check(self, interpret: Any) -> None:
        for got, wanted in zip(self.kernel()(*self.arrays(), interpret=interpret), self.wanted(), strict=True):
            np.testing.assert_array_equal(got, wanted, err_msg=self.source())


def check_all(seeds: range, gpu: bool = False) -> None:
    # equal numbers go to one place by design where the program stores
    quiet = kd.InterpretParams(detect_hazards=False)
    for seed in seeds:
        program = Program(seed)
        program.check(False if gpu else quiet if program.writes == "store" else True)


def test_parts_meet_as_indices() -> None:
    check_all(range(60))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 5000, 500))
def test_parts_meet_as_indices_long(first: int) -> None:
    check_all(range(first, first + 500))


@pytest.mark.gpu
def test_parts_meet_as_indices_on_a_gpu() -> None:
    check_all(range(60), gpu=True)
