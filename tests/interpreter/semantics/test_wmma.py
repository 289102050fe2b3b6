"""wmma through memory: load A, B and C, multiply, store D."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter.isa.semantics import BadModifier, UnknownInstruction, wmma
from kernel_dsl.runtime.interpreter.isa.semantics.formats import FORMATS, decode, encode

from .test_table import assemble

# Of whole bytes; those of 4 bits and 1 bit run against NumPy in test_foreign_classes.py.
MMAS = [o for o in wmma.forms() if o[1] == "mma" and {"s4", "u4", "b1"}.isdisjoint(o)]


def memory(fragment: wmma.Fragment, layout: str, stride: int, rng: np.random.Generator) -> np.ndarray:
    """Random codes of a tile in memory, with a gap after each row or column."""
    size = (fragment.rows if layout == "row" else fragment.columns) * stride
    if fragment.type_ in ("s8", "u8"):
        return rng.integers(0, 256, size).astype(np.uint8)
    if fragment.type_ == "s32":
        return rng.integers(-1000, 1000, size).astype(np.int32).view(np.uint32)
    x = rng.standard_normal(size)
    if fragment.type_ == "f64":
        return x.view(np.uint64)
    if fragment.type_ in ("f32", "tf32"):
        return x.astype(np.float32).view(np.uint32)
    return encode(x, FORMATS[fragment.type_]).astype(np.uint16)


def numbers(codes: np.ndarray, type_: str) -> np.ndarray:
    if type_ in ("s8", "s32"):
        return codes.view(np.int8 if type_ == "s8" else np.int32).astype(float)
    return codes.astype(float) if type_ == "u8" else decode(codes, type_).astype(float)


def tile(codes: np.ndarray, fragment: wmma.Fragment, layout: str, stride: int) -> np.ndarray:
    """The logical matrix that memory holds."""
    whole = numbers(codes, fragment.type_).reshape(-1, stride)
    if layout == "row":
        return whole[:, : fragment.columns]
    return whole[:, : fragment.rows].T


@pytest.mark.parametrize("opcode", MMAS, ids=".".join)
def test_wmma(opcode: tuple[str, ...]) -> None:
    op = wmma.compile_wmma(opcode)
    a_layout, b_layout, shape = opcode[4:7]
    rng = np.random.default_rng(3)
    registers: list[list[np.ndarray]] = []
    tiles: list[np.ndarray] = []
    for kind, type_, layout in zip("abc", op.types[:3], (a_layout, b_layout, "row"), strict=True):
        load = wmma.compile_wmma_memory(("wmma", "load", kind, "sync", "aligned", layout, shape, type_))
        fragment = load.fragment
        stride = load.default_stride + 8
        codes = memory(fragment, layout, stride, rng)
        held = fragment.to_registers(codes[fragment.offsets(layout, stride)][None])
        assert len(held) == fragment.held[1]
        registers.append(held)
        tiles.append(tile(codes, fragment, layout, stride))
    d = op(*registers)
    assert len(d) == op.d[1]
    store = wmma.compile_wmma_memory(("wmma", "store", "d", "sync", "aligned", "col", shape, "shared", op.types[3]))
    out = np.zeros(op.m * op.n, store.fragment.element)
    out[store.fragment.offsets("col", op.m)] = store.fragment.from_registers(d)[0]
    got = tile(out, store.fragment, "col", op.m)
    want = tiles[0] @ tiles[1] + tiles[2]
    bound = {"f32": 2.0**-24, "f16": 2.0**-11, "f64": 2.0**-50, "s32": 0.0}[op.types[3]]
    scale = np.abs(tiles[0]) @ np.abs(tiles[1]) + np.abs(tiles[2])
    assert (np.abs(got - want) <= bound * scale).all()


def test_strangers_are_named() -> None:
    with pytest.raises(UnknownInstruction):
        wmma.compile_wmma(("mma", "sync"))
    with pytest.raises(BadModifier):
        wmma.compile_wmma(("wmma", "mma", "sync", "aligned", "row", "row", "m16n16k8", "f32", "f32"))
    with pytest.raises(BadModifier):
        wmma.compile_wmma_memory(("wmma", "store", "a", "sync", "aligned", "row", "m8n8k4", "f64"))


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="no ptxas on the path")
def test_every_form_is_legal_ptx(tmp_path: Path) -> None:
    prefix = {"b32": "%r", "s32": "%r", "f32": "%f", "f64": "%x"}

    def vector(held: tuple[str, int], base: int) -> str:
        return "{" + ", ".join(f"{prefix[held[0]]}{base + i}" for i in range(held[1])) + "}"

    lines = [".version 8.7", ".target sm_90a", ".address_size 64", ".visible .entry k() {"]
    lines += [".shared .align 128 .b8 tile[4096];", ".reg .b32 %r<80>; .reg .f32 %f<80>;"]
    lines += [".reg .f64 %x<80>; .reg .b64 %p, %g;", "mov.u64 %p, 0; cvta.shared.u64 %g, %p;"]
    for opcode in wmma.forms():
        name = ".".join(opcode)
        if opcode[1] == "mma":
            op = wmma.compile_wmma(opcode)
            held = ((op.d, 0), (op.a, 16), (op.b, 32), (op.c, 48))
            lines.append(f"{name} {', '.join(vector(*h) for h in held)};")
            continue
        place = wmma.compile_wmma_memory(opcode)
        registers = vector(place.fragment.held, 0)
        address = "[tile]" if place.space.startswith("shared") else "[%g]"
        operands = [registers, address] if place.action == "load" else [address, registers]
        lines.append(f"{name} {', '.join(operands)}, %r70;")
    assemble("\n".join([*lines, "ret; }"]) + "\n", "sm_90a", tmp_path)
