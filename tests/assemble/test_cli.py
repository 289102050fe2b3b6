"""`python -m kernel_dsl`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.__main__ import CommandError, main, parse_argument
from kernel_dsl.runtime.assemble import find_ptxas
from kernel_dsl.runtime.build import doctor, tools
from kernel_dsl.runtime.devices import driver
from kernel_dsl.runtime.disk_cache import DiskCache
from tests.assemble.test_cache import KEYS, made

ROOT = Path(__file__).parents[2]
SOURCE = """
import kernel_dsl as kd

@kd.kernel(out_type=lambda x, s: x)
def scale(x, s, out):
    out[...] = x[...] * s

def times(n):
    @kd.kernel(out_type=lambda x: x)
    def product(x, out):
        out[...] = x[...] * n
    return product

class Layers:
    @kd.kernel(out_type=lambda x: x)
    def double(x, out):
        out[...] = x[...] * 2

if __name__ == "__main__":
    import sys
    import numpy as np
    print(sys.argv[1:], scale(np.ones(4, np.float32), 2.0, interpret=True).tolist())
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "kernels.py").write_text(SOURCE)
    return tmp_path / "kernels.py"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNEL_DSL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("f32[1024,1024]", (1024, 1024), "float32"),
        ("bf16[ 3 , 5 ]", (3, 5), "bfloat16"),
        ("float8_e4m3fn[7]", (7,), "float8_e4m3fn"),
        ("e5m2[7,]", (7,), "float8_e5m2"),
        ("i64[]", (), "int64"),
        ("bool[2]", (2,), "bool"),
    ],
)
def test_arrays_on_the_command_line(text: str, shape: tuple[int, ...], dtype: str) -> None:
    struct = parse_argument(text)
    assert isinstance(struct, kd.ShapeDtypeStruct)
    assert (struct.shape, struct.dtype.name) == (shape, dtype)


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("-2.5", -2.5), ("True", True), ("u8", np.uint8(1)), ("float16", np.float16(1))],
)
def test_scalars_on_the_command_line(text: str, value: object) -> None:
    got = parse_argument(text)
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize("text", ["f31[3]", "f32[3", "[3]", "'x'", "f32[a]", "none", "1+1j"])
def test_what_is_no_argument_is_refused(text: str) -> None:
    with pytest.raises(CommandError):
        parse_argument(text)


def test_stages_of_a_kernel(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ptx", f"{file}:scale", "--arg", "f32[16,16]", "f32"]) == 0
    text = capsys.readouterr().out
    heads = [line.split()[2] for line in text.splitlines() if line.startswith("// ----")]
    assert heads == ["ir", "llvm", "ptx", "resources", "sass"]
    assert 'kernel "scale"' in text and "define ptx_kernel void @scale" in text
    assert ".visible .entry scale(" in text and ".target sm_90a" in text
    if find_ptxas():
        assert "blocks_per_multiprocessor: " in text


def test_one_stage_is_printed_alone(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["ptx", f"{file}:Layers.double", "--arg", "f16[32]", "--stage", "ptx", "--target"]
    assert main([*line, "sm_80"]) == 0
    text = capsys.readouterr().out
    assert "// ----" not in text and ".target sm_80" in text
    if tools.find("nvdisasm") is None:
        assert main(["ptx", f"{file}:scale", "--arg", "f32[4]", "f32", "--stage", "sass"]) == 1
        err = capsys.readouterr().err
        assert "pip install nvidia-cuda-nvdisasm" in err and "functools" not in err


@pytest.mark.parametrize(
    ("line", "status", "words"),
    [
        (["{file}:nothing"], 2, "its kernels are: scale"),
        (["{file}:sys"], 2, "its kernels are: scale"),
        (["{file}:times()"], 2, "times() of {file} raised TypeError: times() missing"),
        (["{file}:1/0"], 2, "raised ZeroDivisionError"),
        (["{file}x:scale"], 2, "there is no file"),
        (["{file}:scale", "--arg", "f33[3]"], 2, "'f33' is not a dtype"),
        (["{file}:scale", "--arg", "f32[3]", "f32", "--target", "sm_1"], 1, "sm_90a"),
        (["{file}:scale", "--arg", "f32[3]"], 1, "out_type of kernel 'scale' does not fit 1 input"),
    ],
)
def test_what_goes_wrong_is_told_in_a_line(
    file: Path, capsys: pytest.CaptureFixture[str], line: list[str], status: int, words: str
) -> None:
    assert main(["ptx", *(word.format(file=file) for word in line)]) == status
    err = capsys.readouterr().err
    assert words.format(file=file) in err and "Traceback" not in err and "runpy" not in err


def test_a_kernel_may_be_made_by_a_call(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ptx", f"{file}:times(7)", "--arg", "i32[32]", "--stage", "ir"]) == 0
    assert 'kernel "product"' in capsys.readouterr().out


def test_a_file_with_one_kernel_needs_no_name(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ptx", str(file), "--arg", "f32[3]", "f32", "--stage", "ir"]) == 0
    assert 'kernel "scale"' in capsys.readouterr().out


def test_a_file_is_run_as_a_program(file: Path) -> None:
    line = [sys.executable, "-m", "kernel_dsl", "run", str(file), "--fast", "3"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['--fast', '3'] [2.0, 2.0, 2.0, 2.0]"


def test_cache_commands(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache"]) == 0
    assert f"{cache}: 0 kernels, 0 bytes" in capsys.readouterr().out
    disk = DiskCache(cache)
    for key in KEYS[:3]:
        disk.put(key, made())
    assert main(["cache", "list"]) == 0
    text = capsys.readouterr().out
    assert f"{cache}: 3 kernels, {disk.stats().bytes} bytes" in text
    assert text.count("axpy sm_90a") == 3
    assert main(["cache", "clear"]) == 0
    assert "removed 3 kernels" in capsys.readouterr().out
    assert disk.stats().entries == 0


def test_a_reader_may_stop_early(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `head` does: the rest of the output goes nowhere, without a traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert main(["cache"]) == 141


def test_a_cache_that_is_off_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("KERNEL_DSL_CACHE", "off")
    assert main(["cache", "clear"]) == 0
    assert "off" in capsys.readouterr().out


def test_doctor_reports_each_part(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor"])
    text = capsys.readouterr().out
    for name in ("Python", "llvmlite", "cuda-python", "cupy", "GPU", "ptxas", "nvdisasm", "NVRTC", "disk cache"):
        assert f"  {name}" in text, name
    assert "ok  interpreter  a kernel ran, and its result is right" in text
    assert "lines of PTX" in text
    if not driver.available():
        assert "install NVIDIA's driver" in text


def test_doctor_says_what_is_broken(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.mkdir(mode=0o777)
    cache.chmod(0o777)
    monkeypatch.setattr(doctor, "_version", lambda package: None)
    monkeypatch.setenv("KERNEL_DSL_PTXAS", "/nowhere/ptxas")
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "!!  llvmlite     not installed" in text
    assert "pip install 'llvmlite>=0.50,<0.51'" in text
    assert "!!  ptxas" in text and "/nowhere/ptxas" in text
    assert "!!  disk cache" in text and "yours alone" in text
    assert "Traceback" not in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0 and capsys.readouterr().out == f"kernel-dsl {kd.__version__}\n"


def test_the_doctor_without_cuda_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing first is told first, not a driver that may be there."""
    monkeypatch.setattr(driver, "available", lambda: driver.Availability(0, "cuda-python is not installed"))
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "cuda-bindings" else version(name))
    (found,) = (f for f in doctor.findings() if f.name == "GPU")
    assert "pip install cuda-python" in found.advice and "driver" not in found.advice
