"""One writer of LLVM text: the operators of `V` write arithmetic of addresses and indices, for kernels, functions and host code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT

# scalars; the templates of ops, and vectors, are text
_TEXT = re.compile(r"(add|sub|mul|udiv|urem|shl|lshr|ashr|and|or|xor|icmp \w+|select|zext|sext|trunc) (i\d+|ptr) ")
_WRITER = [ROOT / "lowering" / name for name in ("value.py", "writer.py")]


def written(source: str) -> Iterator[str]:
    """The instructions of arithmetic that a file writes as text, by line."""
    tree = ast.parse(source)
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(p.value) if isinstance(p, ast.Constant) else "%v" for p in node.values]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            parts = [node.value]
        else:
            continue
        if _TEXT.match("".join(parts)):
            yield f"line {node.lineno}: {''.join(parts)}"


def test_arithmetic_is_written_by_operators() -> None:
    paths = [p for p in sorted((ROOT / "lowering").rglob("*.py")) if p not in _WRITER]
    assert len(paths) > 60
    assert {str(p.relative_to(ROOT)): found for p in paths if (found := list(written(p.read_text())))} == {}


@pytest.mark.parametrize(
    "line", ['f.v(f"icmp ne i32 {code}, 0")', 'v("add i32 %smem_base, 1", "i32")', 'v(f"zext i8 {x} to i32")']
)
def test_it_can_fail(line: str) -> None:
    assert len(list(written(line))) == 1
