"""`python -m tests.docs.reference` writes `docs/reference.md`: every public name, from its signature and docstring."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

import kernel_dsl as kd

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"

HEAD = """# Reference

Every public name of `import kernel_dsl as kd`, from the signatures and docstrings. Written by
`python -m tests.docs.reference`; the test-suite runs every example. In the examples `run(f, *arrays)` calls `f` in a kernel,
in the interpreter, with the arrays loaded as values (float32 or int32), and prints the result.

Elementwise functions take values and numbers, broadcast them as NumPy does, promote their dtypes and raise `ShapeMismatch`,
`NoCommonDType`, or `UnsupportedDType` for a dtype that they are not for. What takes an `axis` raises `BadAxis`. All errors have a
page under [errors](errors/README.md).

Five classes are there to annotate with, so that an editor completes in a body: `kd.Ref` for an array in memory, `kd.Array` for a
value, `kd.AccRef`, `kd.BarrierRef`, and `kd.Kernel` for what `kd.kernel` makes.

```python
def run(f, *arrays):
    def body(*refs):
        refs[-1][...] = f(*(ref[...] for ref in refs[:-1]))
    ...
```
"""


def run(function: Callable[..., Any], *arrays: Any) -> None:
    """Print what a function of values gives for arrays."""
    loaded = [np.asarray(a) for a in arrays]
    loaded = [a.astype({"i": np.int32, "f": np.float32}.get(a.dtype.kind, a.dtype)) for a in loaded]
    struct: list[Any] = []

    def probe(*refs: Any) -> None:
        value = kd_value(function(*(r[...] for r in refs)))
        struct.append(kd.ShapeDtypeStruct(value.shape, value.dtype))

    kd.kernel(probe, out_type=()).lower(*loaded)

    def body(*refs: Any) -> None:
        refs[-1][...] = function(*(r[...] for r in refs[:-1]))

    print(kd.kernel(body, out_type=struct[0], interpret=True)(*loaded))


def kd_value(value: Any) -> Any:
    """A number as the value that a store makes of it."""
    return value if hasattr(value, "shape") else kd.full((), value)


def entry(name: str, home: Any = kd) -> str:
    """One name of a module: its signature, what its docstring says, and its examples as code."""
    thing = getattr(home, name)
    if isinstance(thing, kd.dtypes.DType):
        return f"### `kd.{name}`\n\nThe element type {thing.name}: {thing.bits} bits, of kind {thing.kind.value}.\n"
    text = inspect.getdoc(thing) or ""
    title = f"kd.{name}" if home is kd else f"kd.library.{name}"
    if (callable(thing) and not inspect.isclass(thing)) or (inspect.isclass(thing) and "__init__" in vars(thing)):
        title += _signature(thing)
    return f"### `{title}`\n\n{_with_code(text)}\n"


def _signature(thing: Any) -> str:
    try:
        # a member of an enum that can be called: Python 3.12 would give its class's signature
        signature = inspect.signature(thing.__call__ if isinstance(thing, Enum) else thing)
    except (TypeError, ValueError):
        return "(...)"
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def _with_code(text: str) -> str:
    """Examples in a docstring as a code block."""
    out: list[str] = []
    inside = False
    for line in text.split("\n"):
        starts = line.startswith(">>>")
        if starts and not inside:
            out.append("```pycon")
            inside = True
        elif inside and not line.strip():
            out.append("```")
            inside = False
        out.append(line)
    return "\n".join([*out, "```"] if inside else out)


GROUPS = {
    "kernel_dsl.ops.arith": "Arithmetic, comparison, selection and bits",
    "kernel_dsl.ops.compare": "Arithmetic, comparison, selection and bits",
    "kernel_dsl.ops.math": "Mathematical functions",
    "kernel_dsl.ops.numeric": "Rounding, remainders, classification",
    "kernel_dsl.ops.bits": "Rounding, remainders, classification",
    "kernel_dsl.ops.cast": "Conversions",
    "kernel_dsl.ops.create": "Making and rearranging values",
    "kernel_dsl.ops.shape": "Making and rearranging values",
    "kernel_dsl.ops.elementwise": "Making and rearranging values",
    "kernel_dsl.ops.reduce": "Reductions, scans and sorting",
    "kernel_dsl.ops.scan": "Reductions, scans and sorting",
    "kernel_dsl.ops.sorting": "Reductions, scans and sorting",
    "kernel_dsl.ops.control": "Control flow",
    "kernel_dsl.ops.loops": "Control flow",
    "kernel_dsl.ops.index": "Where an instance is",
    "kernel_dsl.refs": "Where an instance is",
    "kernel_dsl.ops.ref": "Loads and stores",
    "kernel_dsl.ops.atomic": "Atomics",
    "kernel_dsl.ops.debug": "Debugging",
    "kernel_dsl.ops.barrier": "Barriers",
    "kernel_dsl.ops.copy": "Asynchronous copies",
    "kernel_dsl.ops.matrix": "Matrix products",
}


def page() -> str:
    """The whole page."""
    groups: dict[str, list[str]] = {}
    for name in sorted(set(kd.__all__), key=lambda n: (n.lower(), n)):
        thing = getattr(kd, name)
        if isinstance(thing, kd.dtypes.DType):
            group = "dtypes"
        else:
            group = GROUPS.get(getattr(thing, "__module__", ""), "Kernels, specifications and the rest")
        groups.setdefault(group, []).append(name)
    parts = [HEAD]
    for group in sorted(groups):
        parts.append(f"## {group[0].upper()}{group[1:]}\n")
        parts += [entry(name) for name in groups[group]]
    parts.append("## The library\n")
    parts += [entry(name, kd.library) for name in sorted(kd.library.__all__)]
    return "\n".join(parts)


def main() -> None:
    PAGE.write_text(page())
    print(f"{PAGE}: {len(page().splitlines())} lines")


if __name__ == "__main__":
    main()
