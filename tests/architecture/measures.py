"""Print the measures of the code's shape: `python -m tests.architecture.measures`. It takes a minute."""

from __future__ import annotations

import ast
import os
import re
import resource
import subprocess
import sys
import tempfile
import token
import tokenize
import zipfile
from collections import Counter
from pathlib import Path

from tests.architecture import type_checker
from tests.architecture.test_circles import ALL, imports, in_circles
from tests.conftest import ROOT
from tests.install.test_install import checkout, wheel

_ROOMS = ("kernel_dsl", "lowering", "runtime")


def sources() -> list[Path]:
    """The Python files of the three packages."""
    return sorted(p for room in _ROOMS for p in (ROOT / room).rglob("*.py"))


def code_lines(path: Path) -> int:
    """Lines with a token that is no comment and no docstring."""
    lines: set[int] = set()
    with tokenize.open(path) as text:
        for t in tokenize.generate_tokens(text.readline):
            docstring = t.type == token.STRING and t.string.startswith('"""') and t.line.strip().startswith('"""')
            if t.type in (token.OP, token.NAME, token.NUMBER, token.STRING) and not docstring:
                lines.update(range(t.start[0], t.end[0] + 1))
    return len(lines)


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """The modules that import each other, also inside functions and for type checkers."""
    left, found = in_circles(edges), list[set[str]]()

    def reached(start: str) -> set[str]:
        seen, todo = set[str](), [start]
        while todo:
            new = edges[todo.pop()] - seen
            seen |= new
            todo += new
        return seen

    while left:
        module = min(left)
        found.append({other for other in reached(module) if module in reached(other)})
        left -= found[-1]
    return found


def seconds(code: str, runs: int = 15) -> tuple[float, float]:
    """The median and the least of the processor time of new processes, with bytecode cached."""

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(runs + 1):
            before = spent()
            subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, check=True)
            times.append(spent() - before)
    times = sorted(times[1:])
    return times[len(times) // 2], times[0]


def wheel_names() -> list[str]:
    """The top-level names that a wheel installs."""
    with tempfile.TemporaryDirectory() as folder:
        made = wheel(checkout(Path(folder) / "checkout", True), Path(folder) / "wheel")
        with zipfile.ZipFile(made) as archive:
            tops = {name.partition("/")[0] for name in archive.namelist()}
    return sorted(name for name in tops if not name.endswith(".dist-info"))


def known_types() -> str:
    """The part of the public names whose types pyright knows."""
    try:
        return f"{100 * type_checker.known_types()[0]:.2f} %"
    except type_checker.NoPyrightError as e:
        return f"unknown: {e}"


def main() -> None:
    """Print all, a line each."""
    files = sources()
    print("raw lines:", sum(p.read_text().count("\n") for p in files), "in", len(files), "files")
    print("code lines:", sum(map(code_lines, files)))
    print("longest file:", max(p.read_text().count("\n") for p in files), "lines")
    print(
        "files in runtime/:",
        len([p for p in (ROOT / "runtime").glob("*.py") if p.name != "__init__.py"]),
        "and __init__.py",
    )
    found = [c for c in circles(imports(*ALL)) if not all(m.startswith("runtime.interpreter") for m in c)]
    print("import circles outside the interpreter:", len(found), [len(c) for c in found])
    classes = Counter(n.name for p in files for n in ast.parse(p.read_text()).body if isinstance(n, ast.ClassDef))
    print("class names used twice:", sum(n > 1 for n in classes.values()), "of", len(classes))
    print("known types:", known_types())
    print("top-level names in the wheel:", *wheel_names())
    start = seconds("pass")
    for code in ("import numpy, ml_dtypes", "import kernel_dsl"):
        print(
            f"{code}: {' s, least '.join(f'{a - b:.3f}' for a, b in zip(seconds(code), start, strict=True))} s beyond Python's own"
        )
    print("calls of the import:", re.sub(r"\s.*", "", _calls()))


def _calls() -> str:
    from tests.architecture.test_import import run

    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder))
        return " ".join(run(Path(folder)))


if __name__ == "__main__":
    main()
