"""The layers of ARCHITECTURE.md, as import-linter contracts (configured in pyproject.toml)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from kernel_dsl.rooms import PARTS
from tests.conftest import ROOT

from .test_circles import statements


def test_contracts() -> None:
    pytest.importorskip("importlinter")
    # its own process: it reconfigures the loggers of the one it runs in
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@cache
def _imports(path: Path) -> set[str]:
    """The top-level packages that a file imports, at any depth of the code; `kernel_dsl.lowering` and `.runtime` by that name."""
    names: set[str] = set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "kernel_dsl." * (node.level > 0) + (node.module or "")
            names |= {f"{module}.{a.name}".replace("..", ".") for a in node.names}
    tops = [name.split(".") for name in names]
    return {".".join(top[: 1 + (top[0] == "kernel_dsl" and top[1:2] in ([part] for part in PARTS))]) for top in tops}


def test_the_language_imports_only_numpy_and_the_standard_library() -> None:
    allowed = {*sys.stdlib_module_names, "numpy", "ml_dtypes", "kernel_dsl"}
    joins = {
        "__init__.py",
        "check.py",
        "graphs.py",
        "hosting.py",
        "jax_primitive.py",
        "kernel.py",
        "loading.py",
        "mesh_kernel.py",
        "profiling.py",
        "symmetric.py",
        "stages.py",
        "testing.py",
        "tuned.py",
        "tuning.py",
    }  # these bring lowering and runtime in, at first use
    for path in sorted((ROOT / "kernel_dsl").rglob("*.py")):
        if path.relative_to(ROOT / "kernel_dsl").parts[0] in PARTS:  # links are followed by some versions of Python
            continue
        more = (
            {f"kernel_dsl.{part}" for part in PARTS}
            if path.name in joins and path.parent.name == "kernel_dsl"
            else set[str]()
        )
        assert _imports(path) <= allowed | more, path


@pytest.mark.parametrize("framework", ["torch", "jax", "cupy"])
def test_frameworks_are_imported_by_no_one(framework: str) -> None:
    """An array's framework is already imported by whoever made the array; we look it up in `sys.modules`."""
    for package in ("kernel_dsl", "lowering", "runtime"):
        for path in (ROOT / package).rglob("*.py"):
            if path.parent.name == "interop" and path.stem == framework:
                continue
            assert framework not in _imports(path), path


def test_cuda_is_reached_through_the_driver_module_alone() -> None:
    """`runtime/devices/driver.py` holds the driver, `runtime/custom/nvrtc.py` the compiler library; both at first use."""
    allowed = {"runtime/devices/driver.py", "runtime/custom/nvrtc.py"}
    found = {
        str(path.relative_to(ROOT))
        for package in ("kernel_dsl", "lowering", "runtime")
        for path in (ROOT / package).rglob("*.py")
        if "cuda" in _imports(path) or 'import_module("cuda' in path.read_text()
    }
    assert found <= allowed


INTERPRETER = ROOT / "runtime" / "interpreter"
_KNOWS = {  # what each folder of the interpreter may import besides itself
    "ptx": set[str](),
    "isa": {"ptx"},
    "checks": {"ptx", "isa"},
    "machine": {"ptx", "isa", "checks"},
    "machine/builders": {"ptx", "isa", "checks", "machine"},
}


def _folder(path: Path) -> str:
    """Which folder of `_KNOWS` a file or folder of the interpreter belongs to; '' for the interpreter itself."""
    inside = path.relative_to(INTERPRETER).as_posix() + "/"
    return max((name for name in _KNOWS if inside.startswith(name + "/")), key=len, default="")


def _folders_imported(path: Path) -> Iterator[tuple[str, bool]]:
    """The folders of the interpreter that a file imports, at any depth of the code, and whether for its types alone."""

    def visit(node: ast.AST, typing: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            alone = typing or (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING")
            if isinstance(child, ast.ImportFrom) and child.level:
                base = path.parents[child.level - 1].joinpath(*(child.module or "").split("."))
                for target in {base / alias.name for alias in child.names}:
                    if target.is_relative_to(INTERPRETER):
                        yield _folder(target), alone
            yield from visit(child, alone)

    yield from visit(ast.parse(path.read_text()), False)


def _reads_the_environment(source: str) -> bool:
    names = {"environ", "environb", "getenv", "getenvb"}
    if not any(name in source for name in names):
        return False
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and (node.value.id, node.attr) in {("os", n) for n in names}
        ):
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "os" and names & {alias.name for alias in node.names}:
            return True
    return False


def test_options_alone_reads_environment_variables() -> None:
    assert _reads_the_environment("import os\nx = os.environ.get('X')") and _reads_the_environment(
        "from os import getenv"
    )
    assert not _reads_the_environment("x = given.environ")
    paths = {p.resolve() for package in ("kernel_dsl", *PARTS) for p in (ROOT / package).rglob("*.py")}
    found = {str(p.relative_to(ROOT)) for p in paths if _reads_the_environment(p.read_text())}
    assert found == {"kernel_dsl/options.py"}


def test_folders_of_the_interpreter() -> None:
    """Each imports those below it. The checks name types of the machine, which they watch, but do not import it to run."""
    assert [path.name for path in INTERPRETER.glob("*.py")] == ["__init__.py"]
    wrong: set[tuple[str, str]] = set()
    for path in INTERPRETER.rglob("*.py"):
        if home := _folder(path):
            for name, typing in _folders_imported(path):
                may = _KNOWS[home] | {home} | ({"machine"} if typing and home == "checks" else set[str]())
                wrong |= {(path.name, name)} if name not in may else set()
    assert wrong == set()


def test_rules_mirror_ops() -> None:
    """Every file of rules stands beside the file of ops that it lowers, or serves such files."""
    helpers = {"__init__", "access"}
    ops = {p.stem for p in (ROOT / "kernel_dsl" / "ops").glob("*.py")}
    rules = {p.stem for p in (ROOT / "lowering" / "rules").glob("*.py")}
    served = {stem for stem in rules - ops - helpers if not _has_rules(ROOT / "lowering" / "rules" / f"{stem}.py")}
    assert rules - ops - helpers - served == set()


def _has_rules(path: Path) -> bool:
    return any(
        isinstance(node, (ast.Assign, ast.AnnAssign)) and "RULES" in ast.unparse(node).split("=")[0]
        for node in ast.parse(path.read_text()).body
    )
