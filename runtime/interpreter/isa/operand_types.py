"""The registers and literals that an instruction takes for an operand of a type (PTX ISA 9.2 and 9.4.1)."""

from __future__ import annotations

from functools import lru_cache

from ..ptx.module import TYPE_BYTES, Imm

# Instructions that take registers wider than the type: they cut the register, or extend the value by its sign or zeros.
RELAXED = {"cvt", "ld", "ldu", "st"}
# Instructions that take special registers, and instructions that take the address of a variable.
SPECIALS = {"mov", "cvt"}
ADDRESSES = {"mov", "cvta", "mapa", "getctarank", "isspacep", "call", "brx"}
_FLOAT_LITERALS = {"mov", "selp", "st", "call"}


def _kind(type_: str) -> str:
    """Return "pred", "bits", "int", or a float type's name."""
    if type_ == "pred":
        return type_
    if type_[0] in "us" and type_[1].isdigit():
        return "int"
    return "bits" if type_[0] == "b" and type_[1].isdigit() else type_


# The registers that hold elements of these types in a fragment of a matrix (PTX ISA 9.7.14 and 9.7.15). A product of a warp
# takes any register of 32 bits for small integers and floats of 8 bits.
_FRAGMENTS = {
    "f16": ("b32", "f16x2"), "bf16": ("b32",), "tf32": ("b32",), "f32": ("b32", "f32"), "f64": ("b64", "f64"),
}  # fmt: skip
_INTEGERS = ("b32", "u32", "s32")
# The literals that the operands of an instruction may be, by the operand's number.
_RANGES = {("bfe", at): range(256) for at in (2, 3)} | {("bfi", at): range(256) for at in (3, 4)}


def fragment_fits(have: str, element: str, integers: bool) -> str:
    """Return why a register is none of a fragment of `element`s; empty if it is.

    `integers`: whether small integers want integer registers.
    """
    allowed = _FRAGMENTS.get(element, _INTEGERS if integers or element == "s32" else ())
    if not allowed or have in allowed:
        return ""
    return f"is .{have}, elements of .{element} want .{' or .'.join(allowed)}"


def in_range(head: str, at: int, literal: Imm) -> str:
    """Return why operand number `at` of an instruction is no such literal; empty if it is."""
    wanted = _RANGES.get((head, at))
    if wanted is None or literal.kind != "int" or literal.value in wanted:
        return ""
    return f"operand {at}, {literal.value}, is not in 0 to {wanted[-1]}"


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
    if literal.kind == "int":
        return ""
    fits = {"f32": "b32", "f64": "b64"}.get(literal.kind) == want and head in _FLOAT_LITERALS
    return "" if fits else f"a floating literal where .{want} is wanted"
