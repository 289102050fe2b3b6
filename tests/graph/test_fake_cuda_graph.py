"""Runs the cases in `cuda_*_cases.py` against a driver without a GPU, through the real cuda.bindings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def test_cuda_graphs_on_a_driver_without_a_gpu(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    pytest.importorskip("cuda.bindings.driver")
    library = tmp_path / "libcuda.so.1"
    source = HERE / "fake_graph.c"
    build = [compiler, "-shared", "-fPIC", "-w", "-O1", "-o", library, source, "-ldl"]
    subprocess.run(list(map(str, build)), check=True)
    cases = sorted(HERE.glob("cuda_*_cases.py"))
    long = ["--slow"] if pytestconfig.getoption("--slow") else []
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short", *long, *map(str, cases)],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "KERNEL_DSL_FAKE_CUDA": "1"},
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
