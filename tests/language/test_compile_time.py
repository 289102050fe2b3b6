"""Bounds on the time from a body to PTX and to machine code, in a process that has nothing cached but llvmlite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.assemble import find_ptxas

ROOT = Path(__file__).resolve().parents[2]
BOUNDS = {"chain of 800": 300, "nested 12 deep": 50, "vector add": 50, "matmul": 350}
SOFTMAX = 150


@pytest.fixture(scope="module")
def times(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Milliseconds of every measured compile."""
    assemble = ["--assemble"] if find_ptxas() is not None else []
    environment = {**os.environ, "KERNEL_DSL_CACHE": str(tmp_path_factory.mktemp("empty"))}
    words = [sys.executable, "-m", "tests.language.compile_times", *assemble]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_compiles_within_their_bounds(times: dict[str, float]) -> None:
    slower = times["slowness"]
    for name, took in times.items():
        bound = SOFTMAX if name.startswith("softmax") else BOUNDS.get(name)
        assert bound is None or took <= bound * slower, f"{name}: {took:.0f} ms, of {bound} where this machine takes {slower:.1f} times as long"


def test_compile_time_is_linear(times: dict[str, float]) -> None:
    assert times["chain of 1600"] <= 2.2 * times["chain of 800"], times
