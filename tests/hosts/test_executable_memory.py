"""A process that may not make memory executable, as hardened services forbid it, gets an error and no crash."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

_CODE = """
import ctypes, sys
import llvmlite.binding
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE
    sys.exit(77)
from kernel_dsl import hosting
from kernel_dsl.errors import NoHostCode
for make in (lambda: hosting.replay_code(lambda name: 1), lambda: hosting.torch_stub("a::b", 1, [1, 1, 1, 1])):
    try:
        make()
    except NoHostCode as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of Linux")
def test_host_code_is_refused() -> None:
    done = subprocess.run([sys.executable, "-c", _CODE], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("this kernel can't forbid it")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("this process may not make memory executable") == 2, done.stdout
