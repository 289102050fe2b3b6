"""Rows of the tensor cores of sm_100 and tensor memory (PTX ISA 9.7.16)."""

from __future__ import annotations

from ..ptx.module import Imm, Mem, Reg, Vec
from .rows import Operands, Words, row

_GROUP = "group=cta_group::1|cta_group::2 "
_TOGETHER = "sync aligned "
PER = {"16x128b": 2, "16x256b": 4}  # registers of .x1 for the shapes that have more than one


def _columns(w: Words, operands: Operands) -> str:
    count = operands[1]
    if not isinstance(count, Imm):
        return ""
    fits = 32 <= count.value <= 512 and not count.value & (count.value - 1)
    return (
        "" if fits else f"a number of {count.value} columns is not supported: a power of two from 32 to 512 is wanted"
    )


row("tcgen05.alloc", _GROUP + _TOGETHER + "space=shared::cta? type=b32", "[~space] S:u32", _columns, waits=True)
row("tcgen05.dealloc", _GROUP + _TOGETHER + "type=b32", "S:b32 S:u32", _columns, waits=True)
row("tcgen05.relinquish_alloc_permit", _GROUP + _TOGETHER.rstrip(), "", waits=True)
row("tcgen05.fence::before_thread_sync tcgen05.fence::after_thread_sync", "", "")
row("tcgen05.wait::ld tcgen05.wait::st", _TOGETHER.rstrip(), "", waits=True)


def _fragment(w: Words, operands: Operands) -> str:
    """Check the number of registers, and that the shape .16x32bx2, and no other, has the offset of its second half."""
    number = int(w["num"][1:]) * PER.get(w["shape"], 1)
    if number > 128:
        return f".{w['shape']} does not go with .{w['num']}"
    halves = [o for o in operands if isinstance(o, Imm)]
    if len(halves) != (w["shape"] == "16x32bx2"):
        return f".{w['shape']} takes {'the offset of its second half' if not halves else 'no offset'}"
    vector = next((o for o in operands if isinstance(o, Vec)), None)
    given = len(vector.items) if vector is not None else "none"
    if vector is not None and None in vector.items:
        return "'_' is not possible here"
    return "" if given == number else f"a vector of {number} is wanted, {given} given"


_SHAPES = _TOGETHER + "shape=16x64b|16x128b|16x256b|32x32b|16x32bx2 num=x1|x2|x4|x8|x16|x32|x64|x128 "
row("tcgen05.ld", _SHAPES + "pack=pack::16b? type=b32", "X [tmem] #?", _fragment, waits=True)


def _reduced(w: Words, operands: Operands) -> str:
    if w["num"] == "x1":
        return "a reduction is of two columns or more"
    if w["type"] != "f32" and (w["abs"] or w["nan"]):
        return ".abs and .NaN are for .f32"
    result = operands[1]
    if isinstance(result, Vec) and (len(result.items) != 1 or not isinstance(result.items[0], Reg)):
        return "the result is one register"
    why = _fragment(w, operands)
    if not why and w["shape"] == "16x32bx2":  # no text tells which columns a thread's result covers
        return ".red with .16x32bx2 is not supported"
    return why


row("tcgen05.ld.red",
    _TOGETHER + "shape=32x32b|16x32bx2 num=x1|x2|x4|x8|x16|x32|x64|x128 op=min|max abs? nan=NaN? type=f32|u32|s32",
    "X D{} [tmem] #?", _reduced, waits=True)  # fmt: skip
row("tcgen05.st", _SHAPES + "unpack=unpack::16b? type=b32", "[tmem] #? X", _fragment, waits=True)

row("tcgen05.commit",
    _GROUP + "how=mbarrier::arrive::one space=shared::cluster? multicast=multicast::cluster? type=b64",
    "[~space] S:b16@multicast")  # fmt: skip

_CAST = {"64x128b": ("warpx2::02_13", "warpx2::01_23"), "32x128b": ("warpx4",)}


def _copies(w: Words, operands: Operands) -> str:
    wanted = _CAST.get(w["shape"], ("",))
    if w["cast"] not in wanted:
        return f".{w['shape']} goes with {' or '.join('.' + c for c in wanted) if wanted != ('',) else 'no multicast'}"
    return "" if bool(w["unpacked"]) == bool(w["packed"]) else "the formats come together"


row("tcgen05.cp",
    _GROUP + "shape=128x256b|4x256b|128x128b|64x128b|32x128b cast=warpx2::02_13|warpx2::01_23|warpx4? "
    "unpacked=b8x16? packed=b6x16_p32|b4x16_p64?", "[tmem] S:b64", _copies)  # fmt: skip

SCALED = ("kind::mxf8f6f4", "kind::mxf4", "kind::mxf4nvf4")
_VECTORS = {
    "kind::mxf8f6f4": ("", "scale_vec::1X", "block32"),
    "kind::mxf4": ("", "scale_vec::2X", "block32"),
    "kind::mxf4nvf4": ("scale_vec::2X", "scale_vec::4X", "block16", "block32"),
}


_PLAIN = "kind=kind::f16|kind::tf32|kind::f8f6f4|kind::i8"


def _product(w: Words, operands: Operands) -> str:
    """Check what belongs to a kind, and the order of the operands behind the instruction descriptor."""
    scaled = w["kind"] in SCALED
    if scaled != bool(w["block_scale"]):
        return f".{w['kind']} goes {'with' if scaled else 'without'} .block_scale"
    if w["vector"] not in _VECTORS.get(w["kind"], ("",)):
        return f".{w['vector']} does not go with .{w['kind']}" if w["vector"] else "a size of scales is wanted"
    a = operands[1]
    if w["ashift"] and not isinstance(a, Mem):
        return ".ashift needs A in tensor memory"
    if w["ashift"] and w["collector"] in ("collector::a::fill", "collector::a::use"):
        return f".ashift does not go with .{w['collector']}"
    if not isinstance(a, Mem | Reg):
        return "A is a descriptor in a register, or an address of tensor memory"
    return "" if scaled else _rest(w, list(operands[4:]))


def _sparse_product(w: Words, operands: Operands) -> str:
    return _product(w, (*operands[:3], *operands[4:]))


def _rest(w: Words, rest: list[object]) -> str:
    lanes = rest.pop(0) if isinstance(rest[0], Vec) else None
    wanted = 8 if w["group"] == "cta_group::2" else 4
    if isinstance(lanes, Vec) and len(lanes.items) != wanted:
        return f"the lanes without output are a vector of {wanted}"
    if not rest or len(rest) > 2 or isinstance(rest[0], Vec | Mem):
        return "a predicate is wanted behind the instruction descriptor and the lanes"
    if len(rest) == 2:
        scale = rest[1]
        if w["kind"] not in ("kind::f16", "kind::tf32"):
            return f".{w['kind']} with a scale of D is not supported"
        if not isinstance(scale, Imm) or not 0 <= scale.value <= 15:
            return "the scale of D is a literal from 0 to 15"
    return ""


_KINDS = (
    _GROUP + _PLAIN + "|kind::mxf8f6f4|kind::mxf4|kind::mxf4nvf4 "
    "block_scale? vector=scale_vec::1X|scale_vec::2X|scale_vec::4X|block16|block32? ashift? "
    "collector=collector::a::fill|collector::a::use|collector::a::lastuse|collector::a::discard?"
)
_BEHIND = (
    "[tmem]@block_scale [tmem]@block_scale P@block_scale "
    "X@block_scale!=block_scale X?@block_scale!=block_scale X?@block_scale!=block_scale"
)
row("tcgen05.mma", _KINDS, "[tmem] X S:b64 S:b32 " + _BEHIND, _product)
row("tcgen05.mma.sp", _KINDS, "[tmem] X S:b64 [tmem] S:b32 " + _BEHIND, _sparse_product)


def _stationary(w: Words, operands: Operands) -> str:
    a, mask = operands[1], operands[5] if len(operands) > 5 else None
    if not isinstance(a, Mem | Reg):
        return "A is a descriptor in a register, or an address of tensor memory"
    return "a mask of columns that is a literal is not supported" if isinstance(mask, Imm) and mask.value else ""


_BUFFERS = "|".join(f"collector::b{n}::{use}" for n in range(4) for use in ("fill", "use", "lastuse", "discard"))
row(
    "tcgen05.mma.ws", f"group=cta_group::1 {_PLAIN} collector={_BUFFERS}?", "[tmem] X S:b64 S:b32 P S:b64?", _stationary
)
