"""What it costs to come from a body to PTX and to machine code, in a process that has nothing cached but llvmlite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .compile_times import CASES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """The costs of every case: see compile_times.py."""
    environment = {**os.environ, "KERNEL_DSL_CACHE": str(tmp_path_factory.mktemp("empty"))}
    words = [sys.executable, "-m", "tests.language.compile_times"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", CASES)
def test_compiles_within_their_bounds(costs: dict[str, dict[str, float]], name: str) -> None:
    for what, cost in costs[name].items():
        assert cost <= getattr(CASES[name], what), f"{what} of {name}"


def test_compile_cost_is_linear(costs: dict[str, dict[str, float]]) -> None:
    """Counted, so to the percent: twice the ops are twice the calls, and twice the text for LLVM and the assembler."""
    short, long = costs["chain of 400"], costs["chain of 800"]
    for what in ("calls", "llvm", "ptx"):
        assert long[what] <= 2.02 * short[what], what
