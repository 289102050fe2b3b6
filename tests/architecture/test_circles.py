"""Circles of imports: those inside functions, for type checkers and by `import_module("a name")` count too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from kernel_dsl.rooms import PARTS
from tests.conftest import ROOT

ALL = ("kernel_dsl", *PARTS)


def imports(*packages: str, types: bool = True) -> dict[str, set[str]]:
    """Each module of some folders, by its dotted name, with the modules of them that it imports anywhere in its text.

    Without `types`, what is imported for type checkers alone is left out.
    """
    paths: dict[str, Path] = {}
    for package in packages:
        for path in (ROOT / package).rglob("*.py"):
            if package != "kernel_dsl" or path.relative_to(ROOT / package).parts[0] not in PARTS:  # links to the others
                paths[".".join(path.relative_to(ROOT).with_suffix("").parts)] = path
    named = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    return {name: _imported(name, path, named, types) - {name} for name, path in named.items()}


def statements(tree: ast.AST, types: bool = True) -> Iterator[ast.AST]:
    """All statements in a module, at any depth. No expression holds an import, and most nodes lie in expressions."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        if types or not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            for block in ("body", "orelse", "finalbody", "handlers", "cases"):
                inside = getattr(node, block, ())
                left += inside if isinstance(inside, list) else ()  # of a lambda and `a if b else c` it is no list


def _imported(name: str, path: Path, named: dict[str, Path], types: bool) -> set[str]:
    text = path.read_text()
    found: set[str] = {_own(module) for module in re.findall(r'import_module\(\s*"(kernel_dsl[\w.]*)"', text)}
    for node in statements(ast.parse(text), types):
        if isinstance(node, ast.Import):
            found |= {_own(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = name.split(".") + [""] * (path.name == "__init__.py")
                base = ".".join([*here[: len(here) - node.level], *([base] if base else [])])
            modules = [_own(f"{base}.{alias.name}") for alias in node.names]
            found |= {module if module in named else _own(base) for module in modules}
    if "kernel_dsl.ops" in found and name != "kernel_dsl.ops":  # it imports each of its files
        found |= {module for module in named if module.startswith("kernel_dsl.ops.")}
    return found & named.keys()


def _own(name: str) -> str:
    """A module's name by the folder that it lies in."""
    return name.removeprefix("kernel_dsl.") if name.split(".")[1:2] in ([part] for part in PARTS) else name


@cache
def _all() -> dict[str, set[str]]:
    return imports(*ALL)


def _runtime() -> dict[str, set[str]]:
    """The modules of the runtime, with those of them that each imports."""
    edges = {name: found for name, found in _all().items() if name.split(".")[0] == "runtime"}
    return {name: found & edges.keys() for name, found in edges.items()}


def in_circles(edges: dict[str, set[str]]) -> set[str]:
    """The modules that import themselves by way of others."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        left = list(edges[start])
        while left:
            module = left.pop()
            if module not in seen:
                seen.add(module)
                left += edges[module]
        return seen

    # most modules are in none: those that import nothing, or that nothing imports, among those that are left
    left = set(edges)
    while some := {m for m in left if not edges[m] & left} | (left - set().union(*(edges[m] for m in left))):
        left -= some
    return {module for module in left if module in reached(module)}


def test_it_sees_circles() -> None:
    assert in_circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == {"b", "c"}
    found = _runtime()
    assert "runtime.devices.cuda_device" in found["runtime.devices.devices"], "inside a function"
    assert (
        "runtime.plan.calls" in found["runtime"] and "runtime.arrays.dlpack" in found["runtime.arrays.interop.generic"]
    )


def test_the_rooms_of_the_runtime_have_none() -> None:
    found = in_circles(_runtime())
    assert {module for module in found if not module.startswith("runtime.interpreter")} == set()


def test_the_language_has_one() -> None:
    """Editors see `kd.library` by an import of it for types, and the library is written in the public language.

    Without this import, and that of `kd.torch`, which is the library in PyTorch, nothing outside of the interpreter imports itself.
    """
    found = dict(_all())
    assert "kernel_dsl.library" in found["kernel_dsl"]
    assert "lowering" in found["kernel_dsl.stages"], "of another folder, inside a function"
    assert "kernel_dsl.ops.shape" in found["kernel_dsl.ops.handles"]
    found["kernel_dsl"] = found["kernel_dsl"] - {"kernel_dsl.library", "kernel_dsl.torch"}
    assert {module for module in in_circles(found) if not module.startswith("runtime.interpreter")} == set()


def test_the_interpreter_has_none_that_runs() -> None:
    """Its checks name the machine's classes for type checkers alone; when it runs, nothing imports itself."""
    edges = imports("runtime/interpreter", types=False)
    assert "runtime.interpreter.checks.waits" in edges["runtime.interpreter.machine.launch"]
    assert in_circles(edges) == set()
