"""Attention, decoding and products under compute-sanitizer, where there is one."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from .sanitized import PROGRAMS

TOOL = shutil.which("compute-sanitizer")
# racecheck knows mbarriers of nvcc's modules only (`sanitizerGetCudaBarrierCount`): what warpgroups hand each other through
# SMEM by an arrival and a wait, as the factors of latent keys, it takes for races. The interpreter's checks order them.
CHECKS = ("memcheck", "racecheck")
UNTOLD = {("latent", "racecheck")}


@pytest.mark.gpu
@pytest.mark.skipif(TOOL is None, reason="compute-sanitizer was not found")
@pytest.mark.parametrize(("name", "check"), [(n, c) for n in PROGRAMS for c in CHECKS if (n, c) not in UNTOLD])
def test_nothing_is_found(name: str, check: str) -> None:
    """No access out of bounds, none that is misaligned, and no hazard in SMEM."""
    # the bindings ask for entry points that a driver may lack: those answers are no errors
    command = [TOOL or "", "--report-api-errors", "no", "--error-exitcode", "9", "--tool", check]
    command += [sys.executable, "-m", "tests.gpu.sanitized", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
