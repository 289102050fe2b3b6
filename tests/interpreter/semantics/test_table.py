"""The table of forms: all compile, keep their types and shapes, are silent, and legal PTX."""

from __future__ import annotations

import shutil
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter.isa.semantics import STORAGE, BadModifier, UnknownInstruction, compile_alu
from kernel_dsl.runtime.interpreter.isa.semantics.table import Entry, entries
from tests.gpu import tensor_differential, warp_differential

from . import ptx_batches
from .operands import operands

ALL = list(entries())


def run(entry: Entry, arrays: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    if entry.opcode[0] == "lop3":
        arrays[3] = np.full((1,) * arrays[0].ndim, 0x57, np.uint32)
    return compile_alu(entry.opcode, entry.pair)(*arrays)


def test_every_form_keeps_types_and_shapes_and_is_silent() -> None:
    inputs: dict[tuple[str, ...], list[np.ndarray]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for entry in ALL:
            if entry.operands not in inputs:
                inputs[entry.operands] = operands(entry.operands, 192)
            for shape in ((192,), (2, 3, 32)):
                arrays = [a.reshape(*shape, *a.shape[1:]) for a in inputs[entry.operands]]
                results = run(entry, arrays)
                assert [r.dtype for r in results] == [STORAGE[t] for t in entry.results], entry.mnemonic
                assert all(r.shape == shape for r in results), entry.mnemonic


def test_operands_broadcast() -> None:
    """An immediate may come as an array of one element."""
    for entry in ALL:
        if entry.family == "compare" and entry.opcode[-1] not in ("f32", "f16x2"):
            continue
        arrays = operands(entry.operands, 64)
        whole = run(entry, [arrays[0], *(np.full(64, a[5], a.dtype) for a in arrays[1:])])
        single = run(entry, [arrays[0], *(a[5:6] for a in arrays[1:])])
        for x, y in zip(whole, single, strict=True):
            assert np.array_equal(x, y), entry.mnemonic


def test_operands_are_not_written() -> None:
    for entry in ALL:
        if entry.family != "compare":
            arrays = operands(entry.operands, 64)
            copies = [a.copy() for a in arrays]
            run(entry, list(arrays))
            assert all(np.array_equal(a, c) for a, c in zip(arrays, copies, strict=True)), entry.mnemonic


@pytest.mark.parametrize(
    ("opcode", "error", "named"),
    [
        ("frobnicate.f32", UnknownInstruction, "frobnicate.f32"),
        ("add.f128", BadModifier, "f128"),
        ("add.sat.u32", BadModifier, "u32"),
        ("fma.f32", BadModifier, "fma.f32"),
        ("mul.wide.u64", BadModifier, "twice as wide"),
        ("cvt.f16.f32", BadModifier, "rounding"),
        ("cvt.rn.f32.f16", BadModifier, "rounding"),
        ("cvt.sat.s32.s16", BadModifier, "saturate"),
        ("setp.lt.b32", BadModifier, ".eq and .ne"),
        ("setp.lo.s32", BadModifier, "unsigned"),
        ("add", BadModifier, "incomplete"),
        ("shl.s32", BadModifier, "s32"),
    ],
)
def test_strangers_are_named(opcode: str, error: type[ValueError], named: str) -> None:
    with pytest.raises(error, match=named.replace(".", r"\.")):
        compile_alu(tuple(opcode.split(".")))


def test_pair_is_checked() -> None:
    with pytest.raises(BadModifier, match="one destination"):
        compile_alu(("add", "f32"), pair=True)
    with pytest.raises(BadModifier, match=r"d\|p"):
        compile_alu(("lop3", "or", "b32"))


# --- what the assembler says ---------------------------------------------------------------------

needs_ptxas = pytest.mark.skipif(shutil.which("ptxas") is None, reason="no ptxas on the path")


def assemble(text: str, target: str, path: Path) -> None:
    source = path / "forms.ptx"
    source.write_text(text)
    command = ["ptxas", "-O1", f"-arch={target}", str(source), "-o", str(path / "forms.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


@needs_ptxas
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_every_form_is_legal_ptx(target: str, tmp_path: Path) -> None:
    newer = target == "sm_100a"
    chosen = [e for e in ALL if (e.since >= 100) == newer]
    assert chosen
    assemble(ptx_batches.module(ptx_batches.batches(chosen), 4096, target), target, tmp_path)


@needs_ptxas
@pytest.mark.parametrize("target", [75, 80, 86, 89])
@pytest.mark.sampled(2)
def test_forms_are_legal_from_their_first_target_on(target: int, tmp_path: Path) -> None:
    chosen = [e for e in ALL if e.since <= target and "b128" not in e.operands]
    assert compile_alu(chosen[0].opcode).since == chosen[0].since
    assemble(ptx_batches.module(ptx_batches.batches(chosen), 4096, f"sm_{target}"), f"sm_{target}", tmp_path)


@needs_ptxas
def test_every_warp_form_is_legal_ptx(tmp_path: Path) -> None:
    assemble(warp_differential.all_kernels()[0], "sm_90a", tmp_path)


@needs_ptxas
def test_every_mma_form_is_legal_ptx(tmp_path: Path) -> None:
    assemble(tensor_differential.mma_module()[0], "sm_90a", tmp_path)


@needs_ptxas
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_wgmma_forms_are_legal_ptx(step: int, tmp_path: Path) -> None:
    """One form in seven has every width and every combination of dtypes; the long form has all."""
    layout, ops = tensor_differential.LAYOUTS[3], list(tensor_differential.wgmma_ops())
    some = ops[::step]
    assert {op.n for op in some} == {op.n for op in ops}
    kinds = [{(op.a_type, op.b_type, op.d_type, op.satfinite) for op in chosen} for chosen in (some, ops)]
    assert kinds[0] == kinds[1]
    every = [tensor_differential.Case(op, layout, layout) for op in some]
    assemble(tensor_differential.wgmma_module(every), "sm_90a", tmp_path)
