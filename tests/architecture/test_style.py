"""ruff and pyright (strict) find nothing, and ruff would format nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT


def _ruff(*arguments: str) -> None:
    pytest.importorskip("ruff")
    command = [sys.executable, "-m", "ruff", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def test_ruff_check() -> None:
    _ruff("check", "--no-cache", ".")


def test_ruff_format() -> None:
    _ruff("format", "--check", "--no-cache", ".")


def test_pyright() -> None:
    """The wheel fetches node and pyright at first use; the test never does."""
    pytest.importorskip("pyright")
    cached = os.path.expanduser("~/.cache/pyright-python")
    if not (os.path.isdir(cached) and (shutil.which("node") or os.path.isdir(f"{cached}/nodeenv"))):
        pytest.skip("pyright has not been fetched to this machine")
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1", "PYRIGHT_PYTHON_PYLANCE_VERSION": ""}
    command = [sys.executable, "-m", "pyright", "--outputjson"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        pytest.skip(f"pyright does not run here: {done.stderr[-200:]}")
    errors = [d for d in report["generalDiagnostics"] if d["severity"] == "error"]
    text = "\n".join(f"{d['file']}:{d['range']['start']['line'] + 1}: {d['message']}" for d in errors[:40])
    assert not errors, f"{len(errors)} errors\n{text}"
