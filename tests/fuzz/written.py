"""A kernel under construction as text, with its arguments and what its outputs must hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.texts import FromText


class Written(FromText):
    """Lines of a body; inputs, traced numbers, outputs (what they must be at the end, and `init`), scratch by name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: list[str] = []
        self.inputs: dict[str, np.ndarray] = {}
        self.scalars: list[int] = []
        self.outputs: dict[str, tuple[np.ndarray, Any]] = {}
        self.scratch: dict[str, str] = {}
        self.options = ""
        self.target = "sm_90a"

    def scalar(self, value: int) -> str:
        """The name of a traced number."""
        self.scalars.append(value)
        return f"s{len(self.scalars) - 1}"

    def branch(self, predicate: str, lines: list[str]) -> None:
        """Lines that some warpgroups run."""
        self.lines += [f"@kd.when({predicate})", "def _():", *(f"    {line}" for line in lines)]

    def source(self) -> str:
        """The module that defines `kernel`. Those of odd numbers give outputs the shapes of inputs, where they are equal."""
        known = {a.shape: f"{name}.shape" for name, a in self.inputs.items()} if self.name[-1] in "13579" else {}
        outs = ", ".join(
            f"kd.ShapeDtypeStruct({known.get(a.shape, a.shape)}, kd.{a.dtype.name}, init={i})"
            for a, i in self.outputs.values()
        )
        names = [*self.inputs, *(f"s{i}" for i in range(len(self.scalars))), *self.outputs]
        named = [f"*, {', '.join(self.scratch)}"] if self.scratch else []
        scratch = ", ".join(f'"{name}": {spec}' for name, spec in self.scratch.items())
        given = ", ".join([*self.inputs, *(f"s{i}" for i in range(len(self.scalars)))])
        options = [
            f"out_type={f'lambda {given}: ' if known else ''}({outs},)",
            f'name="{self.name}"',
            f'compiler_params=kd.CompilerParams(target="{self.target}")',
        ]
        options += [f"scratch_types={{{scratch}}}"] * bool(scratch) + [self.options] * bool(self.options)
        body = "\n".join(f"    {line}" for line in self.lines)
        head = f"@kd.kernel({', '.join(options)})\ndef kernel({', '.join([*names, *named])}):"
        return f"import kernel_dsl as kd\n\n\n{head}\n{body}\n"

    def arguments(self) -> list[Any]:
        return [*self.inputs.values(), *self.scalars]

    def run(self, interpret: Any = True) -> list[np.ndarray]:
        return [np.asarray(o) for o in self.kernel()(*self.arguments(), interpret=interpret)]

    def check(self, outputs: list[np.ndarray]) -> None:
        for (name, (wanted, _)), got in zip(self.outputs.items(), outputs, strict=True):
            a, b = (np.asarray(x).astype(np.float64) for x in (got, wanted))
            np.testing.assert_array_equal(a, b, err_msg=f"{self.name} {name}")


class Traced(int):
    """A number that the kernel knows at run time only: it never counts from the end."""

    def __add__(self, other: int) -> Traced:
        return Traced(int(self) + other)

    def __mul__(self, other: int) -> Traced:
        return Traced(int(self) * other)
