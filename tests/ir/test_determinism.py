"""The same kernels give the same bytes in every process and under every hash seed."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.conftest import ROOT

_CODE = """
import hashlib
from tests.kernels import CASES
for name, case in CASES.items():
    target = case.targets[-1]
    stages = case.lower(target)
    print(name, hashlib.sha256((stages.key_text + stages.llvm + stages.ptx).encode()).hexdigest())
"""


def _digests(seed: str) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(
        [sys.executable, "-c", _CODE], cwd=ROOT, capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.splitlines()


def test_two_processes_and_two_hash_seeds() -> None:
    first, second = _digests("1"), _digests("4242")
    assert len(first) > 30
    assert first == second
