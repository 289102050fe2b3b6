"""Finding NVRTC and its headers, compiling, and what is done with the output."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from kernel_dsl.runtime.custom import nvrtc
from kernel_dsl.runtime.custom.nvrtc import HEADERS_END, CompileError, NvrtcUnavailableError, compile_source
from kernel_dsl.runtime.custom.source import INCLUDE

KERNEL = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] += 1; }'


@pytest.fixture
def fresh(monkeypatch):
    """Look for the toolchain anew, here and after the test."""
    nvrtc.toolchain.cache_clear()
    nvrtc._module.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    nvrtc.toolchain.cache_clear()
    nvrtc._module.cache_clear()


def make_headers(root: Path, version: int, runtime: bool = True, cccl: bool = True) -> Path:
    include = root / "nvidia" / "cu13" / "include"
    include.mkdir(parents=True)
    if runtime:
        (include / "cuda_fp16.h").write_text("")
        (include / "cuda.h").write_text(f"#define CUDA_VERSION {version}\n")
    if cccl:
        (include / "cccl" / "cuda" / "std").mkdir(parents=True)
    return include


@pytest.mark.usefixtures("compiler")
class TestCompile:
    def test_ptx_and_cubin(self):
        ptx = compile_source(KERNEL, file="k.cu", target="sm_90a", kind="ptx")
        assert b".target sm_90a" in ptx and b".entry k(" in ptx and not ptx.endswith(b"\0")
        cubin = compile_source(KERNEL, file="k.cu", target="sm_90a", kind="cubin")
        assert cubin[:4] == b"\x7fELF"
        assert compile_source(KERNEL, file="k.cu", target="sm_90a", kind="cubin") is cubin

    @pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90", "sm_100a", "sm_120a"])
    def test_targets(self, target):
        ptx = compile_source(KERNEL, file="k.cu", target=target, kind="ptx")
        assert f".target {target}".encode() in ptx

    @pytest.mark.parametrize("options", [(), ("--use_fast_math",), ("--generate-line-info",)], ids=str)
    def test_headers_kept_compiled_change_nothing(self, options):
        """For one target after the other, and with other options than those they were compiled with."""
        flags = [f"--include-path={INCLUDE}", *options]
        for target, kind in (("sm_80", "ptx"), ("sm_90a", "ptx"), ("sm_90a", "cubin"), ("sm_80", "ptx")):
            for number in range(2):
                lines = [
                    "#include <kd_cuda.h>",
                    HEADERS_END,
                    f'extern "C" __global__ void k(float* x) {{ x[0] = expf(x[1]) / x[2] + __CUDA_ARCH__ + {number}; }}',
                ]
                kept = compile_source("\n".join(lines), file="k.cu", target=target, kind=kind, options=flags)
                lines[1] = ""
                plain = compile_source("\n".join(lines), file="k.cu", target=target, kind=kind, options=flags)
                assert kept == plain, (target, kind)

    def test_what_follows_the_kept_headers_is_read_anew(self, tmp_path):
        """Headers by name and on disk, whose contents change while the process runs."""
        flags = [f"--include-path={INCLUDE}"]
        place = tmp_path / "own.h"
        for number in (1111, 2222):
            place.write_text(f"#define OWN {number}\n")
            text = f"""#include <kd_cuda.h>
            {HEADERS_END}
            #include <named.h>
            #include "{place}"
            extern "C" __global__ void k(int* x) {{ x[0] = NAMED; x[1] = OWN + 3; }}
            // {number}: another text, which no cache of ours knows
            """
            headers = {"named.h": f"#define NAMED {number}\n"}
            ptx = compile_source(text, file="k.cu", target="sm_90a", kind="ptx", headers=headers, options=flags)
            assert f"{number};".encode() in ptx and f"{number + 3};".encode() in ptx

    @pytest.mark.parametrize("target", ["sm_10", "sm_999a", "gfx942"])
    def test_unknown_targets(self, target):
        with pytest.raises(CompileError, match=target):
            compile_source(KERNEL, file="k.cu", target=target, kind="ptx")

    @pytest.mark.parametrize(
        "header",
        ["cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "cuda/std/array", "cuda/atomic", "cooperative_groups.h", "mma.h"],
    )
    def test_headers_are_found(self, header):
        compile_source(f"#include <{header}>\n{KERNEL}", file="k.cu", target="sm_90a", kind="ptx")

    def test_headers_that_are_no_files(self):
        source = f'#include "mine/one.h"\n{KERNEL}'
        headers = {"mine/one.h": "static_assert(true);"}
        compile_source(source, file="k.cu", target="sm_90a", kind="ptx", headers=headers)

    def test_errors_are_values(self):
        with pytest.raises(CompileError) as caught:
            compile_source('#line 7 "mine.cu"\nint f() {\n return x; }', file="k.cu", target="sm_90a", kind="ptx")
        (found,) = caught.value.diagnostics
        assert (found.file, found.line, found.severity) == ("mine.cu", 8, "error")
        assert found.message == 'identifier "x" is undefined'
        assert "identifier" in caught.value.log
        again = pickle.loads(pickle.dumps(caught.value))
        assert again.log == caught.value.log and str(again) == str(caught.value)


def test_log_is_taken_apart():
    log = """x.cu(3): warning #177-D: variable "a" was declared but never referenced
    int a;
        ^

a dir/h.h(12): error: expected a ";"
k.cu(1): catastrophic error: cannot open source file "no.h"
2 errors detected in the compilation of "x.cu".
"""
    found = [(d.file, d.line, d.severity) for d in nvrtc.parse_log(log)]
    assert found == [
        ("x.cu", 3, "warning"),
        ("a dir/h.h", 12, "error"),
        ("k.cu", 1, "catastrophic error"),
    ]


def test_variables_that_nothing_names_are_dropped():
    ptx = """.version 9.0
.global .align 1 .u8 _ZN1aE;
.global .align 8 .u64 _ZN1bE = 5;
.global .align 4 .b8 table[12] = {0, 0, 128, 63};
.visible .global .align 4 .f32 used;
.const .align 4 .b8 unused_constant[8];
.extern .shared .align 16 .b8 tile[];
.visible .entry k()
{
	mov.u64 %rd1, used;
	ld.global.f32 %f1, [table+4];
}
"""
    kept = nvrtc.drop_unused_globals(ptx)
    for name in ("_ZN1aE", "_ZN1bE", "unused_constant"):
        assert name not in kept
    for name in ("table[12]", "f32 used;", "tile[]", ".entry k"):
        assert name in kept


def test_no_library(fresh):
    fresh.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    assert "pip install 'kernel-dsl[nvrtc]'" in nvrtc.unavailable()
    with pytest.raises(NvrtcUnavailableError):
        compile_source(KERNEL, file="missing.cu", target="sm_90a", kind="ptx")


def test_no_headers(fresh, tmp_path):
    runtime = make_headers(tmp_path, 13000, cccl=False)
    fresh.setattr(nvrtc, "_roots", lambda: iter([runtime]))
    with pytest.raises(NvrtcUnavailableError, match="not CCCL"):
        nvrtc._include_dirs((13, 0))
    fresh.setattr(nvrtc, "_roots", lambda: iter([]))
    with pytest.raises(NvrtcUnavailableError, match=r"runtime's headers .* and CCCL"):
        nvrtc._include_dirs((13, 0))


def test_headers_of_the_compilers_version_come_first(fresh, tmp_path):
    newer = make_headers(tmp_path / "newer", 13050)
    same = make_headers(tmp_path / "same", 13000)
    fresh.setattr(nvrtc, "_roots", lambda: iter([newer, same]))
    assert nvrtc._include_dirs((13, 0)) == (str(same), str(same / "cccl"))
    assert nvrtc._include_dirs((12, 9)) == (str(newer), str(newer / "cccl"))
    bare = make_headers(tmp_path / "bare", 13000, cccl=False)
    fresh.setattr(nvrtc, "_roots", lambda: iter([newer, bare]))
    assert nvrtc._include_dirs((13, 0)) == (str(bare), str(newer / "cccl"))
