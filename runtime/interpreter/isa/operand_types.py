"""The registers and literals that an instruction takes for an operand of a type (PTX ISA 9.2 and 9.4.1)."""

from __future__ import annotations

from functools import lru_cache

from ..ptx.module import TYPE_BYTES, Imm

# Instructions that take registers wider than the type: they cut the register, or extend the value by its sign or zeros.
RELAXED = {"cvt", "ld", "ldu", "st"}
# Instructions that take special registers, and instructions that take the address of a variable.
SPECIALS = {"mov", "cvt"}
ADDRESSES = {"mov", "cvta", "mapa", "getctarank", "isspacep", "call", "brx"}
_FLOAT_LITERALS = {"mov", "selp", "st"}


def _kind(type_: str) -> str:
    """Return "pred", "bits", "int", or a float type's name."""
    if type_ == "pred":
        return type_
    if type_[0] in "us" and type_[1].isdigit():
        return "int"
    return "bits" if type_[0] == "b" and type_[1].isdigit() else type_


@lru_cache(1024)  # asked for each operand of each instruction, of a few types
def register_fits(have: str, want: str, relaxed: bool) -> str:
    """Return why an operand of type `want` does not take a register of type `have`; empty if it does."""
    mine, theirs = _kind(have), _kind(want)
    if "pred" in (mine, theirs) and mine != theirs:
        return f"is .{have}, the instruction wants .{want}"
    if mine != theirs and "bits" not in (mine, theirs):
        return f"is .{have}, the instruction wants .{want}"
    size, needed = TYPE_BYTES[have], TYPE_BYTES.get(want, 4)
    if want == "e2m1x2" and size > 1:  # the one operand of 8 bits that takes registers of 8 bits alone
        return f"is .{have}, the instruction wants .b8"
    if size == needed or (needed == 1 and size == 2):
        return ""
    if size < needed:
        return f"is .{have}, too narrow for .{want}"
    # A float register is never cut.
    return "" if relaxed and mine in ("bits", "int") else f"is .{have}, the instruction wants .{want}"


def literal_fits(literal: Imm, want: str, head: str) -> str:
    """Return why an operand of type `want` does not take a literal; empty if it does."""
    if want in ("f32", "f64"):
        return f"an integer literal where .{want} is wanted" if literal.kind == "int" else ""
    if want in ("f16", "bf16"):
        return f"a literal where a register of .{want} is wanted"
    if literal.kind == "int" or want == "pred":
        return ""
    fits = {"f32": "b32", "f64": "b64"}.get(literal.kind) == want and head in _FLOAT_LITERALS
    return "" if fits else f"a floating literal where .{want} is wanted"
