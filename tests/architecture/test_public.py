"""The public surface, frozen: the names of `kd` and its public modules and every signature, in `public.txt`."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import kernel_dsl as kd
from kernel_dsl.dtypes import DType
from kernel_dsl.late import LATE, MODULES
from kernel_dsl.ops import NAMES
from tests import golden
from tests.architecture import exports
from tests.conftest import ROOT


def _signature(x: Any) -> str:
    try:
        text = str(inspect.signature(x))
    except (TypeError, ValueError):
        return "(...)"
    return text.replace("kernel_dsl.", "")


def _members(cls: type[Any]) -> list[str]:
    lines: list[str] = []
    if issubclass(cls, Enum):
        return [f"    {m.name} = {m.value!r}" for m in cls]
    for name in sorted(n for n in dir(cls) if not n.startswith("_") or n in ("__call__",)):
        member = inspect.getattr_static(cls, name)
        if getattr(member, "__objclass__", cls).__module__ == "builtins":
            continue  # a method of `list`
        if isinstance(member, property):
            lines.append(f"    .{name}")
        elif callable(getattr(cls, name)) and not issubclass(cls, BaseException):
            lines.append(f"    .{name}{_signature(getattr(cls, name))}")
    return lines


def _listed() -> dict[str, Any]:
    """The public names of `kd` and its public modules."""
    listed = {name: getattr(kd, name) for name in kd.__all__}
    for module in MODULES:
        listed |= {f"{module}.{name}": getattr(getattr(kd, module), name) for name in getattr(kd, module).__all__}
    return listed


def surface() -> str:
    """One line a name, and one a member of a class."""
    lines: list[str] = []
    for name, x in sorted(_listed().items()):
        if inspect.isclass(x):
            bases = ", ".join(b.__name__ for b in x.__bases__ if b is not object)
            lines.append(f"class {name}({bases}){'' if issubclass(x, (BaseException, Enum)) else _signature(x)}")
            lines += _members(x)
        elif callable(x) and not isinstance(x, Enum) and type(x).__name__ != "DType":
            lines.append(f"{name}{_signature(x)}")
        else:
            lines.append(f"{name}: {type(x).__name__} = {x!r}")
    return "\n".join(lines) + "\n"


def test_surface(update: bool) -> None:
    golden.check(Path(__file__).with_name("public.txt"), surface(), update)


def test_docstrings_begin_with_what_a_thing_is() -> None:
    """An editor shows the first line: for a class it is no list of fields, also of our own; all that is public has one."""
    rooms = [ROOT / room for room in ("kernel_dsl", "lowering", "runtime")]
    for path in (path for room in rooms for path in sorted(room.rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                assert not re.match("`[a-z]\\w*`[ :,]", ast.get_docstring(node) or ""), f"{path}:{node.lineno}"
    for name, x in _listed().items():
        if callable(x) and not isinstance(x, (Enum, DType)):
            assert inspect.getdoc(x), f"{name} has no docstring"
        members = vars(x).items() if inspect.isclass(x) and x.__module__.startswith("kernel_dsl") else ()
        for word, member in members:
            if not word.startswith("_") and (inspect.isroutine(member) or isinstance(member, property)):
                assert inspect.getdoc(getattr(x, word) if inspect.isroutine(member) else member), f"{name}.{word}"


def test_names_for_editors_exist() -> None:
    """What type checkers read is there when a program runs, also classes that only annotate."""
    for node in ast.walk(ast.parse(exports.FILE.read_text())):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            named = [
                alias.asname or alias.name for x in node.body if isinstance(x, ast.ImportFrom) for alias in x.names
            ]
            assert len(named) > 200
            assert not [name for name in {*named, *LATE} if not hasattr(kd, name)]


def test_operations_are_named_one_by_one() -> None:
    """Editors and type checkers see what is written; `python -m tests.architecture.exports` writes it."""
    text = exports.FILE.read_text()
    assert "import *" not in text
    found: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ops."):
            names = [alias.name for alias in node.names if alias.asname is None]  # the others annotate
            found.setdefault(str(node.module)[4:], []).extend(names)
    assert {family: sorted(names) for family, names in found.items()} == exports.families()
    assert set(kd.__all__) >= NAMES


def test_all_is_sorted_by_family_and_has_no_double() -> None:
    assert len(kd.__all__) == len(set(kd.__all__))
    assert not [n for n in kd.__all__ if n.startswith("_")]


def test_every_public_callable_is_documented() -> None:
    """And so are the methods and properties of public classes."""
    things = {name: getattr(kd, name) for name in kd.__all__}
    for module in MODULES:
        things |= {f"{module}.{name}": getattr(getattr(kd, module), name) for name in getattr(kd, module).__all__}
    bare = [name for name, x in things.items() if callable(x) and not inspect.getdoc(x)]
    for name, cls in things.items():
        members = vars(cls).items() if inspect.isclass(cls) and not issubclass(cls, BaseException) else ()
        for key, member in members:
            seen = inspect.isfunction(member) or isinstance(member, property)
            if seen and not key.startswith("_") and not inspect.getdoc(member):
                bare.append(f"{name}.{key}")
    assert not bare, bare


def test_attributes_of_public_classes_are_there_at_their_first_use() -> None:
    """In a process that has made no kernel: what other modules attach to a class is imported with its public name."""
    code = (
        "import kernel_dsl as kd; kd.Layout.WG_STRIDED((64, 64), 2); kd.Layout.WGMMA; kd.Array.reshape; kd.Ref.bitcast"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
