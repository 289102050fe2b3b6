"""The tests for a GPU, on a driver without one: all that lies between a call and the driver."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DRIVER = HERE.parent / "runtime" / "fake_cuda.c"
FILES = [
    f"test_{name}.py" for name in ("bodies", "cuda_kernel", "cuda_errors", "metal_kernel", "precompiled", "examples")
]


@pytest.mark.usefixtures("compiler")
def test_on_a_driver_without_a_gpu(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    build = [compiler, "-shared", "-fPIC", "-w", "-o", tmp_path / "libcuda.so.1", DRIVER, "-ldl"]
    subprocess.run(list(map(str, build)), check=True)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "gpu", "-q"]
    run = subprocess.run(
        [*command, *(HERE / f for f in FILES)],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "KERNEL_DSL_FAKE_CUDA": "1"},
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
