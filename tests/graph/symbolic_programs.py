"""Random programs whose arrays have extents of variables: one recording beside the same calls in NumPy, for any values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import kernel_dsl as kd

Shape = tuple[Any, ...]
LIMITS = {"a": (1, 6), "b": (1, 5)}


def fresh_variables() -> dict[str, kd.Variable]:
    return {name: kd.Variable(name, lo, hi) for name, (lo, hi) in LIMITS.items()}


class SymbolicProgram:
    """Random steps from a seed: (kind, operand, extents as functions of the variables' values)."""

    def __init__(self, seed: int, steps: int = 8) -> None:
        choose = np.random.default_rng(seed)
        extents: list[Callable[[Any], Any]] = [
            lambda v: v["a"], lambda v: v["b"], lambda v: v["a"] * v["b"], lambda v: v["a"] + 2, lambda v: 3,
            lambda v: 2 * v["b"] - 1, lambda v: (v["a"] + 3) // 4, lambda v: kd.cdiv(v["a"], 2),
        ]  # fmt: skip
        self.steps: list[tuple[str, int, Any]] = []
        ranks: list[int] = []
        for _ in range(steps):
            kind = str(
                choose.choice(["make", "make", "scale", "shift", "turn", "flat", "twice", "total", "given", "rows"])
            )
            if not ranks:
                kind = "make"
            operand = int(choose.integers(len(ranks))) if ranks else -1
            if kind in ("turn", "total", "twice") and ranks[operand] != 2:
                kind = "scale"
            if kind == "make":
                rank = int(choose.integers(1, 3))
                self.steps.append((kind, -1, [extents[int(choose.integers(len(extents)))] for _ in range(rank)]))
                ranks.append(rank)
                continue
            self.steps.append((kind, operand, extents[int(choose.integers(4))] if kind == "shift" else None))
            ranks.append({"flat": 1, "total": 1}.get(kind, ranks[operand]))
        count = len(self.steps)
        self.wanted = sorted({count - 1, *(int(i) for i in choose.integers(count, size=2))})

    def largest(self) -> list[Shape]:
        """The shape of each result where every extent is at its largest, as the recording has it."""
        return [array.shape for array in self.run(eager, {name: hi for name, (_, hi) in LIMITS.items()}, base(), None)]

    def run(self, kernel: Callable[..., Any], values: Any, x: Any, room: list[Any] | None) -> list[Any]:
        """Make the calls. `kernel(kind, extents, operand, scalar, out)`; `room`: arrays for what is given."""
        made: list[Any] = []
        for number, (kind, operand, more) in enumerate(self.steps):
            extents = tuple(extent(values) for extent in more) if kind == "make" else ()
            source = x if operand < 0 else made[operand]
            out = room[number] if kind == "given" and room is not None else None
            made.append(kernel(kind, extents, source, more(values) if kind == "shift" else None, out))
        return made


def base() -> np.ndarray[Any, Any]:
    return np.array([5], np.int32)


def shape_of(kind: str, extents: Shape, shape: Shape) -> Shape:
    """A result's shape."""
    match kind:
        case "make":
            return extents
        case "turn":
            return shape[::-1]
        case "flat":
            return (int(np.prod(shape)),)
        case "twice":
            return (2 * shape[0], shape[1])
        case "total":
            return (shape[1],)
        case _:
            return shape


def compute(kind: str, x: Any, scalar: int | None, out: Any) -> None:
    """What a kernel does, in NumPy."""
    match kind:
        case "make":
            out[...] = np.arange(out.size).reshape(out.shape) * 3 + x[0]
        case "shift":
            out[...] = x + scalar
        case "turn":
            out[...] = x.T
        case "flat":
            out[...] = x.reshape(-1)
        case "twice":
            out[...] = np.concatenate([x, x + 1])
        case "total":
            out[...] = x.sum(axis=0)
        case "rows":
            out[...] = x + np.arange(x.shape[0]).reshape((-1,) + (1,) * (x.ndim - 1))
        case _:
            out[...] = x * 2 - 1


def eager(kind: str, extents: Shape, x: Any, scalar: Any, out: Any) -> Any:
    made = np.empty(shape_of(kind, extents, x.shape), np.int32)
    compute(kind, x, scalar, made)
    return made


def check(
    seed: int,
    kernel: Callable[..., Any],
    whole: Callable[[np.ndarray[Any, Any]], Any],
    host: Callable[[Any], np.ndarray[Any, Any]],
    nested: bool = False,
) -> None:
    """Record a program once, and replay it with many values of its variables. `nested`: as part of another graph."""
    program = SymbolicProgram(seed)
    room = [whole(np.zeros(shape, np.int32)) for shape in program.largest()]
    symbols = fresh_variables()
    x = whole(base())
    with kd.Graph() as g:
        made = program.run(kernel, symbols, x, room)
    g.outputs = [made[i] for i in program.wanted]
    # What no output needs may have had all uses of a variable.
    choose = np.random.default_rng(seed)
    if nested:
        inner = g
        with kd.Graph() as g:
            given = {name: symbols[name] for name in inner._built().variables}
            made = inner(*([x] if inner.inputs else []), **given)
            # and what comes out of it is read by another call
            made = [kernel("scale", (), array, None, None) for array in made]
        g.outputs = made
    for attempt in range(6):
        values = {name: int(choose.integers(lo, hi + 1)) for name, (lo, hi) in LIMITS.items()}
        if not attempt:
            values = {name: hi for name, (_, hi) in LIMITS.items()}
        expected = program.run(eager, values, base(), None)
        got = g(**{name: values[name] for name in g._built().variables})
        for i, array in zip(program.wanted, got, strict=True):
            wanted = expected[i]
            if nested:
                wanted = wanted * 2 - 1
            assert tuple(array.shape) == wanted.shape, (seed, i)
            np.testing.assert_array_equal(
                host(array), wanted, err_msg=f"{seed}: {values}, result {i}, {program.steps[i]}"
            )
