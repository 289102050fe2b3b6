"""No string stands for an op: code asks for an op's class, or for a property that the class declares."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kernel_dsl.ops
from kernel_dsl.ir import Op

ROOT = Path(kernel_dsl.__file__).parent.parent
FILES = sorted(path for room in ("kernel_dsl", "lowering", "runtime") for path in (ROOT / room).rglob("*.py"))
OPS = {name: op for name, op in Op.registry.items() if op.__module__.startswith("kernel_dsl.")}
CLASSES = {op.__name__ for op in OPS.values()}
_NAMES = ("op_name", "__name__", "spoken")
# text of the IR, where names are what is read and written
_TEXT = {"kernel_dsl/ir.py", "kernel_dsl/text.py"}


def _strings(node: ast.AST) -> set[str]:
    return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def _asks_a_name(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr in _NAMES for n in ast.walk(node))


def _looked_up(node: ast.Subscript) -> bool:
    registry = isinstance(node.value, ast.Attribute) and node.value.attr == "registry"
    return registry and isinstance(node.ctx, ast.Load) and bool(_strings(node.slice))


def matched_by_name(source: str) -> Iterator[str]:
    """What of a file compares, looks up or keeps the name of an op, by line."""
    tree = ast.parse(source)
    shown = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FormattedValue) or (isinstance(node, ast.keyword) and node.arg == "op")
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "op_name" and id(node) not in shown:
            yield f"{node.lineno}: op_name outside of a message"
        elif (
            isinstance(node, (ast.Compare, ast.Match)) and _asks_a_name(node) and _strings(node) & (CLASSES | set(OPS))
        ):
            yield f"{node.lineno}: a comparison with an op's name"
        elif isinstance(node, ast.Subscript) and _looked_up(node):
            yield f"{node.lineno}: an op looked up by its name"


def test_ops_are_matched_by_class() -> None:
    found: list[str] = []
    for path in FILES:
        source, name = path.read_text(), str(path.relative_to(ROOT))
        if name not in _TEXT and any(word in source for word in (*_NAMES, "registry")):
            found += [f"{name}:{what}" for what in matched_by_name(source)]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        'x = op.op_name == "store"',
        'x = op.op_name in ("store", "scatter")',
        "name = op.op_name",
        "x = _TABLE[op.op_name]",
        'x = type(op).__name__ == "Wgmma"',
        'x = op.spoken() in {"wgmma"}',
        'x = Op.registry["store"]',
        'match op.op_name:\n    case "for":\n        pass',
    ],
)
def test_a_name_is_found(line: str) -> None:
    assert list(matched_by_name(line))


@pytest.mark.parametrize(
    "line", ["raise Refused(op=op.op_name)", 'text = f"`{op.op_name}` is slow"', "isinstance(op, Store)"]
)
def test_a_message_is_none(line: str) -> None:
    assert not list(matched_by_name(line))
