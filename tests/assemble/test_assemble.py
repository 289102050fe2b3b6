"""ptxas through pipes: code, resources, remarks and refusals at the user's line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernel_dsl.compiled import SourceLine
from kernel_dsl.options import assembler_environment
from kernel_dsl.runtime.assemble import (
    AssemblerOptions,
    assemble,
    assembler_identity,
    find_ptxas,
    ptxas_version,
    resources,
)
from kernel_dsl.runtime.build import tools
from kernel_dsl.runtime.build.problems import AssemblerError, ToolMissing
from kernel_dsl.runtime.build.ptxas_log import messages, user_line
from kernel_dsl.runtime.devices import driver
from kernel_dsl.runtime.devices.driver import Availability
from kernel_dsl.target import TARGETS

from .kernels import HEADER, axpy

needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="no ptxas on this machine")


@needs_ptxas
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_every_target_gives_an_elf_image_and_its_resources(target: str) -> None:
    made = assemble(axpy(target=target))
    assert made.cubin[:4] == b"\x7fELF"
    found = made.resources
    assert 4 <= found.registers <= 24
    assert (found.spills, found.local_bytes, found.shared_bytes, found.barriers) == (0, 0, 0, 0)
    limits = TARGETS[target].limits
    by_warps = limits.warps_per_multiprocessor // 4
    assert found.blocks_per_multiprocessor == min(by_warps, limits.blocks_per_multiprocessor)
    assert made.remarks == ()


@needs_ptxas
def test_spills_stack_barriers_and_shared_memory_are_bytes_as_ptxas_counts_them() -> None:
    loads = "\n".join(f"ld.global.volatile.f32 %f{i}, [%rd1+{4 * i}];" for i in range(64))
    stores = "\n".join(f"st.global.volatile.f32 [%rd1+{4 * i}], %f{i};" for i in range(64))
    ptx = (
        HEADER.format(version="8.6", target="sm_90a")
        + f"""
.visible .entry wide(.param .u64 p) .reqntid 64 .maxnreg 24
{{
.shared .align 4 .b8 tile[4096];
.reg .f32 %f<64>; .reg .b64 %rd<4>; .reg .b32 %r<4>;
ld.param.u64 %rd1, [p];
mov.u32 %r1, tile;
{loads}
st.volatile.shared.f32 [%r1], %f3;
bar.sync 0;
{stores}
ret;
}}
"""
    )
    base = axpy()
    wide = replace(base, ptx=ptx, entry="wide", launch=replace(base.launch, block=(64, 1, 1), dynamic_smem=512))
    found = assemble(wide).resources
    assert found.registers == 24
    assert found.local_bytes > 0
    assert found.spills >= 2 * found.local_bytes  # each slot is stored and loaded at least once
    assert found.shared_bytes == 4096 + 512
    assert found.barriers == 1
    # 4608 + 1024 of SMEM a block: 233472 // 5632 = 41, past the 32 blocks a multiprocessor holds.
    assert found.blocks_per_multiprocessor == 32


@needs_ptxas
def test_max_registers_reach_the_assembler() -> None:
    free = axpy()
    unbounded = replace(free, ptx=free.ptx.replace(".reqntid 128\n", "\n"))
    body = "\n".join(f"\tld.global.volatile.f32 %g{i}, [%rd4+{4 * i}];" for i in range(64)) + "\n"
    body += "\n".join(f"\tst.global.volatile.f32 [%rd5+{4 * i}], %g{i};" for i in range(64)) + "\n"
    heavy = unbounded.ptx.replace("DONE:", body + "DONE:").replace("\t.reg .pred", "\t.reg .f32 %g<64>;\n\t.reg .pred")
    assert assemble(replace(unbounded, ptx=heavy)).resources.registers > 40
    assert assemble(replace(unbounded, ptx=heavy, max_registers=32)).resources.registers <= 32


@needs_ptxas
def test_a_refusal_names_the_users_line_and_the_ptx() -> None:
    good = axpy()
    bad = replace(good, ptx=good.ptx.replace("st.global.f32 [%rd5], %f3", "st.global.f32 [%rd5], %p1"))
    with pytest.raises(AssemblerError) as caught:
        assemble(bad)
    text = str(caught.value)
    assert caught.value.line == SourceLine("/home/me/model.py", 13, "axpy")
    assert "--> /home/me/model.py:13 in axpy" in text
    assert "st.global.f32 [%rd5], %p1" in text
    assert "'axpy'" in text and "sm_90a" in text


@needs_ptxas
def test_setmaxnreg_without_a_bound_is_a_remark_at_its_line() -> None:
    ptx = (
        HEADER.format(version="8.6", target="sm_90a")
        + """
.visible .entry specialised(.param .u64 p)
{
.reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .pred %p<2>;
ld.param.u64 %rd1, [p];
mov.u32 %r1, %tid.x;
setp.lt.u32 %p1, %r1, 128;
@%p1 bra SMALL;
setmaxnreg.inc.sync.aligned.u32 240;
st.global.u32 [%rd1], %r1;
ret;
SMALL:
setmaxnreg.dec.sync.aligned.u32 24;
ret;
}
"""
    )
    at = SourceLine("/home/me/model.py", 40, "body")
    number = ptx[: ptx.index("setmaxnreg")].count("\n") + 1
    kernel = replace(axpy(), ptx=ptx, entry="specialised", lines={number: at})
    remarks = assemble(kernel).remarks
    assert [("C7508" in r.text, r.kind, r.line) for r in remarks] == [(True, "info", at)]
    assert str(remarks[0]).startswith("/home/me/model.py:40: ")


def test_remarks_without_a_ptx_line_find_the_instruction_they_name() -> None:
    log = (
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions "
        "are serialized due to insufficient register resources for the wgmma pipeline in the "
        "function 'axpy'\n"
        "ptxas /dev/stdin, line 7; warning : something is odd\n"
        "ptxas info    : Used 32 registers, used 1 barriers\n"
        "ptxas info    : Compile time = 3.1 ms\n"
    )
    kernel = axpy()
    at = SourceLine("/home/me/model.py", 77)
    kernel = replace(
        kernel,
        ptx="\n" * 20 + "wgmma.mma_async.sync.aligned\n",
        lines={3: SourceLine("a.py", 1), 21: at},
    )
    first, second = messages(log)
    assert (first.code, first.kind, user_line(kernel, first)) == ("C7510", "info", at)
    assert (second.kind, second.ptx_line, user_line(kernel, second)) == (
        "warning",
        7,
        SourceLine("a.py", 1),
    )


def test_resources_come_from_the_entry_asked_for() -> None:
    log = (
        "ptxas info    : Compiling entry function 'other' for 'sm_90a'\n"
        "ptxas info    : Function properties for other\n"
        "    8 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 9 barriers, 99 bytes smem\n"
        "ptxas info    : Compiling entry function 'axpy' for 'sm_90a'\n"
        "ptxas info    : Function properties for axpy\n"
        "    96 bytes stack frame, 40 bytes spill stores, 44 bytes spill loads\n"
        "ptxas info    : Used 168 registers, used 3 barriers, "
        "96 bytes cumulative stack size, 2048 bytes smem\n"
    )
    found = resources(replace(axpy(), launch=replace(axpy().launch, block=(384, 1, 1))), log)
    assert (found.registers, found.spills, found.local_bytes) == (168, 84, 96)
    assert (found.shared_bytes, found.barriers, found.blocks_per_multiprocessor) == (2048, 3, 1)


@needs_ptxas
def test_machine_code_is_the_same_each_time() -> None:
    assert assemble(axpy()).cubin == assemble(axpy()).cubin


def test_the_assemblers_heap_may_be_tuned_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    ours = assembler_environment()["GLIBC_TUNABLES"]
    assert "hugetlb" in ours
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
    assert assembler_environment()["GLIBC_TUNABLES"] == f"{ours}:glibc.malloc.hugetlb=0"


def test_a_named_ptxas_that_is_not_there_is_an_error_not_a_search() -> None:
    with pytest.raises(ToolMissing, match="/nowhere/ptxas"):
        assemble(axpy(), options=AssemblerOptions(ptxas="/nowhere/ptxas"))


def test_without_any_assembler_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kernel_dsl.runtime.assemble.find_ptxas", lambda options: None)
    monkeypatch.setattr("kernel_dsl.runtime.assemble.driver.available", lambda: Availability(0, "none"))
    with pytest.raises(ToolMissing, match="pip install nvidia-cuda-nvcc"):
        assemble(axpy())


@pytest.mark.gpu
@pytest.mark.skipif(not driver.available(), reason="no GPU")
@pytest.mark.parametrize("whole", [False, True])
def test_the_drivers_compiler_gives_the_same_resources(monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
    """With `setmaxnreg` in the text (here in a comment) the PTX is compiled in whole."""
    kernel = axpy()
    if whole:
        kernel = replace(kernel, ptx=kernel.ptx + "// setmaxnreg\n")
    expected = assemble(kernel).resources
    monkeypatch.setattr("kernel_dsl.runtime.assemble.find_ptxas", lambda options: None)
    made = assemble(kernel)
    assert bool(made.cubin) is not whole
    assert abs(made.resources.registers - expected.registers) <= 4
    assert made.resources.spills == 0
    with pytest.raises(AssemblerError, match="axpy"):
        assemble(replace(kernel, ptx=kernel.ptx.replace("mul.wide", "mul.wild")))


@needs_ptxas
def test_identity_follows_the_program(tmp_path: Path) -> None:
    real = find_ptxas()
    assert real is not None
    assert assembler_identity() == assembler_identity(AssemblerOptions(ptxas=str(real)))
    script = tmp_path / "ptxas"
    script.write_text(f'#!/bin/sh\nexec {real} "$@"\n')
    script.chmod(0o755)
    here = AssemblerOptions(ptxas=str(tmp_path))
    assert assembler_identity(here) == f"ptxas {ptxas_version()}"
    assert assemble(axpy(), options=here).cubin == assemble(axpy()).cubin
    assert tools.find("ptxas", str(tmp_path)) == script


@needs_ptxas
def test_remarks_are_warnings_at_the_users_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import kernel_dsl as kd
    from kernel_dsl.runtime.build import ptxas_log

    @kd.kernel(out_type=lambda x: x)
    def double(x, out):
        out[...] = x[...] * 3  # the multiplication is remarked on

    line = double.__wrapped__.__code__.co_firstlineno + 2
    said = ptxas_log.messages(
        "ptxas info    : (C7510) Potential Performance Loss: 'mul.rn.f32' instructions are serialized"
    )
    monkeypatch.setattr("kernel_dsl.runtime.assemble.messages", lambda log: said)
    with pytest.warns(RuntimeWarning, match="C7510") as caught:
        double.lower(kd.ShapeDtypeStruct((128,), kd.float32)).compile()
    assert (caught[0].filename, caught[0].lineno) == (__file__, line)
