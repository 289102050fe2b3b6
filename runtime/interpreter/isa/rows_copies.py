"""Rows of asynchronous copies (PTX ISA 9.7.9.25 to 9.7.9.27)."""

from __future__ import annotations

from ..ptx.module import Imm, Mem, Negated, Reg, Vec
from .rows import Operands, Words, row
from .rows_memory import HINT, PREFETCH


def _size(w: Words, operands: Operands) -> str:
    size, given = operands[2], operands[3] if len(operands) > 3 + bool(w["hint"]) else None
    assert isinstance(size, Imm)
    register = given.reg if isinstance(given, Negated) else given
    if isinstance(register, Reg) and register.type not in (
        ("pred",) if register is not given else ("pred", "b32", "u32", "s32")
    ):
        return f"'{register.name}' is neither bytes of the source as .u32 nor a predicate"
    if size.value not in (4, 8, 16) or (w["cache"] == "cg" and size.value != 16):
        return f"copies of {size.value} bytes are not possible"
    return (
        f"the source is at most {size.value} bytes"
        if isinstance(given, Imm) and not 0 <= given.value <= size.value
        else ""
    )


row("cp.async",
    "cache=ca|cg to=shared|shared::cta from=global " + PREFETCH + " " + HINT, "[to] [from] # X? S:b64@hint", _size)  # fmt: skip
row("cp.async.commit_group cp.async.bulk.commit_group", "", "")
row("cp.async.wait_all", "", "", waits=True)
row("cp.async.wait_group", "", "#", waits=True)
row("cp.async.bulk.wait_group", "read?", "#", waits=True)
row("cp.async.mbarrier.arrive", "noinc? space=shared|shared::cta? type=b64", "[~space]")

_DONE = " done=mbarrier::complete_tx::bytes|bulk_group "
_MANY = "multicast=multicast::cluster? "


def _way(w: Words, operands: Operands) -> str:
    """Check the completion: a bulk group for copies out of shared memory, a barrier for copies into it."""
    out = w["to"] == "global"
    if w["from"] != ("shared::cta" if out else "global") and w["to"] != "shared::cluster":
        return f"no copies from .{w['from']} to .{w['to']}"
    if (w["done"] == "bulk_group") != out:
        return f".{w['done']} does not go with .{w['to']}"
    return ""


def _extras(w: Words, operands: Operands) -> str:
    if w["multicast"] and (w["to"], w["from"]) != ("shared::cluster", "global"):
        return "multicast is from .global to .shared::cluster"
    return ".L2::cache_hint needs global memory" if w["hint"] and "global" not in (w["to"], w["from"]) else ""


_MOST = (1 << 20) - 16  # bytes of a bulk copy: an mbarrier counts at most 2^20 - 1 (PTX ISA 9.7.13.15.5)


def _multiple_of_16(w: Words, operands: Operands) -> str:
    size = operands[1 if w.get("level") else 2]
    if not isinstance(size, Imm):
        return ""
    if size.value % 16:
        return "the size is a multiple of 16"
    return "" if 0 <= size.value <= _MOST else f"a size of {size.value} bytes is not in 0 to {_MOST}"


row("cp.async.bulk",
    "to=shared::cluster|shared::cta|global from=global|shared::cta" + _DONE + _MANY + HINT,
    "[to] [from] S:u32 [to]@to!=global S:b16@multicast S:b64@hint", _way, _extras, _multiple_of_16)  # fmt: skip
row("cp.async.bulk.prefetch", "level=L2 from=global " + HINT, "[from] S:u32 S:b64@hint", _multiple_of_16)

_OUT = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16"), "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"), "inc": ("u32",), "dec": ("u32",),
    "and": ("b32", "b64"), "or": ("b32", "b64"), "xor": ("b32", "b64"),
}  # fmt: skip
_PEER = {
    "add": ("u32", "s32", "u64"), "min": ("u32", "s32"), "max": ("u32", "s32"), "inc": ("u32",), "dec": ("u32",),
    "and": ("b32",), "or": ("b32",), "xor": ("b32",),
}  # fmt: skip


def _reduces(w: Words, operands: Operands) -> str:
    types = (_OUT if w["to"] == "global" else _PEER)[w["op"]]
    if w["type"] not in types:
        return f".{w['op']} takes {', '.join('.' + t for t in types)}"
    if bool(w["noftz"]) != (w["op"] == "add" and w["type"] in ("f16", "bf16")):
        return ".noftz belongs to .add of .f16 and .bf16"
    return ""


_OPERATION = "op=add|min|max|inc|dec|and|or|xor "
row("cp.reduce.async.bulk",
    "to=global|shared::cluster from=shared::cta" + _DONE + _OPERATION + "noftz? " + HINT
    + " type=b32|b64|u32|s32|u64|s64|f16|bf16|f32|f64",
    "[to] [from] S:u32 [to]@to!=global S:b64@hint", _way, _reduces,
    lambda w, o: ".L2::cache_hint needs global memory" if w["hint"] and w["to"] != "global" else "", _multiple_of_16)  # fmt: skip


_ROWS = 4  # rows that a gather or scatter names


def _rank(w: Words, operands: Operands) -> str:
    tensor = next(o for o in operands if isinstance(o, Mem) and o.coords is not None)
    given, wanted = (
        len(tensor.coords or ()),
        1 + _ROWS if w["mode"] in ("tile::gather4", "tile::scatter4") else int(w["dim"][0]),
    )
    return "" if given == wanted else f".{w['mode'] or w['dim']} wants {wanted} coordinates, {given} given"


def _mode(w: Words, operands: Operands) -> str:
    """Check that a mode goes with the dimensions and the direction of the copy.

    The modes im2col want three dimensions or more. Loads take an offset for each dimension but the first and the last.
    """
    dims = int(w["dim"][0])
    if w["mode"].startswith("im2col") and dims < 3:
        return f".{w['mode']} does not go with .{w['dim']}"
    if "op" in w and "::" in w["mode"]:
        return f"a reduction with .{w['mode']} is not supported"  # ptxas takes it, but the ISA does not have it
    if "::" in w["mode"] and dims != 2:
        return f".{w['mode']} does not go with .{w['dim']}"
    if (w["mode"] == "tile::gather4") == (w.get("to") == "global") and "::" in w["mode"]:
        return f".{w['mode']} does not go with .{w['to']}"
    if ((w["mode"] == "im2col") and w.get("to") == "global") or (w["mode"] == "im2col_no_offs" and w["to"] != "global"):
        return f".{w['mode']} does not go with .{w['to']}"
    given = next((o for o in operands if isinstance(o, Vec)), None)
    if given is not None and (len(given.items) != dims - 2 or None in given.items):
        return f".{w['dim']} wants {dims - 2} offsets"
    return ""


_DIM = "dim=1d|2d|3d|4d|5d "
row("cp.async.bulk.tensor",
    _DIM + "to=shared::cluster|shared::cta|global from=global|shared::cta "
    "mode=tile|tile::gather4|tile::scatter4|im2col|im2col_no_offs?"
    + _DONE + _MANY + "group=cta_group::1|cta_group::2? " + HINT,
    "[to]@to!=global [/global,{}] [to]@to!=global [from]@to=global {}:b16@mode=im2col S:b16@multicast S:b64@hint",
    _way, _extras, lambda w, o: "TMA copies are to or from global memory" if "global" not in (w["to"], w["from"]) else "",
    _rank, _mode, lambda w, o: f".{w['group']} is of loads" if w["group"] and w["to"] == "global" else "")  # fmt: skip
row("cp.reduce.async.bulk.tensor",
    _DIM + "to=global from=shared::cta mode=tile|tile::scatter4|im2col_no_offs? " + _OPERATION + "done=bulk_group " + HINT,
    "[/global,{}] [from] S:b64@hint", _rank, _mode)  # fmt: skip
row("cp.async.bulk.prefetch.tensor",
    _DIM + "level=L2 from=global mode=tile|tile::gather4|im2col? " + HINT, "[/global,{}] {}:b16@mode=im2col S:b64@hint",
    _rank, _mode)  # fmt: skip

_FIELDS = {
    "global_address": "b64", "global_stride": "b64", "rank": "b32", "box_dim": "b32", "global_dim": "b32",
    "element_stride": "b32", "elemtype": "b32", "interleave_layout": "b32", "swizzle_mode": "b32", "fill_mode": "b32",
    "swizzle_atomicity": "b32",
}  # fmt: skip
_OF_A_DIMENSION = ("box_dim", "global_dim", "global_stride", "element_stride")
_CHOICES = {"elemtype": 12, "interleave_layout": 2, "swizzle_mode": 3, "fill_mode": 1, "swizzle_atomicity": 3}


def _replaces(w: Words, operands: Operands) -> str:
    """Check a field's operands: its type, a dimension if the field has one, and a literal if the field is a choice."""
    field, value = w["field"], operands[-1]
    if w["type"] != _FIELDS[field]:
        return f".{field} is .{_FIELDS[field]}"
    if (len(operands) == 3) != (field in _OF_A_DIMENSION):
        return f".{field} takes {'a dimension and a value' if field in _OF_A_DIMENSION else 'a value'}"
    if len(operands) == 3 and not (isinstance(operands[1], Imm) and 0 <= operands[1].value <= 4):
        return "the dimension is a literal from 0 to 4"
    if len(operands) == 3 and isinstance(value, Reg) and value.type.startswith("f"):  # assemblers subtract 1 from it
        return f".{field} is an integer, and '{value.name}' is .{value.type}"
    if field in _CHOICES and not (isinstance(value, Imm) and 0 <= value.value <= _CHOICES[field]):
        return f".{field} takes a literal from 0 to {_CHOICES[field]}"
    if field == "swizzle_atomicity" and value != Imm(0):
        return "a swizzle of larger parts than 16 bytes is not supported"
    return ""


row("tensormap.replace",
    "mode=tile field=" + "|".join(_FIELDS) + " space=global|shared::cta? bits=b1024 type=b32|b64",
    "[space] #? S", _replaces, since=90)  # fmt: skip


def _whole_map(w: Words, operands: Operands) -> str:
    size = operands[2]
    return "" if isinstance(size, Imm) and size.value == 128 else "the size is 128"


row("tensormap.cp_fenceproxy",
    "to=global from=shared::cta proxy=tensormap::generic sem=release scope=cta|cluster|gpu|sys sync aligned",
    "[to] [from] #", _whole_map, waits=True, since=90)  # fmt: skip
