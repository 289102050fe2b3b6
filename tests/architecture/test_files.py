"""Sizes of files and functions, and words that have no place in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import kernel_dsl as kd
from tests.conftest import ROOT, tracked

SOFT, HARD = 400, 600
SCREEN = 80  # lines of a function
PACKAGES = ("kernel_dsl", "lowering", "runtime")


def sources() -> list[Path]:
    """Every text file that is ours: Python, headers, prose and settings."""
    kinds = {".py", ".h", ".c", ".md", ".toml"}
    folders = (*PACKAGES, "tests", "benchmarks", "examples", "docs", ".ci")
    found = [p for f in folders for p in (ROOT / f).rglob("*") if p.suffix in kinds or p.parent.name == ".ci"]
    found += [p for p in ROOT.iterdir() if p.suffix in kinds]
    return sorted(p for p in found if p.is_file() and "__pycache__" not in p.parts)


def _lines(path: Path) -> int:
    return path.read_text().count("\n")


@pytest.mark.parametrize("package", [*PACKAGES, "tests", "benchmarks", "examples"])
def test_file_sizes(package: str, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {p: _lines(p) for p in (ROOT / package).rglob("*.py")}
    with capsys.disabled():
        for path, count in sizes.items():
            if count > SOFT:
                print(f"\nover the soft limit of {SOFT} lines: {path.relative_to(ROOT)} ({count})", end="")
    assert [f"{p.relative_to(ROOT)}: {n} lines" for p, n in sizes.items() if n > HARD] == []


def _functions(path: Path) -> Iterator[tuple[str, int]]:
    """(the name, the lines without the docstring) of each function of a file; functions inside it count."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            yield node.name, node.end_lineno - node.lineno + 1 - (docstring.count("\n") + 1 if docstring else 0)


def test_functions_fit_a_screen() -> None:
    sizes = [(p, *found) for package in PACKAGES for p in (ROOT / package).rglob("*.py") for found in _functions(p)]
    assert len(sizes) > 5000
    assert [f"{p.relative_to(ROOT)}: {name} {n} lines" for p, name, n in sizes if n > SCREEN] == []


def test_a_page_names_all_files_of_the_library_and_the_mesh() -> None:
    text = (ROOT / "docs/files.md").read_text()
    assert [p.name for p in (ROOT / "runtime/mesh").glob("[!_]*.py") if f"{p.name}`" not in text] == []
    library, named = ROOT / "kernel_dsl/library", set[str]()
    section = text[text.index("## The library") : text.index("## Lowering")]
    for room, files in re.findall(r"^\| (the root|`\w+/`) \| ([^|]*) \|", section, re.MULTILINE):
        named |= {room.strip("`").replace("the root", "") + name for name in re.findall(r"`(\w+\.py)`", files)}
    assert named == {str(p.relative_to(library)) for p in library.rglob("[!_]*.py")}


def test_the_library_has_rooms() -> None:
    library = ROOT / "kernel_dsl/library"
    assert len(list(library.glob("*.py"))) <= 16, "a file of one function, or of few, lies in a room"
    names = {p.stem for p in library.iterdir()}
    assert names.isdisjoint(kd.library.__all__), "an import of the module would take the place of the function"
    rooms = {p.parent for p in library.glob("*/*.py")}
    assert len(rooms) >= 12
    for room in rooms:
        assert len(list(room.glob("*.py"))) <= 32, room


def test_the_runtime_has_rooms() -> None:
    assert len(list((ROOT / "runtime").glob("*.py"))) <= 6, "a file of the runtime lies in one of its rooms"


# Split, so that this file does not name what it looks for.
_WORDS = [r"TO" + r"DO", r"FIX" + r"ME", r"XX" + r"X", r"NotImplemented" + r"Error", r"Haw" + r"ky"]
_PLACES = [r"/wo" + r"rk/", r"/ro" + r"ot/"]


@pytest.mark.parametrize("folder", sorted({p.relative_to(ROOT).parts[0] for p in sources()}))
def test_words(folder: str) -> None:
    words = re.compile(rf"\b({'|'.join(_WORDS)})\b|{'|'.join(_PLACES)}")
    for path in (p for p in sources() if p.relative_to(ROOT).parts[0] == folder):
        found = words.search(path.read_text())
        assert found is None, f"{path}: {found[0]} at offset {found.start()}"


def test_no_stub_is_left_in_the_packages() -> None:
    """A function whose body is only `pass` or `...` promises what is not there."""
    import ast

    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text()
            if not re.search(r"(:|^)\s*(\.\.\.|pass)\s*(#.*)?$", text, re.MULTILINE):
                continue
            tree = ast.parse(text)
            empty = [
                node
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef) and len(node.body) == 1 and _is_empty(node.body[0])
            ]
            if not empty:
                continue
            excused = {
                inner
                for node in ast.walk(tree)
                if (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
                or (isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(b) for b in node.bases))
                for inner in ast.walk(node)
            }
            for node in empty:
                overload = any(
                    "overload" in ast.unparse(d) or "abstract" in ast.unparse(d) for d in node.decorator_list
                )
                assert overload or node in excused, f"{path}:{node.lineno} {node.name} does nothing"


def _is_empty(node: object) -> bool:
    import ast

    return isinstance(node, ast.Pass) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is ...
    )


def test_nothing_generated_is_tracked() -> None:
    bad = [f for f in tracked() if f.endswith((".pyc", ".so", ".cubin", ".whl")) or "egg-info" in f]
    root = {f for f in tracked() if "/" not in f and not f.endswith(".md")}  # a test may write into the current folder
    assert bad == [] and root == {".gitignore", "LICENSE", "pyproject.toml", "setup.py"}


def test_contributing_names_the_tests_of_each_room() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    tests = {path.split("/")[1] for path in tracked() if path.startswith("tests/") and path.count("/") > 1}
    rooms = {path.split("/")[1] for path in tracked() if path.startswith("runtime/") and path.count("/") > 1}
    assert [name for name in sorted(tests) if f"`tests/{name}`" not in text and f"`tests/{name}/" not in text] == []
    assert [name for name in sorted(rooms) if f"`runtime/{name}`" not in text] == []
