"""Kernels as ops that a library registers without Python: called by PyTorch's dispatcher, alone and in compiled artefacts."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadArgument, NoHostCode
from kernel_dsl.hosting import arguments_of
from kernel_dsl.launch_plan import plan_of
from kernel_dsl.lowering.host import Host
from kernel_dsl.lowering.host_entries import add_c_entry
from kernel_dsl.lowering.host_torch import NUMBERS, add_torch_entry
from kernel_dsl.lowering.llvm import host_object
from tests import aotinductor
from tests.conftest import ROOT

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("nvidia.cu13", reason="needs ptxas")
Spec = kd.ShapeDtypeStruct


@kd.kernel(out_type=lambda x, factor, more: (Spec(x.shape, x.dtype), Spec(x.shape, kd.int32)), name="scale")
def scale(x_ref: Any, factor: float, more: int, o_ref: Any, n_ref: Any) -> None:
    o_ref[...] = x_ref[...] * factor
    n_ref[...] = kd.full(x_ref.shape, more, kd.int32)


PLAY = """
#include <dlfcn.h>
static int play(const char *name, void **params, int count, const int *sizes, unsigned *dims, unsigned smem, void *stream,
                int cluster, int pdl) {
  const float *x = *(float **)params[0];
  float *y = *(float **)params[3];
  int *n = *(int **)params[4];
  for (int i = 0; i < 512; i++) y[i] = x[i] * *(float *)params[1], n[i] = *(int *)params[2];
  return 0;
}
__attribute__((constructor)) static void begin(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  ((void (*)(void *))dlsym(driver, "fake_callback"))((void *)play);
}
"""

CALLS = """
import os, sys, torch
torch.ops.load_library(sys.argv[1])
op = torch.ops.kd_artefact.scale
x = torch.randn(8, 64)
y, n = op(x, 2.5, -7)
assert torch.equal(y, x * 2.5) and n.dtype is torch.int32 and bool((n == -7).all())
for args, words in (
    ((x.T, 2.5, 1), "axis 0 of x has 64 elements, and the kernel was compiled for 8"),
    ((x.T.contiguous().T, 2.5, 1), "x is not row-major: axis 0 has a stride of 1 elements, and needs 64"),
    ((x.double(), 2.5, 1), "x has a dtype of code 2, 64 bits and 1 lanes, and the kernel was compiled for float32"),
    ((x[0], 2.5, 1), "x has rank 1, and the kernel was compiled for rank 2"),
    ((x, 2.5, 2**40), "more is 1099511627776, which int32 has not"),
):
    try:
        op(*args)
    except RuntimeError as error:
        assert "scale: " + words in str(error), error
    else:
        raise AssertionError(words)
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
op(x, 1.0, 1); start = resident()
for _ in range(20000):
    op(x, 1.0, 1)
assert resident() - start < 8 << 20, "handles are kept"
assert not any(name.partition(".")[0] == "kernel_dsl" for name in sys.modules)
print("all calls were right")
"""


def built(folder: Path, name: str, compiled: Any, play: str, written: dict[int, int]) -> Path:
    """The op `kd_artefact::NAME` for memory of the host, and a driver that plays its kernel; GPUs are not touched."""
    if sys.platform != "linux" or not shutil.which("gcc"):
        pytest.skip("needs a C compiler on Linux")
    arguments = arguments_of(compiled.stages.ir)
    host = Host(compiled.assembled.kernel, plan_of(compiled.assembled.kernel), compiled.cubin)
    add_c_entry(host, name, arguments)
    add_torch_entry(host, name, f"kd_artefact::{name}", arguments, key="CPU", written=written)
    (folder / f"{name}.o").write_bytes(host_object(str(host)))
    (folder / "play.c").write_text(play)
    driver = str(ROOT / "tests/runtime/fake_cuda.c")
    for made, *sources in (
        ("libcuda.so.1", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", driver, "-ldl"),
        ("play.so", "-fPIC", "-w", str(folder / "play.c"), "-ldl"),
        ("scale.so", str(folder / f"{name}.o")),
    ):
        subprocess.run(["gcc", "-shared", "-o", str(folder / made), *sources], check=True)
    return folder


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiled = scale.lower(Spec((8, 64), kd.float32), 1.0, 1, target="sm_90a").compile()
    return built(tmp_path_factory.mktemp("library"), "scale", compiled, PLAY, {})


def environment(library: Path, path: str = "") -> dict[str, str]:
    """That of a process with the driver which plays the kernel, if the folder has one."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(library), "PYTHONPATH": path}
    return env | {"LD_PRELOAD": str(library / "play.so")} if (library / "play.so").exists() else env


def run(library: Path, code: str, path: str = "") -> str:
    done = aotinductor.start(code, library, str(library / "scale.so"), env=environment(library, path))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_op_without_our_python(library: Path) -> None:
    assert "all calls were right" in run(library, CALLS)


@kd.kernel(
    out_type=lambda x, y: (Spec(y.shape, y.dtype), Spec(x.shape, x.dtype)), input_output_aliases={0: 1}, name="bump"
)
def bump(x_ref: Any, y_ref: Any, before_ref: Any, o_ref: Any) -> None:
    before_ref[...] = x_ref[...] + y_ref[...]
    o_ref[...] = x_ref[...] + 1


PLAY_BUMP = PLAY[: PLAY.index("  const float")] + """
  float *x = *(float **)params[0], *y = *(float **)params[1], *p = *(float **)params[2], *o = *(float **)params[3];
  for (int i = 0; i < 512; i++) p[i] = x[i] + y[i], o[i] = x[i] + 1;
""" + PLAY[PLAY.index("  return 0;") :]  # fmt: skip

BUMPS = """
import sys, torch
torch.ops.load_library(sys.argv[1])
op = torch.ops.kd_artefact.bump
x, y = torch.randn(8, 64), torch.randn(8, 64)
first = x.clone()
before = op(x, y)
assert torch.equal(before, first + y) and torch.equal(x, first + 1), "x is written in place"
assert str(op.default._schema) == "kd_artefact::bump(Tensor(x!) x, Tensor y) -> Tensor"
try:
    op(x, x)
except RuntimeError as error:
    assert "overlap in memory" in str(error), error
else:
    raise AssertionError("y overlaps with what is written")
print("all calls were right")
"""


def test_an_op_that_writes_in_place(tmp_path: Path) -> None:
    stages = bump.lower(*[Spec((8, 64), kd.float32)] * 2, target="sm_90a")
    assert "all calls were right" in run(built(tmp_path, "bump", stages.compile(), PLAY_BUMP, {3: 0}), BUMPS)
    given: dict[str, Any] = {"folder": tmp_path, "c": True, "torch_op": "kd_artefact::bump"}
    assert len(stages.export("bump", **given, mutates_args=["x"])) == 2
    for wrong, words in ((["y"], "'y' in mutates_args"), ("x", "mutates_args='x'"), ([3], "3 in mutates_args")):
        with pytest.raises(BadArgument, match=words):
            stages.export("bump", **given, mutates_args=wrong)
    with pytest.raises(BadArgument, match="mutates_args without torch_op"):
        stages.export("bump", folder=tmp_path, c=True, mutates_args=["x"])


TWIN = """
import ctypes, torch, kernel_dsl as kd
context, driver = ctypes.c_void_p(), ctypes.CDLL("libcuda.so.1")
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxSetCurrent(context)  # as PyTorch has done where there is a GPU
from kernel_dsl import torch_native
from tests.hosts.test_torch_artefact import scale
calls = []
def made(x, factor, more):
    calls.append(tuple(x.shape))
    if more < 0:
        raise ValueError(f"no {more}")
    return x * factor, torch.full(x.shape, more, dtype=torch.int32)
def fake(x, factor, more):
    return torch.empty_like(x), x.new_empty(x.shape, dtype=torch.int32)
def compiled(given, device):
    stages = scale.lower(*given, target="sm_90a")
    return stages.ir, stages.assembled()
schema = "(Tensor x, float factor, SymInt more) -> (Tensor, Tensor)"
op = torch.library.custom_op("kd_twin::scale", made, mutates_args=(), schema=schema)
paused = ctypes.c_int(0)
at = ctypes.addressof(paused)
torch_native.add_twin(op, schema, made, fake, compiled, at, "CPU")
def right(x, factor=2.5, more=7):
    before = len(calls)
    y, n = torch.ops.kd_twin.scale__compiled(x, factor, more)
    assert torch.equal(y, x * factor) and n.dtype is torch.int32 and bool((n == more).all()), (x.shape, factor)
    return len(calls) > before
x, other = torch.randn(8, 64), torch.randn(4, 128)
assert [right(x) for _ in range(4)] == [True, True, False, False], calls
assert not right(x + 1, -3.0, 2**31 - 1)
assert [right(other) for _ in range(4)] == [True, True, False, False], calls
assert not right(x) and not right(other)
paused.value = 1
assert right(x)
paused.value = 0
assert not right(x) and right(x.double()) and right(x[None])
for odd in (x[:, :63], torch.randn(64, 8).T, torch.randn(513)[1:].reshape(8, 64), torch.empty(0, 64)):
    for _ in range(3):
        assert right(odd)
for _ in range(3):
    try:
        torch.ops.kd_twin.scale__compiled.default(x.T, 1.0, -4)  # as inductor's code does
    except ValueError as error:
        assert str(error) == "no -4", error
    else:
        raise AssertionError("nothing was raised")
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
for y in (x, x[:, :63]):
    right(y); start = resident()
    for _ in range(20000):
        torch.ops.kd_twin.scale__compiled(y, 1.0, 1)
    assert resident() - start < 8 << 20, "handles are kept"
threes = lambda x, factor, more: (x * factor + 3, torch.full(x.shape, more, dtype=torch.int32))
again = torch.library.custom_op("kd_twin::scale", threes, mutates_args=(), schema=schema)
torch_native.add_twin(again, schema, threes, fake, compiled, at, "CPU")
assert torch.equal(torch.ops.kd_twin.scale__compiled(x, 2.0, 1)[0], x * 2 + 3), "the op was defined anew"
print("all calls were right")
"""


def test_host_code_of_an_op_made_by_python(library: Path) -> None:
    """Signatures that come again are launched without Python; what is not one of them is Python's."""
    assert "all calls were right" in run(library, TWIN, path=str(ROOT))


MODEL = """
import sys, torch
torch.ops.load_library(sys.argv[1])
op = torch.ops.kd_artefact.scale
if len(sys.argv) > 3:
    class Model(torch.nn.Module):
        def forward(self, x):
            y, n = op(x + 1, 2.5, 3)
            return y.sin() + n
    torch.library.register_fake("kd_artefact::scale", lambda x, *_: (torch.empty_like(x), x.new_empty(x.shape, dtype=torch.int32)))
    program = torch.export.export(Model(), (torch.randn(8, 64),))
    torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[2])
else:
    x = torch.randn(8, 64)
    made = torch._inductor.aoti_load_package(sys.argv[2])(x)
    assert (made - (((x + 1) * 2.5).sin() + 3)).abs().max() < 1e-6
    assert not any(name.partition(".")[0] == "kernel_dsl" for name in sys.modules)
print("done")
"""


# the model's state and a value between are written in place, and read before and after
STATE = """
import sys, torch
torch.ops.load_library(sys.argv[1])
op = torch.ops.kd_artefact.bump
if len(sys.argv) > 3:
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", torch.zeros(8, 64))
        def forward(self, x):
            y = x * 2
            return op(y, x) + y, op(self.state, y)
    torch.library.register_fake("kd_artefact::bump", lambda x, y: torch.empty_like(y))
    program = torch.export.export(Model(), (torch.randn(8, 64),))
    torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[2])
else:
    x, model = torch.randn(8, 64), torch._inductor.aoti_load_package(sys.argv[2])
    for times in range(3):
        first, second = model(x)
        assert (first - (5 * x + 1)).abs().max() < 1e-5
        assert (second - (times + 2 * x + 1)).abs().max() < 1e-5
    assert not any(name.partition(".")[0] == "kernel_dsl" for name in sys.modules)
print("done")
"""


def packaged(library: Path, code: str) -> None:
    """Compile a package in one process, and call it in another."""
    if not shutil.which("g++"):
        pytest.skip("AOTInductor needs a C++ compiler")
    paths = str(library / "scale.so"), str(library / "model.pt2")
    for more in (["write"], []):
        assert "done" in aotinductor.run(code, library, *paths, *more, env=environment(library))


def test_a_package_that_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is PyTorch's fault if that happens without our code, too."""
    ends = "import os, signal; os.kill(os.getpid(), signal.{})"
    for plain, result in (
        (ends.format("SIGSEGV"), pytest.skip.Exception),
        (ends.format("SIGABRT"), AssertionError),
        ("", AssertionError),
    ):
        monkeypatch.setattr(aotinductor, "PLAIN", plain)
        with pytest.raises(result):
            aotinductor.run(ends.format("SIGSEGV"), tmp_path)


@pytest.mark.slow  # PyTorch compiles C++ for a minute
def test_a_package_of_aotinductor(library: Path) -> None:
    packaged(library, MODEL)


@pytest.mark.slow
def test_a_package_whose_op_writes_in_place(tmp_path: Path) -> None:
    stages = bump.lower(*[Spec((8, 64), kd.float32)] * 2, target="sm_90a")
    packaged(built(tmp_path, "bump", stages.compile(), PLAY_BUMP, {3: 0}), STATE)


def test_numbers_of_dtypes_are_those_of_pytorch() -> None:
    found = Path(torch.__file__).parent / "lib/libtorch_cpu.so"
    if not found.exists():
        pytest.skip("PyTorch's library has another name")
    library = ctypes.CDLL(str(found))
    known = {name: getattr(library, f"aoti_torch_dtype_{name}", None) for name in NUMBERS}
    missing = {name for name, function in known.items() if function is None}
    assert missing <= {"float8_e8m0fnu"}  # which that of PyTorch 2.11 lacks
    assert all(function() == NUMBERS[name] for name, function in known.items() if function is not None)


def test_names_and_dtypes_that_pytorch_has_not(tmp_path: Path) -> None:
    stages = scale.lower(Spec((8, 64), kd.float32), 1.0, 1, target="sm_90a")
    with pytest.raises(BadArgument, match="of two identifiers"):
        stages.export("scale", folder=tmp_path, c=True, torch_op="scale")
    with pytest.raises(BadArgument, match="torch_op='a::b' without c=True"):
        stages.export("scale", folder=tmp_path, torch_op="a::b")

    narrow = scale.lower(Spec((8, 64), kd.float32), np.float16(1), 1, target="sm_90a")
    with pytest.raises(NoHostCode, match="the scalar 'factor' is float16, which PyTorch's ops do not have"):
        narrow.export("scale", folder=tmp_path, c=True, torch_op="a::b")
    assert not list(tmp_path.iterdir())


def test_a_program_without_pytorch(tmp_path: Path) -> None:
    """The library loads and has the C function. Its registration says that PyTorch is not loaded."""
    if sys.platform != "linux" or not shutil.which("gcc"):
        pytest.skip("needs a C compiler on Linux")
    path = scale.lower(Spec((8, 64), kd.float32), 1.0, 1).export(
        "scale", folder=tmp_path, c=True, torch_op="kd_artefact::alone"
    )[0]
    subprocess.run(["gcc", "-shared", "-o", str(tmp_path / "scale.so"), str(path)], check=True)
    code = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).scale_torch_register())"
    assert run(tmp_path, code) == "-5\n"


@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path) -> None:
    """In a compiled region, on PyTorch's stream, in a CUDA graph; the same bits as the kernel's."""
    if not torch.cuda.is_available() or not shutil.which("gcc"):
        pytest.skip("needs PyTorch with CUDA, and a linker")
    x = torch.randn(8, 64, device="cuda")
    path = scale.lower(x, 1.0, 1).export("scale", folder=tmp_path, c=True, torch_op="kd_artefact::on_gpu")[0]
    subprocess.run(["gcc", "-shared", "-o", str(tmp_path / "scale.so"), str(path)], check=True)
    torch.ops.load_library(str(tmp_path / "scale.so"))
    op = torch.ops.kd_artefact.on_gpu
    fake = lambda x, *_: (torch.empty_like(x), x.new_empty(x.shape, dtype=torch.int32))  # noqa: E731
    torch.library.register_fake("kd_artefact::on_gpu", fake)
    wanted = scale(x, 2.5, 7)
    with torch.cuda.stream(torch.cuda.Stream()):
        for made, expected in zip(op(x, 2.5, 7), wanted, strict=True):
            assert torch.equal(made, expected)
    for mode in ("default", "reduce-overhead"):
        compiled = torch.compile(lambda x: op(x + 1, 2.5, 7)[0] * 2, fullgraph=True, mode=mode)
        for _ in range(4):
            assert torch.equal(compiled(x), scale(x + 1, 2.5, 7)[0] * 2)
    with pytest.raises(RuntimeError, match="axis 0 of x has 4 elements, and the kernel was compiled for 8"):
        op(x[:4], 2.5, 7)
