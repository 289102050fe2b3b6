"""What the first launch of a process costs where the disk cache has the kernel: a count of Python calls, so that no clock decides."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

HERE = Path(__file__).parent

# the most Python calls of a first launch, imports left out; about 1,000 take a millisecond on a host of a GPU
MOST = {"matmul": 4700, "attention": 3750, "grouped_matmul": 3700, "traced": 6400}

# Each call is made in a child of a process that has all imports behind it, and no device: twice, the second one is counted.
_CODE = """
import json, os, sys
import numpy as np
import kernel_dsl as kd
from kernel_dsl import body_trace, loading
from kernel_dsl.runtime import assemble, disk_cache
from kernel_dsl.runtime.build import cache, driver_assemble
from kernel_dsl.runtime.devices import cuda_device, devices
from kernel_dsl.runtime.plan import binding, calls, dispatch
from tests.runtime import fake_cupy

class Patch:
    setattr = staticmethod(setattr)
    setitem = staticmethod(lambda items, key, value: items.__setitem__(key, value))

fake_cupy.install(Patch)
import kernel_dsl.runtime.arrays.interop.cupy
library = kd.library
for name in library.__all__:
    getattr(library, name)

def zeros(*shape, dtype=np.float16):
    return fake_cupy.ndarray(np.zeros(shape, dtype))

@kd.kernel(out_type=lambda x: x, grid=lambda x: (x.shape[0],), grid_names=("row",))
def softmax(x, out):
    row = x[kd.axis_index("row")]
    e = kd.exp(row - row.max())
    out[kd.axis_index("row")] = e / e.sum()

square, heads = zeros(1024, 1024), zeros(1, 8, 512, 128)
CALLS = {
    "matmul": lambda: library.matmul(square, square),
    "attention": lambda: library.attention(heads, heads, heads),
    "grouped_matmul": lambda: library.grouped_matmul(square, zeros(4, 1024, 1024), zeros(4, dtype=np.int32)),
    "traced": lambda: softmax(zeros(1024, 1024, dtype=np.float32)),
}
count = 0

def note(frame, event, argument):
    global count
    count += event == "call"

for name, call in CALLS.items():
    for time in range(2):
        if not os.fork():
            devices.cuda_device()
            sys.setprofile(note if time else None)
            call()
            sys.setprofile(None)
            found = loading.kernel_cache().disk.counters
            print(json.dumps([name, time, count, found.hits, found.misses]), flush=True)
            os._exit(0)
        assert os.wait()[1] == 0, name
"""


def _driver(folder: Path) -> dict[str, str]:
    """The environment of a process with the driver without a GPU and a cache of its own."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    build = [compiler, "-shared", "-fPIC", "-w", "-o", folder / "libcuda.so.1", HERE / "fake_cuda.c", "-ldl"]
    subprocess.run(list(map(str, build)), check=True)
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder), "KERNEL_DSL_FAKE_CUDA": "1"}
    return env | {"KERNEL_DSL_CACHE": str(folder / "cache"), "PYTHONPATH": str(ROOT)}


def _run(arguments: list[str], env: dict[str, str]) -> str:
    run = subprocess.run([sys.executable, *arguments], env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


def test_a_first_launch_makes_few_calls(tmp_path: Path) -> None:
    output = _run(["-c", _CODE], _driver(tmp_path))
    rows = [json.loads(line) for line in output.splitlines()]
    assert [name for name, time, *_ in rows if time] == list(MOST)
    for name, time, count, hits, misses in rows:
        assert bool(misses) != bool(time), name  # the first fills the cache, and the second finds all in it
        assert hits or not time, name
        assert count <= MOST[name], f"{name}: {count} Python calls"


# A library function brings in what its launches need, with the interop modules of the frameworks that are loaded.
_IMPORTS = """
import json, sys
import numpy as np
import kernel_dsl as kd
from tests.runtime import fake_cupy

class Patch:
    setattr = staticmethod(setattr)
    setitem = staticmethod(lambda items, key, value: items.__setitem__(key, value))

fake_cupy.install(Patch)
from kernel_dsl.runtime.devices import devices
kd.library.matmul, kd.library.attention
devices.cuda_device()
shape = {"matmul": (1024, 1024), "attention": (1, 8, 512, 128)}[sys.argv[1]]
x = fake_cupy.ndarray(np.zeros(shape, np.float16))
before = set(sys.modules)
kd.library.matmul(x, x) if sys.argv[1] == "matmul" else kd.library.attention(x, x, x)
new = [name for name in sys.modules if name not in before]
from kernel_dsl import loading
print(json.dumps([new, loading.kernel_cache().disk.counters.misses]))
"""


def test_a_first_launch_imports_nothing(tmp_path: Path) -> None:
    env = _driver(tmp_path)
    for name in ("matmul", "attention"):
        for time in range(2):
            new, misses = json.loads(_run(["-c", _IMPORTS, name], env))
            assert bool(misses) != bool(time), name
        assert new == [], name
