"""Runs the cases in `cuda_*_cases.py` on a driver without a GPU, by the real cuda.bindings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_dsl.runtime.assemble import find_ptxas

HERE = Path(__file__).parent
# A process each, so that workers share them: the library's, those that compile host code, and all others.
LONG = {"library": ("cuda_library_cases.py",), "hosts": ("cuda_host_cases.py", "cuda_tvm_cases.py")}
ALONE = {name for names in LONG.values() for name in names}
PARTS = LONG | {"others": tuple(sorted(path.name for path in HERE.glob("cuda_*cases.py") if path.name not in ALONE))}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a `libcuda.so.1` that has no GPU."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    folder = tmp_path_factory.mktemp("driver")
    build = [compiler, "-shared", "-fPIC", "-w", "-o", folder / "libcuda.so.1", HERE / "fake_cuda.c", "-ldl"]
    subprocess.run(list(map(str, build)), check=True)
    return folder


@pytest.fixture(scope="module")
def assembler(driver: Path) -> dict[str, str]:
    """The variables for a ptxas that reads its text and gives the code of an empty kernel at once.

    That driver takes any code on trust. Other tests assemble the same kernels with ptxas, which takes a third of the time here.
    """
    ptxas = find_ptxas()
    if ptxas is None:
        return {}
    source, code, made = driver / "ptxas.c", driver / "empty.cubin", driver / "ptxas"
    text = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry empty() { ret; }\n"
    subprocess.run([ptxas, "-arch=sm_90a", "/dev/stdin", "-o", code], input=text.encode(), check=True)
    numbers = ",".join(map(str, code.read_bytes()))
    source.write_text(
        f"#include <unistd.h>\nstatic const unsigned char code[] = {{{numbers}}};\n"
        "int main(void) {\n  char text[65536];\n  while (read(0, text, sizeof text) > 0) ;\n"
        "  return write(1, code, sizeof code) != sizeof code;\n}\n"
    )
    subprocess.run([shutil.which("gcc") or "cc", source, "-o", made], check=True)
    return {"KERNEL_DSL_PTXAS": str(made)}


@pytest.mark.parametrize("part", PARTS)
def test_cuda_device_on_a_driver_without_a_gpu(
    part: str, driver: Path, assembler: dict[str, str], pytestconfig: pytest.Config
) -> None:
    long = ["--slow"] if pytestconfig.getoption("--slow") else []
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *long, *(str(HERE / name) for name in PARTS[part])],
        env={**os.environ, **assembler, "LD_LIBRARY_PATH": str(driver), "KERNEL_DSL_FAKE_CUDA": "1"},
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert " passed" in run.stdout and " failed" not in run.stdout
