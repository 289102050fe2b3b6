"""A kernel in a C program: the example is built by CMake and run, here on the test driver, on a GPU on the real one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadArgument, NoHostCode
from tests.conftest import ROOT

HERE = Path(__file__).parent
Spec = kd.ShapeDtypeStruct


@kd.kernel(out_type=lambda x: Spec(x.shape, x.dtype))
def twice(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * 2


def _built(folder: Path, *options: str) -> Path:
    if not shutil.which("cmake") or not (shutil.which("gcc") or shutil.which("cc")):
        pytest.skip("needs CMake and a C compiler")
    pytest.importorskip("nvidia.cu13", reason="needs ptxas")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    build = ["cmake", "-S", str(ROOT / "examples/c"), "-B", str(folder), f"-DPYTHON={sys.executable}", *options]
    for command in (build, ["cmake", "--build", str(folder)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "from_c"


def _library(source: str, made: Path) -> None:
    if sys.platform != "linux" or not shutil.which("gcc"):
        pytest.skip("needs a C compiler on Linux")
    options = ["-shared", "-fPIC", "-w", f"-Wl,-soname,{made.name}", "-o", str(made)]
    subprocess.run(["gcc", *options, str(HERE / source), "-ldl", "-lm"], check=True)


def _run(program: Path, **env: str) -> None:
    done = subprocess.run([program], capture_output=True, text=True, check=False, env={**os.environ, **env})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "largest error" in done.stdout
    assert "refused: softmax: axis 0 of x has 65 elements, and the kernel was compiled for 64" in done.stdout


def test_the_example_on_the_test_driver(tmp_path: Path) -> None:
    driver, play = tmp_path / "libcuda.so.1", tmp_path / "play.so"
    _library("fake_cuda.c", driver)
    _library("play_softmax.c", play)
    program = _built(tmp_path / "build", f"-DCUDA_DRIVER={driver}")
    _run(program, LD_LIBRARY_PATH=str(tmp_path), LD_PRELOAD=str(play))


def test_threads_of_a_c_program(tmp_path: Path) -> None:
    """One kernel that its entry launches itself, and one with a tensor map and a workspace."""

    def added(x: Any, y: Any, o: Any) -> None:
        at = kd.ds(kd.program_id(0) * 128, 128)
        o[at] = x[at] + y[at]

    def copied(x: Any, o: Any, smem: Any, barrier: Any, space: Any) -> None:
        kd.copy_gmem_to_smem(x, smem, barrier)
        kd.barrier_wait(barrier)
        space[...] = smem[...]
        o[...] = space[...]

    _library("fake_cuda.c", tmp_path / "libcuda.so.1")
    vector, square = Spec((1024,), kd.float32), Spec((64, 64), kd.float32)
    scratch = (kd.SMEM((64, 64), kd.float32), kd.Barrier(), kd.GMEM((64, 64), kd.float32))
    kernels = {
        "added": kd.kernel(added, out_type=vector, grid=(8,)).lower(vector, vector, target="sm_90a"),
        "copied": kd.kernel(copied, out_type=square, scratch_types=scratch).lower(square, target="sm_90a"),
    }
    assert kernels["copied"].kernel.workspaces
    for name, stages in kernels.items():
        stages.export(name, folder=tmp_path, c=True)
    program = tmp_path / "threads"
    parts = [HERE / "threads_from_c.c", *(tmp_path / f"{name}.o" for name in kernels)]
    subprocess.run(["gcc", "-O1", "-pthread", f"-I{tmp_path}", "-o", program, *parts, "-ldl"], check=True)
    for _ in range(5):  # each process loads the driver and the kernels anew
        env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
        done = subprocess.run([program], capture_output=True, text=True, check=False, env=env, timeout=300)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.gpu
def test_the_example_on_a_gpu(tmp_path: Path) -> None:
    _run(_built(tmp_path))


def test_the_object_needs_the_c_library_alone(tmp_path: Path) -> None:
    path = twice.lower(Spec((128,), kd.float32)).export("twice", folder=tmp_path, c=True)[0]
    if not shutil.which("nm"):
        pytest.skip("needs nm")
    names = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout.splitlines()
    needed = {line.split()[-1] for line in names if " U " in line}
    assert needed <= {"dlopen", "dlsym", "snprintf", "__tls_get_addr", "_GLOBAL_OFFSET_TABLE_"}
    assert {line.split()[-1] for line in names if " T " in line} == {"twice", "twice_error"}


def test_the_header_is_one_for_c_and_for_cpp(tmp_path: Path) -> None:
    twice.lower(Spec((128,), kd.float32)).export("twice", folder=tmp_path, c=True)
    text = (tmp_path / "twice.h").read_text()
    assert "int twice(CUstream stream, const DLTensor *x, const DLTensor *o);" in text
    assert "//   x: float32[128], in, at a multiple of 16 bytes" in text
    if not shutil.which("gcc"):
        pytest.skip("needs a C compiler")
    source = tmp_path / "user.c"
    source.write_text(
        '#include "twice.h"\n#include "twice.h"\nint f(void) { return sizeof(DLTensor) == 48 ? 0 : 1; }\n'
    )
    for language in ("c", "c++"):
        if language == "c++" and not shutil.which("g++"):
            continue
        subprocess.run(["gcc", "-Wall", "-Werror", "-x", language, "-fsyntax-only", str(source)], check=True)


# keywords of C23 and C++23 that are no keywords of Python, and names that headers define
_TAKEN = """
    alignas alignof auto bitand bitor bool case catch char char8_t compl concept const const_cast consteval constexpr constinit
    decltype default delete do double dynamic_cast enum explicit export extern false float friend goto inline int long mutable
    namespace new noexcept nullptr operator private protected public register reinterpret_cast requires restrict short signed
    sizeof static static_assert static_cast struct switch template this thread_local throw true typedef typeid typename union
    unsigned using virtual void volatile wchar_t xor xor_eq and_eq not_eq or_eq co_await co_yield co_return typeof asm
    _Bool _Complex _Atomic _Generic DLTensor DLDevice CUstream stream errno stdin NULL EOF unix linux
"""
TAKEN = _TAKEN.split()


def test_parameters_and_names_that_c_has_taken(tmp_path: Path) -> None:
    """Two headers in one program, in all standards, with a parameter of each such name; a file may have none of the names."""
    env: dict[str, Any] = {"kd": kd, "Spec": Spec}
    listed = ", ".join(TAKEN)
    body = f"o[...] = {' + '.join(f'{name}[...]' for name in TAKEN[:3])}"
    exec(f"@kd.kernel(out_type=lambda *x: x[0])\ndef k({listed}, o):\n    {body}", env)
    env["k"].lower(*[Spec((4,), kd.float32)] * len(TAKEN)).export("all_names", folder=tmp_path, c=True)
    stages = twice.lower(Spec((128,), kd.float32))
    stages.export("twice", folder=tmp_path, c=True)
    for name in TAKEN[:-2]:
        with pytest.raises(BadArgument, match="a C identifier"):
            stages.export(name, folder=tmp_path / "no", c=True)
    if not shutil.which("g++"):
        pytest.skip("needs a C++ compiler")
    source = tmp_path / "user.c"
    source.write_text(
        "".join(f"#include <{h}.h>\n" for h in ("errno", "stdio")) + '#include "all_names.h"\n#include "twice.h"'
    )
    for language, standard in (("c", "c99"), ("c", "gnu17"), ("c++", "c++11"), ("c++", "gnu++20")):
        strict = f"-x {language} -std={standard} -Wall -Wextra -Werror -pedantic -fsyntax-only"
        subprocess.run(["gcc", *strict.split(), str(source)], check=True)


def test_export_without_c_is_a_file_for_python(tmp_path: Path) -> None:
    (path,) = twice.lower(Spec((128,), kd.float32)).export("twice", folder=tmp_path)
    assert path == tmp_path / "twice.kd"
    assert kd.load_compiled(path).name == "twice"


@pytest.mark.parametrize("name", ["kernel", "launch", "message", "driver", "code", "failed", "devices"])
def test_names_that_host_code_has_uses_for(name: str, tmp_path: Path) -> None:
    twice.lower(Spec((128,), kd.float32)).export(name, folder=tmp_path, c=True)


@pytest.mark.parametrize("name", ["two words", "", "9x", "a-b", "x\n", "int", "dlopen"])
def test_names_that_c_has_no_word_for(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="a C identifier"):
        twice.lower(Spec((128,), kd.float32)).export(name, folder=tmp_path, c=True)
    assert not list(tmp_path.iterdir())


def test_every_dtype_has_its_numbers() -> None:
    """Those of 4 bits lie two a byte."""
    from kernel_dsl.dtypes import DType
    from kernel_dsl.lowering.host_tensors import DL_CODES
    from kernel_dsl.lowering.host_torch import NUMBERS

    found = {d.name for d in vars(kd).values() if isinstance(d, DType) and d.bits >= 8}
    assert found == set(DL_CODES) == set(NUMBERS)


def test_plans_without_host_code(tmp_path: Path) -> None:
    import numpy as np

    @kd.kernel(out_type=Spec((4, 4), kd.float32), input_output_aliases={0: 0})
    def copied(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    stages = copied.lower(np.zeros((4, 4), np.float32).T)
    with pytest.raises(NoHostCode, match="filled or copied, and not row-major"):
        stages.export("copied", folder=tmp_path, c=True)
