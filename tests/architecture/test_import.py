"""`import kernel_dsl` is quick and brings nothing heavy in."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import ROOT
from tests.speed import slowness

_CODE = """
import time
start = time.thread_time()
import kernel_dsl
took = time.thread_time() - start
import sys
heavy = [m for m in ("llvmlite", "cuda", "torch", "jax", "cupy", "lowering", "runtime") if m in sys.modules]
print(took, *heavy)
"""


def _run(bytecode: Path | None = None) -> list[str]:
    """What the code prints, in a process that keeps Python's bytecode in a folder of its own where one is given."""
    env = dict(os.environ)
    if bytecode is not None:
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        env["PYTHONPYCACHEPREFIX"] = str(bytecode)
    done = subprocess.run([sys.executable, "-c", _CODE], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_nothing_heavy_comes_in() -> None:
    assert _run()[1:] == []


def test_import_time(tmp_path: Path) -> None:
    """At most 0.25 s of processor time of the importing thread (those that NumPy starts spin beside it), numpy included.

    The best of several, as others share the machine, and with bytecode cached, as it is after the first import.
    """
    best, bound = 1.0, 0.25 * slowness()
    for _ in range(6):
        best = min(best, float(_run(tmp_path)[0]))
        if best <= bound:
            return
        time.sleep(0.3)
    raise AssertionError(f"import kernel_dsl took {best:.3f} s of {bound:.3f} s")


def test_every_public_name_is_there() -> None:
    code = "import kernel_dsl as kd; [getattr(kd, n) for n in kd.__all__]; assert len(set(kd.__all__)) == len(kd.__all__)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
