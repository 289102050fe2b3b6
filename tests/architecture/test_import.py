"""`import kernel_dsl` is quick and brings nothing heavy in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

# What is imported without being asked for by name, and the calls that it comes down to. Python's own look for a module's
# file is left out: it depends on the folders of `sys.path`.
_CODE = """
import sys
import numpy, ml_dtypes
calls = 0
def note(frame, event, argument):
    global calls
    calls += event in ("call", "c_call") and not frame.f_code.co_filename.startswith("<frozen importlib")
before = set(sys.modules)
sys.setprofile(note)
import kernel_dsl
sys.setprofile(None)
heavy = ["llvmlite", "cuda", "torch", "jax", "cupy", *(f"kernel_dsl.{m}" for m in ("lowering", "runtime", "ops", "body_trace"))]
heavy = [m for m in heavy if m in sys.modules]
others = [m for m in set(sys.modules) - before if m.partition(".")[0] != "kernel_dsl"]
print(calls, len(others), *heavy)
"""


def run(bytecode: Path | None = None) -> list[str]:
    """What the code prints, in a process that keeps Python's bytecode in a folder of its own where one is given."""
    env = dict(os.environ)
    if bytecode is not None:
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        env["PYTHONPYCACHEPREFIX"] = str(bytecode)
    done = subprocess.run([sys.executable, "-c", _CODE], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_nothing_heavy_comes_in() -> None:
    assert run()[2:] == []


def test_import_is_quick(tmp_path: Path) -> None:
    """At most 22,000 calls, and 12 modules of Python's own beyond NumPy's: less than half of the time of NumPy's import.

    With bytecode cached, as it is after the first import. The test counts calls because the time depends on the machine.
    """
    run(tmp_path)
    calls, modules = map(int, run(tmp_path)[:2])
    assert calls <= 22_000
    assert modules <= 12


def test_every_public_name_is_there() -> None:
    code = (
        "import kernel_dsl as kd; [getattr(kd, n) for n in kd.__all__]; assert len(set(kd.__all__)) == len(kd.__all__)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_no_later_import_adds_to_public_classes() -> None:
    """A class has all its names, as `kd.Layout.WGMMA`, before an operation is used."""
    code = """
import kernel_dsl as kd
public = {name: value for name, value in vars(kd).items() if isinstance(value, type)}
before = {name: set(dir(value)) for name, value in public.items()}
import kernel_dsl.body_trace, kernel_dsl.library, kernel_dsl.ops
for name, value in public.items():
    assert not set(dir(value)) - before[name], (name, set(dir(value)) - before[name])
assert kd.Layout.WGMMA.of((64, 8)).registers == 4
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
