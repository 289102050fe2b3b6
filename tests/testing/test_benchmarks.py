"""Scripts of `benchmarks` on machines that lack what they measure with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

LACKING = {"attention": "torch", "collectives": "torch", "grid_sample": "torch", "pallas_matmul": "jax"}


@pytest.mark.parametrize("script", LACKING)
def test_a_package_that_is_not_installed(script: str, tmp_path: Path) -> None:
    name = LACKING[script]
    (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')\n")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", f"benchmarks.{script}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=ROOT)
    words = f"this script needs the package {name}, which is not installed here\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", words)
