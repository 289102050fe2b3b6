"""Kernels as functions of tvm-ffi, by the package itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadArgument

tvm_ffi = pytest.importorskip("tvm_ffi", reason="tvm-ffi is not installed")
pytest.importorskip("nvidia.cu13", reason="needs ptxas")
Spec = kd.ShapeDtypeStruct


@kd.kernel(out_type=lambda x, factor, more: Spec(x.shape, x.dtype))
def scale(x_ref: Any, factor: Any, more: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * factor + more


def stages(**how: Any) -> Any:
    return scale.lower(Spec((8, 128), kd.float32), 2.0, 3, **how)


def test_what_does_not_fit_is_an_error_of_python() -> None:
    function = stages().as_tvm_ffi()
    assert isinstance(function, tvm_ffi.Function)
    x = tvm_ffi.from_dlpack(np.zeros((8, 128), np.float32))
    with pytest.raises(ValueError, match="scale: x is not on a GPU: its device type is 1"):
        function(x, 2.0, 3, x)
    with pytest.raises(TypeError, match="scale: 3 arguments, and the kernel takes 4: inputs, then outputs"):
        function(x, 2.0, 3)
    with pytest.raises(TypeError, match="scale: x is no tensor: its type index is 1"):
        function(1, 2.0, 3, x)


def test_a_library_made_of_the_object_file(tmp_path: Path) -> None:
    if not shutil.which("gcc"):
        pytest.skip("needs a linker")
    path = stages().export("scale", folder=tmp_path, c=True, tvm_ffi=True)[0]
    library = tmp_path / "libscale.so"
    subprocess.run(["gcc", "-shared", "-o", str(library), str(path)], check=True)
    x = tvm_ffi.from_dlpack(np.zeros((8, 128), np.float32))
    module = tvm_ffi.load_module(str(library))
    with pytest.raises(ValueError, match="scale: x is not on a GPU"):
        module.scale(x, 2.0, 3, x)


def test_the_function_is_part_of_the_object_file_alone(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="tvm_ffi=True without c=True"):
        stages().export("scale", folder=tmp_path, tvm_ffi=True)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tvm_ffi", None)
    with pytest.raises(BadArgument, match="apache-tvm-ffi"):
        stages().as_tvm_ffi()


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    """On the stream that PyTorch has, where tvm-ffi is told to take it."""
    torch = pytest.importorskip("torch")
    function = stages(target=None).as_tvm_ffi()
    x = torch.randn(8, 128, device="cuda")
    out = torch.empty_like(x)
    torch.cuda.synchronize()
    with tvm_ffi.use_torch_stream(torch.cuda.stream(torch.cuda.Stream())):
        function(x, 2.0, 3, out)
    torch.cuda.synchronize()
    assert torch.equal(out, x * 2 + 3)
