"""Warp-wide instructions, with whole warps and with twenty lanes of each, against the GPU."""

from __future__ import annotations

import numpy as np

from kernel_dsl.runtime.interpreter.isa.semantics.warp import WarpOp, compile_warp, forms
from tests.interpreter.semantics.operands import random_bits

from .launcher import Gpu

COUNT = 1024
LIMITS = (32, 20)
_REGISTER = {"pred": "%p", "b64": "%d"}
_SHFL_CLAMPS = np.array([31, 0, 0x101F, 0x1C1F, 0x181F, 0x1000, 0x1E00], np.uint32)


def _register(type_: str, index: int) -> str:
    return f"{_REGISTER.get(type_, '%r')}{index}"


def _load(type_: str, index: int) -> str:
    address = f"[%in+{index * COUNT * 8}]"
    if type_ == "pred":
        return f"ld.global.u32 %t, {address}; setp.ne.u32 {_register(type_, index)}, %t, 0;"
    bits = "b64" if type_ == "b64" else "b32"
    return f"ld.global.{bits} {_register(type_, index)}, {address};"


def _store(type_: str, register: str, slot: int) -> str:
    address = f"[%out+{slot * COUNT * 8}]"
    if type_ == "pred":
        return f"selp.u32 %t, 1, 0, {register}; st.global.u32 {address}, %t;"
    return f"st.global.b32 {address}, {register};"


def kernel(name: str, op: WarpOp, limit: int) -> str:
    """One form, executed by the lanes below `limit` of each warp."""
    mask = f"{(1 << limit) - 1:#x}"
    has_mask = op.opcode[0] != "activemask"
    inputs = op.operands[:-1] if has_mask else ()
    sources = [_register(t, i) for i, t in enumerate(inputs)] + ([mask] if has_mask else [])
    targets = [_register(t, 8 + i) for i, t in enumerate(op.results)]
    lines = [
        f".visible .entry {name}(.param .u64 inputs, .param .u64 outputs) {{",
        ".reg .b64 %in, %out, %offset, %d<12>; .reg .pred %go, %p<12>;",
        ".reg .b32 %t, %lane, %cta, %r<12>;",
        "ld.param.u64 %in, [inputs]; ld.param.u64 %out, [outputs];",
        "mov.u32 %t, %tid.x; mov.u32 %cta, %ctaid.x; mad.lo.u32 %t, %cta, 128, %t;",
        "and.b32 %lane, %t, 31; mul.wide.u32 %offset, %t, 8;",
        "add.u64 %in, %in, %offset; add.u64 %out, %out, %offset;",
        *(_load(t, i) for i, t in enumerate(inputs)),
        f"setp.ge.u32 %go, %lane, {limit}; @%go bra DONE;",
        f"{'.'.join(op.opcode)} {', '.join(['|'.join(targets), *sources])};",
        *(_store(t, targets[i], i) for i, t in enumerate(op.results)),
        "DONE: ret; }",
    ]
    return "\n".join(lines)


def all_kernels() -> tuple[str, list[tuple[str, WarpOp, int]]]:
    """A module of every form at every limit, and what its entries are."""
    members = [
        (f"warp{index}_{limit}", compile_warp(opcode, pair), limit)
        for index, (opcode, pair) in enumerate(forms())
        for limit in LIMITS
    ]
    text = ".version 8.7\n.target sm_90a\n.address_size 64\n"
    return text + "\n".join(kernel(*member) for member in members) + "\n", members


def _inputs(op: WarpOp) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    arrays = [random_bits(t, COUNT, rng).reshape(-1, 32) for t in op.operands]
    if op.opcode[0] == "shfl":
        arrays[1] = rng.integers(0, 40, arrays[1].shape).astype(np.uint32)
        arrays[2] = rng.choice(_SHFL_CLAMPS, arrays[2].shape)
    elif op.opcode[0] == "match":  # few values in most warps, one value in some
        arrays[0] = arrays[0] % arrays[0].dtype.type(3)
        arrays[0][::3] = 7
    elif op.opcode[0] == "vote":
        arrays[0][::3], arrays[0][1::3] = True, False
    return arrays


def compare(gpu: Gpu, module: object, name: str, op: WarpOp, limit: int) -> int:
    """Elements that differ, among those that PTX defines."""
    arrays = _inputs(op)
    active = np.broadcast_to(np.arange(32) < limit, (COUNT // 32, 32))
    if op.operands and op.opcode[0] != "activemask":
        arrays[-1] = np.full((1, 1), (1 << limit) - 1, np.uint32)
    slots = [a.reshape(-1).astype(np.uint64) for a in arrays if a.size == COUNT]
    output = np.zeros((len(op.results), COUNT), np.uint64)
    output = gpu.run(module, name, [np.stack(slots) if slots else np.zeros(1, np.uint64)], output, 8, 128)
    want = op(active, *arrays)
    # What depends on lanes that do not execute is undefined.
    noisy = [np.where(active, a, ~a) if a.size == COUNT else a for a in arrays]
    other = op(active, *noisy)
    different = 0
    for slot, here, again in zip(output, want, other, strict=True):
        have = slot.reshape(-1, 32).astype(here.dtype)
        different += np.count_nonzero((have != here) & (here == again) & active)
    return different


def run(gpu: Gpu) -> dict[str, int]:
    """Elements that differ, by form and number of lanes."""
    text, members = all_kernels()
    module = gpu.load(text.encode())
    found: dict[str, int] = {}
    for name, op, limit in members:
        label = f"{'.'.join(op.opcode)}{' d|p' if len(op.results) == 2 else ''}, {limit} lanes"
        found[label] = compare(gpu, module, name, op, limit)
    gpu.unload(module)
    return found


def report(found: dict[str, int]) -> str:
    lines = ["| warp-wide form | elements that differ |", "|---|---|"]
    return "\n".join([*lines, *(f"| {label} | {count} |" for label, count in found.items())])
