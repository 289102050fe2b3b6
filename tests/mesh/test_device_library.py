"""NVSHMEM's device library as a part of a kernel's machine code, with a small library of the same names in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.loading import _text_key  # pyright: ignore[reportPrivateUsage]
from kernel_dsl.lowering import library_ptx
from kernel_dsl.ops.nvshmem import FUNCTIONS, MORE
from kernel_dsl.runtime.assemble import find_ptxas
from kernel_dsl.runtime.build import device_library
from kernel_dsl.runtime.build.problems import AssemblerError, ToolMissing
from kernel_dsl.runtime.devices import nvshmem
from kernel_dsl.runtime.errors import DeviceError
from kernel_dsl.target import SM_90A

from .test_hosts import N, everybody, fetching

TYPES = {"ptr": "ptr", "i64": "i64", "i32": "i32", "void": "void"}
LIBRARY = """
target triple = "nvptx64-nvidia-cuda"
target datalayout = "e-i64:64-i128:128-v16:16-v32:32-n16:32:64"
@nvshmemi_device_state_d = addrspace(4) externally_initialized global [16 x i64] zeroinitializer
@nvshmemi_device_lib_version_d = addrspace(4) constant [3 x i32] [i32 3, i32 4, i32 5]
@llvm.compiler.used = appending global [1 x ptr] [ptr addrspacecast (ptr addrspace(4) @nvshmemi_device_lib_version_d to ptr)], section "llvm.metadata"
define i64 @helper() noinline {
  %x = load volatile i64, ptr addrspace(4) @nvshmemi_device_state_d
  ret i64 %x
}
define void @nvshmem_barrier_all() {
  %x = call i64 @helper()
  ret void
}
"""


def library(names: Any = (*FUNCTIONS, *MORE), more: str = "") -> bytes:
    """Bitcode of functions with these names, which read the library's variable."""
    text = LIBRARY + more
    for name in names:
        types, result = (FUNCTIONS | MORE)[name]
        given = "" if result == "void" else " %y" if result == "i64" else " %z"
        text += f"define {result} @{name}({', '.join(types)}) {{\n%y = call i64 @helper()\n%z = trunc i64 %y to i32\n"
        text += f"ret {result}{given}\n}}\n"
    module = llvm.parse_assembly(text)
    return module.as_bitcode()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a library that is installed."""
    monkeypatch.setenv("NVSHMEM_LIB_DIR", str(tmp_path))
    path = tmp_path / "libnvshmem_device.bc"
    path.write_bytes(library())
    return path


def stages(kernel: Any = None) -> Any:
    return (everybody() if kernel is None else kernel).lower([np.zeros(N, np.float32)] * 4, target="sm_90a")


def test_a_kernel_is_assembled_with_what_it_calls(installed: Path) -> None:
    if find_ptxas() is None:
        pytest.skip("needs ptxas")
    for kernel in (everybody(), fetching()):
        made = stages(kernel).assembled()
        assert b"nvshmemi_device_state_d" in made.cubin and b"nvshmemi_device_lib_version_d" in made.cubin
        assert b"nvshmem_barrier_all" not in made.cubin  # nothing calls it
        assert ".extern .func" in made.kernel.ptx  # which is what the interpreter runs
    plain = kd.Mesh(("host", "x"), (2, 2))
    assert b"nvshmemi_device_state_d" not in stages(everybody(mesh=plain)).assembled().cubin
    assert installed.exists()


def test_the_names_of_a_target_come_first(installed: Path) -> None:
    assert device_library.find("sm_90a") == installed
    own = installed.with_name("libnvshmem_device_sm_90.bc")
    own.write_bytes(installed.read_bytes())
    assert device_library.find("sm_90a") == own and device_library.find("sm_100a") == installed


def test_a_library_of_another_build_is_another_kernel(installed: Path) -> None:
    one, plain = _text_key(stages()), _text_key(stages(everybody(mesh=kd.Mesh(("host", "x"), (2, 2)))))
    installed.write_bytes(library(more="define void @another() { ret void }\n"))
    assert _text_key(stages()) != one
    assert _text_key(stages(everybody(mesh=kd.Mesh(("host", "x"), (2, 2))))) == plain


def test_what_is_missing_is_said(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed.write_bytes(library([n for n in (*FUNCTIONS, *MORE) if n != "nvshmem_quiet"]))
    with pytest.raises(AssemblerError, match="it has no function nvshmem_quiet"):
        stages().assembled()
    installed.write_bytes(b"no bitcode")
    with pytest.raises(AssemblerError, match=r"libnvshmem_device\.bc: "):
        stages().assembled()
    monkeypatch.setenv("NVSHMEM_LIB_DIR", "/nowhere")
    with pytest.raises(ToolMissing, match=r"calls nvshmem_\w+, and NVSHMEM's device library was not found") as caught:
        stages().assembled()
    assert "pip install nvidia-nvshmem-cu13" in str(caught.value)


def test_the_ptx_has_only_what_is_asked_for() -> None:
    text = library_ptx(library(), ("nvshmem_my_pe",), SM_90A)
    assert ".visible .func  (.param .b32 func_retval0) nvshmem_my_pe" in text and "helper" in text
    assert "nvshmem_n_pes" not in text and ".visible .const .align 8 .b8 nvshmemi_device_state_d[128]" in text


class Host:
    """NVSHMEM's library on the host, which notes the modules that it knows."""

    def __init__(self, status: int = 2, refuses: int = 0) -> None:
        self.known: list[int] = []
        self.nvshmemx_init_status = lambda: status
        self.nvshmemx_cumodule_init = lambda module: refuses or self.known.append(module.value) or 0
        self.nvshmemx_cumodule_finalize = lambda module: self.known.remove(module.value) or 0


def test_a_module_is_known_to_nvshmem_until_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host()
    monkeypatch.setattr(nvshmem, "host_library", lambda: host)
    nvshmem.initialise(7, "kernel")
    assert host.known == [7]
    nvshmem.forget(8)
    nvshmem.forget(7)
    nvshmem.forget(7)
    assert host.known == []


@pytest.mark.parametrize(
    ("host", "words"),
    [(None, "has not initialised"), (Host(status=0), "has not initialised"), (Host(refuses=7), r"refuses .*status 7")],
)
def test_a_host_that_is_not_ready(host: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvshmem, "host_library", lambda: host)
    with pytest.raises(DeviceError, match=words):
        nvshmem.initialise(7, "kernel")
    assert not nvshmem._modules  # pyright: ignore[reportPrivateUsage]
