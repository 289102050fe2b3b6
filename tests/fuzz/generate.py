"""Random kernels: inputs, loads, a chain of operations, and a store of every value that they make.

As every intermediate value is an output, each operation is checked on its own: the reference computes it from what the
kernel itself computed for its operands, so that bounds stay those of one operation. Every other program gives its outputs
the shapes of inputs where they are equal, by a function, and also fills outputs of the inputs' shapes with smaller values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import kernel_dsl as kd
from tests.fuzz import numbers, reductions  # noqa: F401 - they enter their operations
from tests.fuzz.agreement import agree
from tests.fuzz.choose import Choices, Value
from tests.fuzz.loads import Input, draw_inputs, draw_load
from tests.fuzz.operations import OPERATIONS, Step, numpy
from tests.fuzz.texts import FromText

FILLED = 3  # the most outputs that smaller values fill


@dataclass(frozen=True)
class Program(FromText):
    """A kernel: `instances` of it along a grid axis or as warpgroups; each works on its own part of every array."""

    seed: int
    axis: str  # "", "grid" or "warpgroup"
    instances: int
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        return f"fuzz_{self.seed}"

    def _lead(self) -> tuple[int, ...]:
        return (self.instances,) if self.axis else ()

    @property
    def filled(self) -> list[tuple[int, int]]:
        """(step, input) where a step's value fills an output of the input's shape."""
        if self.axis or self.seed % 2 == 0:
            return []
        found = [
            (n, i)
            for n, step in enumerate(self.steps)
            for i, source in enumerate(self.inputs)
            if step.shape != source.shape and _fills(step.shape, source.shape)
        ]
        return found[:FILLED]

    def source(self) -> str:
        """The module that defines `kernel`."""
        options = {
            "": "",
            "grid": f', grid=({self.instances},), grid_names=("me",)',
            "warpgroup": f', num_threads={self.instances}, thread_name="me"',
        }[self.axis]
        shapes = [(*self._lead(), *s.shape) for s in self.steps]
        given = {(*self._lead(), *x.shape): f"{x.name}.shape" for x in self.inputs} if self.seed % 2 else {}
        outs = ", ".join(
            f"kd.ShapeDtypeStruct({shape}, kd.{_kd(dtype)})"
            for shape, dtype in [
                *((given.get(shape, shape), s.dtype) for shape, s in zip(shapes, self.steps, strict=True)),
                *((f"{self.inputs[i].name}.shape", self.steps[n].dtype) for n, i in self.filled),
            ]
        )
        sources = [i.name for i in self.inputs]
        names = sources + [f"o{n}" for n in range(len(self.steps))] + [f"f{n}" for n in range(len(self.filled))]
        function = f"lambda {', '.join(sources)}: " if self.seed % 2 else ""
        lines = [
            "import kernel_dsl as kd",
            "import numpy as np",
            "",
            f'@kd.kernel(out_type={function}({outs},), name="{self.name}"{options})',
        ]
        lines.append(f"def kernel({', '.join(names)}):")
        if self.axis:
            lines.append('    me = kd.axis_index("me")')
        at = "me" if self.axis else "..."
        for number, step in enumerate(self.steps):
            lines.append(f"    v{number} = {step.text}")
            lines.append(f"    o{number}[{at}] = v{number}")
        lines += [f"    f{number}[...] = v{n}" for number, (n, _) in enumerate(self.filled)]
        return "\n".join(lines) + "\n"

    def arrays(self) -> list[np.ndarray]:
        """The inputs' data."""
        return [i.data((*self._lead(), *i.shape), self.seed + n) for n, i in enumerate(self.inputs)]

    def lower(self, target: str | None = None) -> Any:
        return self.kernel().lower(*self.arrays(), target=target)

    def run(self, interpret: Any = True) -> list[np.ndarray]:
        return [np.asarray(o) for o in self.kernel()(*self.arrays(), interpret=interpret)]

    def check(self, outputs: list[np.ndarray]) -> None:
        """Every value against its reference; the message names the step."""
        arrays = self.arrays()
        outputs, filled = outputs[: len(self.steps)], outputs[len(self.steps) :]
        for (n, i), out in zip(self.filled, filled, strict=True):
            wanted = np.broadcast_to(outputs[n], self.inputs[i].shape)
            assert out.tobytes() == wanted.tobytes(), (
                f"{self.name} v{n} = {self.steps[n].text} fills {self.inputs[i].name}"
            )
        for instance in range(self.instances if self.axis else 1):
            at: Any = instance if self.axis else ...
            known = {i.name: a[at] for i, a in zip(self.inputs, arrays, strict=True)}
            for number, (step, out) in enumerate(zip(self.steps, outputs, strict=True)):
                actual = np.asarray(out[at])
                exact, ulps, error = step.reference(*(known[o] for o in step.operands))
                message = f"{self.name} v{number} = {step.text}"
                agree(step.operation, actual, np.asarray(exact), ulps, error, message)
                known[f"v{number}"] = actual

    def sliced(self, number: int) -> Program:
        """The same with only what step `number` needs, for a shorter reproducer; names stay."""
        needed: set[str] = {f"v{number}"}
        for n in range(number, -1, -1):
            if f"v{n}" in needed:
                needed |= set(self.steps[n].operands)
        kept = [n for n in range(number + 1) if f"v{n}" in needed]
        rename = {f"v{n}": f"v{i}" for i, n in enumerate(kept)}
        steps = tuple(_renamed(self.steps[n], rename) for n in kept)
        return Program(self.seed, self.axis, self.instances, self.inputs, steps)


def _fills(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether a value of a shape may be stored to all of a Ref of another shape."""
    tail = other[len(other) - len(shape) :]
    return len(shape) <= len(other) and all(a in (1, b) for a, b in zip(shape, tail, strict=True))


def _kd(dtype: str) -> str:
    return "bool_" if dtype == "bool" else dtype


def _renamed(step: Step, rename: dict[str, str]) -> Step:
    import re

    text = re.sub(r"\bv\d+\b", lambda m: rename.get(m[0], m[0]), step.text)
    operands = tuple(rename.get(o, o) for o in step.operands)
    return Step(step.operation, text, operands, step.shape, step.dtype, step.reference)


def generate(seed: int, steps: int | None = None) -> Program:
    """The program of a seed."""
    c = Choices(seed)
    axis = c.weighted((("", 4), ("grid", 3), ("warpgroup", 2)))
    instances = c.between(1, 4) if axis else 1
    c.smem = instances if axis == "warpgroup" else 0
    inputs = draw_inputs(c)
    made: list[Step] = []
    values: list[Value] = []

    def add(step: Step | None) -> None:
        if step is not None and int(np.prod(step.shape)) <= 4000:
            values.append(Value(f"v{len(made)}", step.shape, step.dtype))
            made.append(step)

    for source in inputs:
        add(draw_load(c, source, bool(axis)))
    for _ in range(c.between(2, 9) if steps is None else steps):
        if c.chance(0.15):
            add(draw_load(c, c.one(inputs), bool(axis)))
        else:
            add(c.weighted(OPERATIONS)(c, values))
    return Program(seed, axis, instances, tuple(inputs), tuple(made))


def programs() -> Any:
    """Programs as a hypothesis strategy."""
    return st.integers(0, 2**31).map(generate)


__all__ = ["Program", "generate", "kd", "numpy", "programs"]
