"""Runs the cases in `cuda_*cases.py` on a driver without a GPU, by the real cuda.bindings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CASES = [
    HERE / name
    for name in (
        "cuda_cases.py",
        "cuda_fast_cases.py",
        "cuda_fork_cases.py",
        "cuda_image_cases.py",
        "cuda_host_cases.py",
        "cuda_tvm_cases.py",
        "cuda_library_cases.py",
        "cuda_mesh_cases.py",
        "cuda_rank_cases.py",
        "cuda_waits_cases.py",
        "cuda_tuning_cases.py",
    )
]


def test_cuda_device_on_a_driver_without_a_gpu(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    library = tmp_path / "libcuda.so.1"
    build = [compiler, "-shared", "-fPIC", "-w", "-o", library, HERE / "fake_cuda.c", "-ldl"]
    subprocess.run(list(map(str, build)), check=True)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *CASES],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "KERNEL_DSL_FAKE_CUDA": "1"},
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert " passed" in run.stdout and " failed" not in run.stdout
