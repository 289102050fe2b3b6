"""What a user's program with modules named as folders of ours must find: `program.py EXAMPLE`, run beside them by the tests."""

import os
import runpy
import sys
import tempfile

import kernel_dsl as kd
import lowering
import runtime
from kernel_dsl.runtime.assemble import find_ptxas
from kernel_dsl.runtime.disk_cache import DiskCache
from kernel_dsl.runtime.interpreter import (
    GlobalMemory,
    HazardError,
    InterpretParams,
    PtxError,
    encode_tensor_map,
    parse,
    run,
)

assert runtime.MINE == "a module" and lowering.MINE == "a package"
runpy.run_path(sys.argv[1], run_name="__main__")

assert callable(find_ptxas) and callable(parse) and callable(run) and callable(encode_tensor_map)
assert kd.HazardError is HazardError and kd.InterpretParams is InterpretParams
assert issubclass(PtxError, kd.Error) and isinstance(GlobalMemory, type)
with tempfile.TemporaryDirectory() as folder:
    cache = DiskCache(folder)
    assert cache.usable() and callable(cache.put)
    assert cache.get("0" * 64) is None and cache.counters.misses == 1

names: dict[str, str] = {}
for name, module in list(sys.modules.items()):
    file = getattr(module, "__file__", None)
    if file and name.startswith(("kernel_dsl", "runtime", "lowering")):
        other = names.setdefault(os.path.realpath(file), name)
        assert other == name, f"{file} is {other} and {name}"
for name in ("runtime.errors", "lowering.module"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise AssertionError(f"{name} is importable")
print("kernel_dsl", kd.__version__, "from", kd.__file__)
