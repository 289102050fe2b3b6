"""Kernels compiled ahead of time: files, and calls of what is in them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernel_dsl.compiled import Assembled, Resources
from kernel_dsl.runtime import interpreter
from kernel_dsl.runtime.assemble import assemble, find_ptxas
from kernel_dsl.runtime.build.aot import CompiledFile, load_compiled, save
from kernel_dsl.runtime.devices import driver
from kernel_dsl.runtime.errors import ArgumentTypeError, ArgumentValueError
from kernel_dsl.runtime.graph import Graph
from kernel_dsl.serialize import ArtifactError

from .fake import FakeDevice, axpy_body
from .kernels import axpy

ROOT = Path(__file__).parents[2]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    fake = FakeDevice({"axpy": axpy_body})
    monkeypatch.setattr("kernel_dsl.runtime.build.aot.pick_device", lambda interpret, arrays: fake)
    return fake


@pytest.fixture
def loaded(tmp_path: Path) -> CompiledFile:
    save(Assembled(axpy(), b"\x7fELF", Resources(20, 0, 0, 0, 0, 16)), tmp_path / "axpy.kd")
    return load_compiled(tmp_path / "axpy.kd")


def test_a_loaded_kernel_is_called_as_it_was(loaded: CompiledFile, device: FakeDevice) -> None:
    x = np.random.default_rng(0).normal(size=1024).astype(np.float32)
    y = loaded(x, 2.5)
    np.testing.assert_array_equal(y, x * np.float32(2.5) + 1)
    out = np.empty_like(x)
    assert loaded(x, np.float32(3), out=out) is out
    np.testing.assert_array_equal(out, x * np.float32(3) + 1)
    assert device.loads == 1


def test_a_loaded_kernel_is_bound_and_recorded(loaded: CompiledFile, device: FakeDevice) -> None:
    x = np.arange(1024, dtype=np.float32)
    bound = loaded.bind(x, 3.0)
    x += 1
    np.testing.assert_array_equal(bound(), x * 3 + 1)
    with Graph() as g:
        loaded(loaded(x, 2.0), 0.5)
    np.testing.assert_array_equal(g(), (x * 2 + 1) * np.float32(0.5) + 1)


def test_what_it_says_of_itself(loaded: CompiledFile) -> None:
    assert (loaded.name, loaded.target, loaded.cubin) == ("axpy", "sm_90a", b"\x7fELF")
    assert loaded.resources is not None and loaded.resources.registers == 20
    assert ".visible .entry axpy" in loaded.ptx
    assert repr(loaded) == "<compiled kernel axpy(float32[1024]) for sm_90a>"


def test_wrong_arguments_are_errors(loaded: CompiledFile, device: FakeDevice) -> None:
    x = np.zeros(1024, np.float32)
    for args in [(x,), (2.5,), (x, x, 2.5), ()]:
        with pytest.raises(ArgumentTypeError, match="1 arrays and 1 scalars"):
            loaded(*args)
    for scalar in (1, True, np.float64(1), np.int32(1)):
        with pytest.raises(ArgumentTypeError, match=r"scalar 0 .* float32"):
            loaded(x, scalar)
    with pytest.raises(ArgumentValueError, match="shape"):
        loaded(x[:7], 2.5)
    assert device.launches == []


@pytest.mark.usefixtures("no_gpu")  # to which the made up machine code would be given first
def test_wrong_options_are_our_errors_at_the_users_line(loaded: CompiledFile) -> None:
    x = np.arange(1024, dtype=np.float32)
    for options in ({"interpret": "yes"}, {"interpret": 1}, {"interpret": True, "stream": 1.5}, {"stream": 1.5}):
        for call in (loaded, loaded.bind):
            with pytest.raises(ArgumentTypeError, match=r"interpret=|stream=") as caught:
                call(x, 2.5, **options)
            assert caught.traceback[-1].path == Path(__file__)


@pytest.mark.parametrize("tree", [0, (0,), [0], {"b": 0}, ({"a": [0, None]},), None])
def test_the_result_has_the_structure_it_had(tmp_path: Path, device: FakeDevice, tree) -> None:
    save(replace(axpy(), output_tree=tree), tmp_path / "k")
    x = np.ones(1024, np.float32)
    result = load_compiled(tmp_path / "k")(x, 2.0)

    def strip(node):
        if isinstance(node, np.ndarray):
            np.testing.assert_array_equal(node, 3)
            return 0
        if isinstance(node, dict):
            return {k: strip(v) for k, v in node.items()}
        return node if node is None else type(node)(strip(n) for n in node)

    assert strip(result) == tree


def test_a_kernel_without_machine_code_is_saved_too(tmp_path: Path, device: FakeDevice) -> None:
    save(axpy(), tmp_path / "k")
    found = load_compiled(tmp_path / "k")
    assert found.cubin == b"" and found.resources is None
    found.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "k").read_bytes()
    np.testing.assert_array_equal(found(np.ones(1024, np.float32), 2.0), 3)


def test_a_file_that_is_none_says_so(tmp_path: Path) -> None:
    path = tmp_path / "model.kd"
    path.write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(ArtifactError, match=r"model\.kd cannot be loaded: not a compiled kernel"):
        load_compiled(path)
    save(axpy(), path)
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match=r"model\.kd cannot be loaded: damaged"):
        load_compiled(path)
    data[4] = 77
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="file format 77"):
        load_compiled(path)
    with pytest.raises(FileNotFoundError):
        load_compiled(tmp_path / "absent")


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch) -> None:
    save(axpy(), tmp_path / "k")
    before = (tmp_path / "k").read_bytes()

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        save(axpy(n=64), tmp_path / "k")
    assert [p.name for p in tmp_path.iterdir()] == ["k"]
    assert (tmp_path / "k").read_bytes() == before


CALLER = """
import sys
for name in ("llvmlite", "kernel_dsl.lowering"):
    sys.modules[name] = None  # as if it were not installed
import numpy as np
from kernel_dsl.runtime.build.aot import load_compiled
f = load_compiled(sys.argv[1])
x = np.arange(1024, dtype=np.float32)
y = f(x, 0.5, interpret=sys.argv[2] == "interpreter")
assert y.tolist() == (x * np.float32(0.5) + 1).tolist(), y
"""


def run_without_compiler(tmp_path: Path, where: str) -> None:
    made = assemble(axpy()) if find_ptxas() else axpy()
    save(made, tmp_path / "axpy.kd")
    done = subprocess.run(
        [sys.executable, "-c", CALLER, str(tmp_path / "axpy.kd"), where],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(interpreter, "run"), reason="no interpreter in this tree")
def test_no_compiler_is_needed_to_interpret(tmp_path: Path) -> None:
    run_without_compiler(tmp_path, "interpreter")


@pytest.mark.gpu
@pytest.mark.skipif(not driver.available(), reason="no GPU")
def test_no_compiler_is_needed_on_a_gpu(tmp_path: Path) -> None:
    run_without_compiler(tmp_path, "cuda")
