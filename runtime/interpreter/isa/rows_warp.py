"""Rows of instructions that a warp executes together, of moves and of control (PTX ISA 9.7.9, 9.7.12 to 9.7.15)."""

from __future__ import annotations

from ..ptx.module import TYPE_BYTES, Imm, Pair, Reg, Sym, Vec
from .rows import Operands, Words, opened, row


def _vote_type(w: Words, operands: Operands) -> str:
    return "" if (w["mode"] == "ballot") == (w["type"] == "b32") else f".{w['mode']} does not make .{w['type']}"


def _match_pair(w: Words, operands: Operands) -> str:
    return "match.any takes one destination" if w["mode"] == "any" and isinstance(operands[0], Pair) else ""


def _pair(w: Words, operands: Operands) -> str:
    return "" if isinstance(operands[0], Pair) else "it takes a destination d|p"


def _redux_type(w: Words, operands: Operands) -> str:
    if w["type"] == "f32":
        return "" if w["op"] in ("min", "max") else f".{w['op']} is not for .f32"
    if w["abs"] or w["nan"]:
        return ".abs and .NaN are for .f32"
    if any(isinstance(o, Reg) and o.type in ("f32", "f16x2") for o in operands):
        return "floats are reduced as .f32"
    return "" if (w["op"] in ("and", "or", "xor")) == (w["type"] == "b32") else f".{w['op']} is not for .{w['type']}"


row("shfl", "sync mode=up|down|bfly|idx type=b32", "D|P S S:b32 S:b32 S:u32", waits=True)
row("vote", "sync mode=all|any|uni|ballot type=pred|b32", "D! P S:u32", _vote_type, waits=True)
row("match", "mode=any|all sync type=b32|b64", "D|P:u32 S S:u32", _match_pair, waits=True)
row("redux", "sync op=add|min|max|and|or|xor abs? nan=NaN? type=b32|u32|s32|f32", "D! S S:u32", _redux_type, waits=True)
row("elect", "sync", "D|P:u32 S:u32", _pair, waits=True)
row("activemask", "type=b32", "D!", waits=True)


def _count(w: Words, operands: Operands) -> str:
    count = operands[0]
    assert isinstance(count, Imm)
    fits = count.value % 8 == 0 and 24 <= count.value <= 256
    return "" if fits else f"{count.value} registers; a multiple of 8 from 24 to 256 is wanted"


row("setmaxnreg.inc setmaxnreg.dec", "sync aligned type=u32|s32", "#", _count, waits=True)


def _matrices(w: Words, operands: Operands) -> str:
    vector = next(o for o in operands if isinstance(o, Vec))
    given = len(vector.items)
    return "" if given == int(w["num"][1:]) else f"a vector of {w['num'][1:]} is wanted, {given} given"


def _register(w: Words, operands: Operands) -> str:
    return "a register is wanted" if isinstance(operands[1], Imm) else ""


_MATRIX = "sync aligned shape=m8n8 num=x1|x2|x4 trans? space=shared|shared::cta? type=b16"
row("ldmatrix", _MATRIX, "{} [~space]", _matrices, waits=True)
row("stmatrix", _MATRIX, "[~space] {}", _matrices, waits=True)
row("movmatrix", "sync aligned shape=m8n8 trans type=b16", "D! S", _register, waits=True)
opened("mma wmma wgmma", waits=True)


def _event(w: Words, operands: Operands) -> str:
    event = operands[0]
    fits = not isinstance(event, Imm) or 0 <= event.value < (65536 if w["mask"] else 16)
    return "" if fits else "no such event"


def _elements(w: Words, operands: Operands) -> str:
    """Check mov.v2 and mov.v4: vectors of as many elements, and at most 16 bytes."""
    if not w["vec"]:
        return ""
    count = int(w["vec"][1:])
    if w["type"] == "pred" or count * TYPE_BYTES[w["type"]] > 16:
        return f"there is no .{w['vec']} of .{w['type']}"
    for operand in operands:
        if not isinstance(operand, Vec) or len(operand.items) != count:
            return f"a vector of {count} is wanted"
    source = operands[1]
    legal = isinstance(source, Vec) and not any(item is None or isinstance(item, Sym) for item in source.items)
    return "" if legal else "a source's elements are registers and literals"


row("mov", "vec=v2|v4? type=pred|b16|b32|b64|b128|u16|u32|u64|s16|s32|s64|f32|f64", "X X", _elements)
row("nanosleep", "type=u32", "S", waits=True)
row("griddepcontrol", "action=wait|launch_dependents", "", waits=True)
row("pmevent", "mask?", "#", _event)
row("brkpt", "", "")
opened("brx call")
