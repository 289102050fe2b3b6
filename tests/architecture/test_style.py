"""ruff finds nothing, and would format nothing. `test_types.py` asks pyright."""

from __future__ import annotations

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
