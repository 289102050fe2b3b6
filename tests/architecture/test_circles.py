"""Circles of imports: those inside functions and for type checkers count too."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.conftest import ROOT


def imports(package: str) -> dict[str, set[str]]:
    """Each module of a folder, by its dotted name, with the modules of it that it imports anywhere in its text."""
    paths = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in (ROOT / package).rglob("*.py")}
    named = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    return {name: _imported(name, path, named) - {name} for name, path in named.items()}


def _imported(name: str, path: Path, named: dict[str, Path]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("kernel_dsl.") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = (node.module or "").removeprefix("kernel_dsl.")
            if node.level:
                here = name.split(".") + [""] * (path.name == "__init__.py")
                base = ".".join([*here[: len(here) - node.level], *([base] if base else [])])
            modules = [f"{base}.{alias.name}" for alias in node.names]
            found |= {module if module in named else base for module in modules}
    return found & named.keys()


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

    return {module for module in edges if module in reached(module)}


def test_it_sees_circles() -> None:
    assert in_circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == {"b", "c"}
    found = imports("runtime")
    assert "runtime.devices.cuda_device" in found["runtime.devices.devices"], "inside a function"
    assert (
        "runtime.plan.calls" in found["runtime"] and "runtime.arrays.dlpack" in found["runtime.arrays.interop.generic"]
    )


def test_the_rooms_of_the_runtime_have_none() -> None:
    found = in_circles(imports("runtime"))
    assert {module for module in found if not module.startswith("runtime.interpreter")} == set()
