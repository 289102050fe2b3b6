"""Rows of loads, stores, atomics, cache control and addresses (PTX ISA 9.7.9 and 9.7.13)."""

from __future__ import annotations

from ..ptx.module import TYPE_BYTES, Imm, Reg, Sink, Sym, Vec
from .rows import VECTORS, Operands, Words, row

SCOPE = "scope=cta|cluster|gpu|sys?"
_SCALARS = "b8|b16|b32|b64|b128|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64"
_PRIORITIES = "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate"
_L2 = "L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged"
PREFETCH = "prefetch=L2::64B|L2::128B|L2::256B?"
HINT = "hint=L2::cache_hint?"
_HALVES = ("f16", "bf16", "f16x2", "bf16x2")


def scoped(w: Words, operands: Operands) -> str:
    """Check that an order has a scope, and a scope an order."""
    if w["order"] in ("relaxed", "acquire", "release") and not w["scope"]:
        return f".{w['order']} needs a scope"
    if w["scope"] and w["order"] not in ("relaxed", "acquire", "release"):
        return f".{w['scope']} needs an order"
    return ""


def _strong_space(w: Words, operands: Operands) -> str:
    shared_or_global = w["space"] in ("", "global") or w["space"].startswith("shared")
    return "" if w["order"] in ("", "weak") or shared_or_global else f".{w['order']} does not go with .{w['space']}"


def _mmio(w: Words, operands: Operands) -> str:
    if not w["mmio"]:
        return ""
    fits = w["order"] == "relaxed" and w["scope"] == "sys" and w["space"] in ("", "global")
    return (
        ""
        if fits and not w["vec"] and not w["l1"] and not w["hint"]
        else ".mmio wants .relaxed.sys, global, one element"
    )


def _caches(w: Words, operands: Operands) -> str:
    """Check that cache operators are on weak accesses, and hints on global memory."""
    if w["cache"] and (w["l1"] or w["order"] not in ("", "weak")):
        return f".{w['cache']} does not go with .{w['l1'] or w['order']}"
    if w["order"] == "volatile" and (w["l1"] or w["hint"]):
        return f".volatile does not go with .{w['l1'] or w['hint']}"
    if w["space"] not in ("", "global") and (w["l1"] or w["hint"] or w.get("prefetch")):
        return f".{w['l1'] or w['hint'] or w['prefetch']} needs global memory"
    return ""


def _read_only(w: Words, operands: Operands) -> str:
    if not w["nc"]:
        return ""
    if w["space"] != "global":
        return ".nc needs .global"
    return f".{w['order'] or w['cache']} does not go with .nc" if w["order"] or w["cache"] in ("lu", "cv") else ""


def width(w: Words, operands: Operands) -> str:
    """Check that an access has at most 16 bytes."""
    size = TYPE_BYTES[w["type"]] * VECTORS[w["vec"]]
    return "" if size <= 16 else f"{size} bytes, at most 16 are possible"


def _waits(w: Words) -> bool:
    return w["order"] not in ("", "weak")


row("ld",
    "order=weak|volatile|relaxed|acquire? mmio? " + SCOPE + " "
    "space=const|global|local|param|param::entry|param::func|shared|shared::cta|shared::cluster? "
    "nc? cache=ca|cg|cs|lu|cv? l1=" + _PRIORITIES + "? " + PREFETCH + " " + HINT + " vec=v2|v4? type=" + _SCALARS,
    "D! [space] S:b64@hint",
    scoped, _strong_space, _mmio, _caches, _read_only, width, waits=_waits)  # fmt: skip


def _alignment(w: Words, operands: Operands) -> str:
    align = operands[2] if len(operands) > 2 else Imm(8)
    assert isinstance(align, Imm)
    fits = 0 < align.value <= 1 << 23 and not align.value & (align.value - 1)
    return "" if fits else f"an alignment of {align.value} is no power of two up to 2^23"


def _pointer(w: Words, operands: Operands) -> str:
    return "" if isinstance(operands[0], Reg) else "a register is wanted"


row("alloca", "type=u32|u64", "D! S #?", _alignment)
row("stacksave", "type=u32|u64", "D!")
row("stackrestore", "type=u32|u64", "R", _pointer)
row("ldu", "space=global? vec=v2|v4? type=" + _SCALARS, "D! [space]", width)
row("st",
    "order=weak|volatile|relaxed|release? mmio? " + SCOPE + " "
    "space=global|local|param|param::func|shared|shared::cta|shared::cluster? "
    "cache=wb|cg|cs|wt? l1=" + _PRIORITIES + "? " + HINT + " vec=v2|v4? type=" + _SCALARS,
    "[space] S S:b64@hint",
    scoped, _strong_space, _mmio, _caches, width)  # fmt: skip


def _completes(w: Words, operands: Operands) -> str:
    if len(operands) == 3 and (w["done"] or w["space"] == "shared::cta"):
        return ""
    return "an asynchronous access that completes on no mbarrier is not supported"


row("st.async",
    "weak? space=shared::cluster|shared::cta? done=mbarrier::complete_tx::bytes? vec=v2|v4? "
    "type=b32|u32|s32|f32|b64|u64|s64|f64",
    "[shared]@space [any]@space= S [shared]@space [any]?@space=", _completes, width)  # fmt: skip


# --- atomics ------------------------------------------------------------------------------------------

_TYPES = {
    "add": ("u32", "s32", "u64", "f32", "f64", *_HALVES),
    "min": ("u32", "s32", "u64", "s64", *_HALVES), "max": ("u32", "s32", "u64", "s64", *_HALVES),
    "and": ("b32", "b64"), "or": ("b32", "b64"), "xor": ("b32", "b64"),
    "exch": ("b32", "b64", "b128"), "cas": ("b16", "b32", "b64", "b128"), "inc": ("u32",), "dec": ("u32",),
}  # fmt: skip
_VECTORS = {t: ("v2", "v4", "v8") if t in ("f16", "bf16") else ("v2", "v4") for t in ("f32", *_HALVES)}


def _operation(w: Words, operands: Operands) -> str:
    if w["type"] not in _TYPES[w["op"]]:
        return f".{w['op']} takes {', '.join('.' + t for t in _TYPES[w['op']])}"
    if bool(w["noftz"]) != (w["type"] in _HALVES):
        return f".{w['type']} is written {'without' if w['noftz'] else 'with'} .noftz"
    return ""


def _vector(w: Words, operands: Operands) -> str:
    if not w["vec"]:
        return f".{w['op']} of .{w['type']} needs a vector" if w["op"] != "add" and w["type"] in _HALVES else ""
    if w["vec"] not in _VECTORS.get(w["type"], ()) or w["op"] not in ("add", "min", "max"):
        return f".{w['vec']} does not go with .{w['type']} and .{w['op']}"
    return "" if w["space"] in ("", "global") else "a vector needs global memory"


def _value(w: Words, operands: Operands) -> str:
    if not w["vec"] and any(isinstance(operand, Vec) for operand in operands):
        return "braces belong to a vector"
    value = operands[-1 - bool(w.get("hint"))]
    if isinstance(value, Imm) and (w["type"] in _HALVES or (w["type"] == "b128" and value.kind != "int")):
        return f"a literal where a register of .{w['type']} is wanted"
    return ""


def _hint(w: Words, operands: Operands) -> str:
    if not w["hint"]:
        return ""
    if w["op"] == "cas":
        return ".L2::cache_hint does not go with .cas"
    return "" if w["space"] in ("", "global") else ".L2::cache_hint needs global memory"


_ATOMIC = (
    " space=global|shared|shared::cta|shared::cluster? op={} noftz? " + HINT + " vec=v2|v4|v8? "
    "type=b16|b32|b64|b128|u32|u64|s32|s64|f16|f16x2|bf16|bf16x2|f32|f64"
)
row("atom",
    "order=relaxed|acquire|release|acq_rel? " + SCOPE + _ATOMIC.format("add|min|max|and|or|xor|exch|cas|inc|dec"),
    "D [space] S S@op=cas S:b64@hint", _operation, _vector, _value, _hint, waits=True)  # fmt: skip
row("red",
    "order=relaxed|release? " + SCOPE + _ATOMIC.format("add|min|max|and|or|xor|inc|dec"),
    "[space] S S:b64@hint", _operation, _vector, _value, _hint)  # fmt: skip


# --- multicast addresses ------------------------------------------------------------------------------

_JOINED = " space=global? "
_JOINED_TYPES = " vec=v2|v4|v8? type=b32|b64|u32|u64|s32|s64|f16|f16x2|bf16|bf16x2|f32|f64"
_JOINED_VECTORS = {
    **dict.fromkeys(("f16", "bf16"), ("v2", "v4", "v8")),
    **dict.fromkeys(("f16x2", "bf16x2", "f32"), ("", "v2", "v4")),
}
_REDUCED = {
    "add": ("u32", "s32", "u64", "f32", "f64", *_HALVES),
    "min": ("u32", "s32", "u64", "s64", *_HALVES), "max": ("u32", "s32", "u64", "s64", *_HALVES),
    "and": ("b32", "b64"), "or": ("b32", "b64"), "xor": ("b32", "b64"),
}  # fmt: skip


def _joined(w: Words, operands: Operands) -> str:
    if w["vec"] not in _JOINED_VECTORS.get(w["type"], ("",)):
        return f".{w['type']} goes with {', '.join('.' + v for v in _JOINED_VECTORS.get(w['type'], ()) if v) or 'no vector'}"
    if not w.get("op"):
        return ""
    if w["type"] not in _REDUCED[w["op"]]:
        return f".{w['op']} takes {', '.join('.' + t for t in _REDUCED[w['op']])}"
    if w.get("wide") and (w["op"] != "add" or w["type"] not in _HALVES):
        return ".acc::f32 goes with .add of 16-bit floats"
    return ""


def _single_halves(w: Words, operands: Operands) -> str:
    alone = w["type"] in ("f16x2", "bf16x2") and not w["vec"] and w["op"] != "add"
    return f".{w['op']} of .{w['type']} needs a vector" if alone else ""


def _braced(w: Words, operands: Operands) -> str:
    """As `_value`, but for types that have vectors braces may hold one register."""
    vectors = [o for o in operands if isinstance(o, Vec)]
    if not w["vec"] and w["type"] in ("f32", "f16x2", "bf16x2") and vectors:
        (item, *others) = vectors[0].items
        right = isinstance(item, Reg) or (isinstance(item, Imm) and w["type"] == "f32")
        return "" if right and not others else f"braces hold one register of .{w['type']}"
    return _value(w, operands)


row("multimem.ld_reduce",
    "order=weak|relaxed|acquire? " + SCOPE + _JOINED + "op=add|min|max|and|or|xor wide=acc::f32?" + _JOINED_TYPES,
    "D! [/global]", scoped, width, _joined, _braced, waits=True)  # fmt: skip
row("multimem.st",
    "order=weak|relaxed|release? " + SCOPE + _JOINED + _JOINED_TYPES,
    "[/global] S", scoped, width, _joined, _braced)  # fmt: skip
row("multimem.red",
    "order=relaxed|release? " + SCOPE + _JOINED + "op=add|min|max|and|or|xor" + _JOINED_TYPES,
    "[/global] S", scoped, width, _joined, _single_halves, _value)  # fmt: skip

_REMOTE = {
    "add": ("u32", "s32", "u64", "s64"), "min": ("u32", "s32"), "max": ("u32", "s32"), "inc": ("u32",), "dec": ("u32",),
    "and": ("b32",), "or": ("b32",), "xor": ("b32",),
}  # fmt: skip


def _remote(w: Words, operands: Operands) -> str:
    return "" if w["type"] in _REMOTE[w["op"]] else f".{w['op']} takes {', '.join('.' + t for t in _REMOTE[w['op']])}"


row("red.async",
    "order=relaxed scope=cluster space=shared::cluster? done=mbarrier::complete_tx::bytes "
    "op=add|min|max|and|or|xor|inc|dec type=b32|u32|s32|u64|s64",
    "[shared]@space [any]@space= S [shared]@space [any]?@space=", _remote, _completes)  # fmt: skip


# --- caches -------------------------------------------------------------------------------------------


def _level(w: Words, operands: Operands) -> str:
    if (w["level"] == "tensormap" and w["space"] in ("global", "local")) or (
        w["level"] != "tensormap" and w["space"] in ("const", "param")
    ):
        return f".{w['level']} does not go with .{w['space']}"
    return "a priority needs global memory" if "evict" in w["level"] and w["space"] == "local" else ""


def _line(w: Words, operands: Operands) -> str:
    size = operands[1]
    return "" if isinstance(size, Imm) and size.value == 128 else "the size is 128"


def _fraction(w: Words, operands: Operands) -> str:
    value = operands[1] if len(operands) > 1 else None
    return "the fraction is a number of .f32" if isinstance(value, Imm) and value.kind == "int" else ""


def _in_range(w: Words, operands: Operands) -> str:
    value = operands[1] if len(operands) > 1 else None
    if isinstance(value, Imm) and value.kind == "f32" and not 0 < value.value <= 0x3F800000:
        return "the fraction is greater than 0 and at most 1"
    return ""


def _part(w: Words, operands: Operands) -> str:
    part, whole = operands[2:]
    fits = not isinstance(part, Imm) or not isinstance(whole, Imm) or part.value % (1 << 32) <= whole.value % (1 << 32)
    return "" if fits else "the primary size is at most the total"


row(
    "prefetch",
    "space=global|local|const|param? level=L1|L2|L2::evict_last|L2::evict_normal|tensormap",
    "[space]",
    _level,
)
row("prefetchu", "level=L1", "[/global]")
row("applypriority", "space=global? level=L2::evict_normal", "[space] #", _line)
row("discard", "space=global? level=L2", "[space] #", _line)
_POLICY = "primary=" + _L2 + " secondary=L2::evict_first|L2::evict_unchanged? type=b64"
row("createpolicy.fractional", _POLICY, "D! S:f32?", _fraction, _in_range)
row("createpolicy.range", "space=global? " + _POLICY, "D! [space] S:u32 S:u32", _part)
row("createpolicy.cvt", "level=L2 type=b64", "D! S")


# --- addresses ----------------------------------------------------------------------------------------


def _no_variable(w: Words, operands: Operands) -> str:
    return "a register is wanted" if isinstance(operands[-1], Sym) else ""


_WINDOWS = "space=const|global|local|shared|shared::cta|shared::cluster|param|param::entry"
row("cvta", _WINDOWS + " type=u64", "D! R/space")
row("cvta.to", _WINDOWS + " type=u64", "D! R", _no_variable)
row("isspacep", _WINDOWS, "D!:pred R:b64", _no_variable)
row("mapa", "space=shared::cluster? type=u32|u64", "D! R/shared S:u32", _no_variable)
row("getctarank", "space=shared::cluster? type=u32|u64", "D!:u32 R/shared")


# --- mbarriers ----------------------------------------------------------------------------------------


def _sink(w: Words, operands: Operands) -> str:
    far = w["space"] == "shared::cluster" and not isinstance(operands[0], Sink)
    return "'_' is the destination where the barrier may be another block's" if far else ""


def _no_complete(w: Words, operands: Operands) -> str:
    if not w["noComplete"]:
        return ""
    if len(operands) < 3:
        return ".noComplete needs a count"
    fits = w["order"] != "relaxed" and "cluster" not in w["scope"] + w["space"]
    return "" if fits else ".noComplete goes with .release.cta alone"


def _arrivals(w: Words, operands: Operands) -> str:
    count = operands[2] if len(operands) > 2 else None
    return "the count is at least 1" if isinstance(count, Imm) and count.value < 1 else ""


def _parity(w: Words, operands: Operands) -> str:
    value = operands[2]
    return "a parity is 0 or 1" if isinstance(value, Imm) and value.value not in (0, 1) else ""


_OWN = "space=shared|shared::cta? type=b64"
_ANY = "space=shared|shared::cta|shared::cluster? type=b64"
_NEAR = "scope=cta|cluster? "
row("mbarrier.init", _OWN, "[space/shared] S:u32")
row("mbarrier.inval", _OWN, "[space/shared]")
row("mbarrier.expect_tx mbarrier.complete_tx", "order=relaxed? " + _NEAR + _ANY, "[space/shared] S:u32", scoped)
row("mbarrier.arrive mbarrier.arrive_drop", "noComplete? order=release|relaxed? " + _NEAR + _ANY, "D [space/shared] S:u32?",
    scoped, _sink, _no_complete, _arrivals)  # fmt: skip
row("mbarrier.arrive.expect_tx mbarrier.arrive_drop.expect_tx", "order=release|relaxed? " + _NEAR + _ANY,
    "D [space/shared] S:u32", scoped, _sink)  # fmt: skip
for _suffix, _type, _rules in (("", "b64", (scoped,)), (".parity", "u32", (scoped, _parity))):
    _WAIT = "order=acquire|relaxed? " + _NEAR + _OWN
    row("mbarrier.test_wait" + _suffix, _WAIT, f"D!:pred [space/shared] S:{_type}", *_rules, waits=True)
    row("mbarrier.try_wait" + _suffix, _WAIT, f"D!:pred [space/shared] S:{_type} S:u32?", *_rules, waits=True)
row("mbarrier.pending_count", "type=b64", "D!:u32 S")
