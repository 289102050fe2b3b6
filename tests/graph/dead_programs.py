"""Random programs of which only some results are wanted: what is left out, and that nobody can tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

SIZE = 32
USERS = 5  # arrays of the user's: three that are only read, and two that calls write


@dataclass
class Step:
    """One call: `kind` of kernel, operands (array, half), and what it writes: a new array, or an older one (in part)."""

    kind: str  # "plain", "fill", "alias", "effect", "copy"
    reads: list[tuple[int, int]]
    target: tuple[int, int] | None  # None: a new array


def bounds(half: int) -> tuple[int, int]:
    return (0, SIZE) if half == 2 else (half * SIZE // 2, (half + 1) * SIZE // 2)


class DeadProgram:
    """Random steps from a seed, and what of their results is wanted."""

    def __init__(self, seed: int, steps: int = 20) -> None:
        choose = np.random.default_rng(seed)
        self.steps: list[Step] = []
        self.made = USERS
        for _ in range(steps):
            self._add(choose)
        # Wholes or halves of what was made, and sometimes an array that a call was given.
        made = range(USERS, self.made)
        picked = [i for i in made if choose.random() < 0.25]
        self.wanted = [(i, int(choose.choice([0, 1, 2, 2, 2]))) for i in picked]
        written = [s.target for s in self.steps if s.target and s.target[0] < USERS]
        if written and choose.random() < 0.3:
            self.wanted.append(written[0])

    def _add(self, choose: np.random.Generator) -> None:
        kind = str(choose.choice(["plain"] * 6 + ["fill", "alias", "effect", "copy"]))
        half = int(choose.choice([2, 2, 2, 0, 1]))
        target: tuple[int, int] | None = None
        roll = choose.random()
        if kind == "copy" or roll < 0.15:
            older = [3, 4, *range(USERS, self.made)]
            target = int(choose.choice(older)), half
        elif half != 2:
            half = 2  # a new array is whole
        # An input that is only read has one view, so that it is one input.
        own = {s.target[0] for s in self.steps if s.target} | set(range(USERS, self.made))
        readable = [i for i in range(self.made) if (target is None or i != target[0]) and (i in own or half == 2)]
        if not readable:
            return
        count = 1 if kind in ("copy", "alias") else 2
        reads = [int(choose.choice(readable)) for _ in range(count)]
        # What is read of an older array need not be the half that is written.
        halves = [half if half == 2 or i not in own else int(choose.integers(2)) for i in reads]
        self.steps.append(Step(kind, list(zip(reads, halves, strict=True)), target))
        if target is None:
            self.made += 1

    # --- the model ----------------------------------------------------------------------------------

    def needed(self) -> list[bool]:
        """By step, whether somebody could tell that it did not run. Element by element."""
        targets, count = [], USERS
        for step in self.steps:
            targets.append(step.target or (count, 2))
            count += step.target is None
        live = np.zeros((count, SIZE), bool)
        live[:USERS] = True  # the user has these in hand
        for array, half in self.wanted:
            live[array, slice(*bounds(half))] = True
        needed = [False] * len(self.steps)
        for number in reversed(range(len(self.steps))):
            step, (array, half) = self.steps[number], targets[number]
            part = slice(*bounds(half))
            if step.kind in ("effect", "alias") or live[array, part].any():
                needed[number] = True
                live[array, part] = True
                for read, of in step.reads:
                    live[read, slice(*bounds(of))] = True
        return needed

    # --- running ------------------------------------------------------------------------------------

    def run(
        self,
        arrays: list[Any],
        kernels: dict[str, Callable[..., Any]],
        part: Callable[[Any, int], Any],
        copy: Callable[[Any, Any], None],
    ) -> list[Any]:
        """Make the calls on the user's arrays. Returns those and every array that was made."""
        arrays = list(arrays)
        for step in self.steps:
            reads = [part(arrays[i], half) for i, half in step.reads]
            if step.target is not None:
                target = part(arrays[step.target[0]], step.target[1])
                if step.kind == "copy":
                    copy(target, reads[0])
                else:
                    kernels[step.kind](*reads, out=target)
            else:
                arrays.append(kernels[step.kind](*reads))
        return arrays

    def values(self, seed: int) -> list[np.ndarray[Any, Any]]:
        choose = np.random.default_rng(seed)
        return [choose.integers(-1000, 1000, SIZE).astype(np.int32) for _ in range(USERS)]


def plain(a: Any, b: Any, out: Any) -> None:
    out[...] = a * 3 + b


def fill(a: Any, b: Any, out: Any) -> None:
    out[::2] = (a ^ b)[::2]  # the rest is the fill


def alias(a: Any, out: Any) -> None:
    out[1::2] += 7  # the rest is the input's


def effect(a: Any, b: Any, out: Any) -> None:
    COUNT[0] += 1
    out[...] = a - b


COUNT = [0]
BODIES = {
    "plain": (plain, {}),
    "fill": (fill, {"fill": 11}),
    "alias": (alias, {"alias": 0}),
    "effect": (effect, {"effects": True}),
}


def check(
    seed: int,
    kernels: dict[str, Callable[..., Any]],
    whole: Callable[[np.ndarray[Any, Any]], Any],
    part: Callable[[Any, int], Any],
    host: Callable[[Any], np.ndarray[Any, Any]],
    counted: bool = True,
) -> tuple[int, int]:
    """A program: recorded, with only what is wanted named, and replayed with several inputs, beside the same calls in
    NumPy. Returns how many of its calls were kept, and how many there were. `counted`: kernels run the bodies.
    """
    from kernel_dsl.runtime.graph import Graph

    program = DeadProgram(seed)
    needed = program.needed()
    arrays = [whole(v.copy()) for v in program.values(seed)]
    with Graph() as g:
        made = program.run(arrays, kernels, part, g.copy)
    g.outputs = [part(made[i], half) for i, half in program.wanted]
    names = [node.name for node in g.nodes if node.kind == "kernel"]
    steps = [s for s, n in zip(program.steps, needed, strict=True) if n]
    assert names == [s.kind for s in steps if s.kind != "copy"], seed
    assert all(node.index == number for number, node in enumerate(g.nodes))
    # Halves of the arrays that calls write are inputs where none writes them: as recorded, they are given again.
    read = [next((k for k, array in enumerate(arrays) if array is x), -1) for x in g.inputs]
    assert set(read) <= {i for s in steps for i, _ in s.reads} | {-1}
    for attempt in range(3):
        fresh = program.values(seed + attempt + 1)
        now = [whole(fresh[k].copy()) if k in read and k < 3 and attempt else arrays[k] for k in range(USERS)]
        mirror = [host(a).copy() for a in now]
        expected = program.run(mirror, EAGER, lambda a, half: a[slice(*bounds(half))], np.copyto)
        COUNT[0] = 0
        g(*([x if k < 0 else now[k] for k, x in zip(read, g.inputs, strict=True)] if attempt else []))
        assert not counted or COUNT[0] == sum(s.kind == "effect" for s in program.steps), seed
        for k in range(3, USERS):  # the user's own, which calls write
            np.testing.assert_array_equal(host(now[k]), expected[k], err_msg=f"{seed}: array {k}")
        for i, half in program.wanted:
            got = host(part(made[i] if i >= USERS else now[i], half))
            np.testing.assert_array_equal(got, expected[i][slice(*bounds(half))], err_msg=f"{seed}: result {i}")
    return sum(needed), len(needed)


def _eager(kind: str) -> Callable[..., Any]:
    body, more = BODIES[kind]

    def call(*reads: Any, out: Any = None) -> Any:
        made = np.empty(SIZE, np.int32) if out is None else out
        if "fill" in more:
            made[...] = more["fill"]
        if "alias" in more:
            made[...] = reads[0]
        body(*reads, made)
        return made

    return call


EAGER = {kind: _eager(kind) for kind in BODIES}
