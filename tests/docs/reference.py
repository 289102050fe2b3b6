"""`python -m tests.docs.reference` writes `docs/reference.md`: every public name, from its signature and docstring."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

import kernel_dsl as kd
from kernel_dsl.lazy import lazy

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"

HEAD = """# Reference

Every public name of `import kernel_dsl as kd`, from the signatures and docstrings. Written by
`python -m tests.docs.reference`; the test-suite runs every example. In the examples `run(f, *arrays)` calls `f` in a kernel,
in the interpreter, with the arrays loaded as values (float32 or int32), and prints the result.

Elementwise functions take values and numbers, broadcast them as NumPy does, promote their dtypes and raise `ShapeMismatch`,
`NoCommonDType`, or `UnsupportedDType` for a dtype that they do not support. Functions with an `axis` raise `BadAxis`. All errors have a
page under [errors](errors/README.md).

Use five classes as annotations, so that an editor completes names in a body: `kd.Ref` for an array in memory, `kd.Array` for a
value, `kd.AccRef`, `kd.BarrierRef`, and `kd.Kernel` for a decorated kernel.

```python
def run(f, *arrays):
    def body(*refs):
        refs[-1][...] = f(*(ref[...] for ref in refs[:-1]))
    ...
```
"""


def run(function: Callable[..., Any], *arrays: Any) -> None:
    """Print the result of a function of values for arrays."""
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
    """One name of a module: its signature, what its docstring says with examples as code, and its members."""
    thing = vars(home).get(f"_{name}") or getattr(
        home, name
    )  # a fixture's function: without it the fixture needs pytest
    if isinstance(thing, kd.dtypes.DType):
        return f"### `kd.{name}`\n\nThe element type {thing.name}: {thing.bits} bits, of kind {thing.kind.value}.\n"
    title = f"kd.{name}" if home is kd else f"kd.{home.__name__.rpartition('.')[2]}.{name}"
    if (callable(thing) and not inspect.isclass(thing)) or (inspect.isclass(thing) and "__init__" in vars(thing)):
        title += _signature(thing)
    parts = [f"### `{title}`", "", _with_code(inspect.getdoc(thing) or ""), ""]
    if inspect.isclass(thing):
        parts += _members(thing)
    return "\n".join(parts)


def _members(cls: type[Any]) -> list[str]:
    """Lines for the documented methods and properties of a class, and for what an enumeration holds."""
    if issubclass(cls, Enum):
        return ["Its members: " + ", ".join(f"`{name}`" for name in cls.__members__) + ".", ""]
    lines: list[str] = []
    for name in sorted(n for n in dir(cls) if not n.startswith("_")):
        member = inspect.getattr_static(cls, name)
        text = inspect.getdoc(member)
        if not text or getattr(member, "__module__", "kernel_dsl").partition(".")[0] != "kernel_dsl":
            continue
        if isinstance(member, staticmethod | classmethod) or inspect.isfunction(member):
            lines += [f"#### `.{name}{_signature(getattr(cls, name))}`", "", _with_code(text), ""]
        elif isinstance(member, property | lazy):
            lines += [f"#### `.{name}`", "", _with_code(text), ""]
    return lines


def _signature(thing: Any) -> str:
    try:
        # a member of an enum that can be called: Python 3.12 would give its class's signature
        signature = inspect.signature(thing.__call__ if isinstance(thing, Enum) else thing)
    except (TypeError, ValueError):
        return "(...)"
    named = [p for p in signature.parameters.values() if p.name != "self"]
    bare = [p.replace(annotation=inspect.Parameter.empty, default=_default(p.default)) for p in named]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


class _Written(str):
    """A default as it is written, without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _default(value: Any) -> Any:
    return _Written(f"kd.{type(value).__name__}.{value.name}") if isinstance(value, Enum) else value


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
    "kernel_dsl.ops.associative": "Reductions, scans and sorting",
    "kernel_dsl.ops.scan": "Reductions, scans and sorting",
    "kernel_dsl.ops.lookup": "Reductions, scans and sorting",
    "kernel_dsl.ops.sorting": "Reductions, scans and sorting",
    "kernel_dsl.ops.branches": "Control flow",
    "kernel_dsl.ops.control": "Control flow",
    "kernel_dsl.ops.loops": "Control flow",
    "kernel_dsl.ops.index": "Where an instance is",
    "kernel_dsl.indices": "Where an instance is",
    "kernel_dsl.ops.ref": "Loads and stores",
    "kernel_dsl.ops.atomic": "Atomics",
    "kernel_dsl.ops.debug": "Debugging",
    "kernel_dsl.ops.barrier": "Barriers",
    "kernel_dsl.ops.copy": "Asynchronous copies",
    "kernel_dsl.ops.copy_waits": "Asynchronous copies",
    "kernel_dsl.ops.matrix": "Matrix products",
}


OF_MODULES = {  # the groups of the other public modules
    "random": "Random numbers", "tuning": "Tuning", "library": "The library", "symmetric": "Symmetric arrays",
    "jax": "JAX", "torch": "PyTorch", "testing": "Tests of kernels",
}  # fmt: skip


def groups() -> dict[str, list[str]]:
    """The entries of each group, by its title."""
    found: dict[str, list[str]] = {}
    for name in sorted(set(kd.__all__), key=lambda n: (n.lower(), n)):
        thing = getattr(kd, name)
        if isinstance(thing, kd.dtypes.DType):
            group = "Dtypes"
        else:
            group = GROUPS.get(getattr(inspect.unwrap(thing), "__module__", ""), "Kernels, specifications and the rest")
        found.setdefault(group, []).append(entry(name))
    more: dict[str, list[str]] = {}
    for name, group in OF_MODULES.items():
        module = getattr(kd, name)
        more[group] = [entry(name, module) for name in sorted(module.__all__)]
    return {group: found[group] for group in sorted(found)} | more


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for group, entries in groups().items():
        parts += [f"## {group}\n", *entries]
    return "\n".join(parts)


def main() -> None:
    PAGE.write_text(page())
    print(f"{PAGE}: {len(page().splitlines())} lines")


if __name__ == "__main__":
    main()
