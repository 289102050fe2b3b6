"""The same kernels give the same bytes in every process and under every hash seed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

_CODE = """
import hashlib, sys
from tests.kernels import CASES
for name, case in list(CASES.items())[:: int(sys.argv[1])]:
    target = case.targets[-1]
    stages = case.lower(target)
    print(name, hashlib.sha256((stages.key_text + stages.llvm + stages.ptx).encode()).hexdigest())
"""


def _digests(seed: str, step: int) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(
        [sys.executable, "-c", _CODE, str(step)], cwd=ROOT, capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_two_processes_and_two_hash_seeds(step: int) -> None:
    """Of every eighth kernel; the long form takes all. The gate compares all with those of other processes, too."""
    first, second = _digests("1", step), _digests("4242", step)
    assert len(first) > 60 // step
    assert first == second
