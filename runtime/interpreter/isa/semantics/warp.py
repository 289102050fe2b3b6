"""Instructions that look across the lanes of a warp (PTX ISA 9.7.9.6 to 9.7.9.8, 9.7.13): shfl,
vote, match, redux.

Arrays are (warps, 32). `active` says which lanes execute; the member mask is the last operand, as
in PTX, and may differ between lanes of a warp (lanes that execute side by side with masks of their
own). Operands other than the first may be of size 1, for an immediate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from .errors import BadModifier, UnknownInstruction
from .forms import Illegal, Opcode, expand_slots, parse_lines
from .minmax import extreme
from .types import Array

WarpFunction = Callable[..., tuple[Array, ...]]

_LANE = np.arange(32, dtype=np.int64)
_BIT = np.uint32(1) << np.arange(32, dtype=np.uint32)
_ALL = np.uint32(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class WarpOp:
    """One warp-wide instruction form: `op(active, *operands)`. Types as in `Alu`."""

    opcode: Opcode
    operands: tuple[str, ...]
    results: tuple[str, ...]
    function: WarpFunction

    def __call__(self, active: Array, *arrays: Array) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            return self.function(active, *arrays)


# --- participants --------------------------------------------------------------------------------


def participants(active: Array, mask: Array) -> Array:
    """Return which lanes take part.

    The shape is (warps, 1, 32) if each warp has one mask, else (warps, 32, 32), lane by lane.
    """
    if mask.size == 1:
        common = np.broadcast_to(mask.reshape(1, 1), (active.shape[0], 1))
    else:
        first = np.argmax(active, axis=1)[:, None]
        common = np.take_along_axis(np.broadcast_to(mask, active.shape), first, axis=1)
        if np.count_nonzero((mask != common) & active):
            return active[:, None, :] & ((mask[:, :, None] & _BIT) != 0)
    return active[:, None, :] & ((common[:, :, None] & _BIT) != 0)


def _spread(per_group: Array, active: Array) -> Array:
    """Broadcast results (warps, 1) or (warps, 32) to every lane."""
    return np.ascontiguousarray(np.broadcast_to(per_group, active.shape))


def _mask_of(flags: Array) -> Array:
    """Return booleans over the last axis of 32 lanes as one uint32."""
    return np.packbits(flags, axis=-1, bitorder="little").view(np.uint32)[..., 0]


# --- shfl ----------------------------------------------------------------------------------------


def source_lane(mode: str, b: Any, c: Any) -> tuple[Any, Any]:
    """Return the lane that each lane reads, and whether it is in range (PTX ISA, shfl.sync, pseudocode)."""
    lane = _LANE
    delta, clamp = (b & 31), (c & 31)
    segment = (c >> 8) & 31
    last = (lane & segment) | (clamp & ~segment & 31)
    first = lane & segment
    if mode == "up":
        source = lane - delta
        inside = source >= last
    elif mode == "down":
        source = lane + delta
        inside = source <= last
    elif mode == "bfly":
        source = lane ^ delta
        inside = source <= last
    else:
        source = first | (delta & ~segment & 31)
        inside = source <= last
    return np.where(inside, source, lane), inside


@cache
def _uniform_source(mode: str, b: int, c: int) -> tuple[Array, Array]:
    return source_lane(mode, b, c)


def _shfl(mode: str, pair: bool) -> WarpFunction:
    def fn(active: Array, a: Array, b: Array, c: Array, _mask: Array) -> tuple[Array, ...]:
        if b.size == 1 and c.size == 1:
            source, inside = _uniform_source(mode, int(b.reshape(-1)[0]), int(c.reshape(-1)[0]))
            value = np.take(np.broadcast_to(a, active.shape), source, axis=-1)
            inside = np.broadcast_to(inside, active.shape)
        else:
            lanes = np.broadcast_to(b.astype(np.int64), active.shape)
            source, inside = source_lane(mode, lanes, np.broadcast_to(c.astype(np.int64), active.shape))
            value = np.take_along_axis(np.broadcast_to(a, active.shape), source, axis=-1)
        return (value, inside) if pair else (value,)

    return fn


# --- vote, activemask, elect ---------------------------------------------------------------------


def _vote(mode: str) -> WarpFunction:
    def fn(active: Array, a: Array, mask: Array) -> tuple[Array, ...]:
        members = participants(active, mask)
        value = np.broadcast_to(a, active.shape)[:, None, :]
        if mode == "ballot":
            return (_spread(_mask_of(value & members), active),)
        every: Array = np.all(value | ~members, axis=-1)
        if mode == "all":
            return (_spread(every, active),)
        some: Array = np.any(value & members, axis=-1)
        return (_spread(some if mode == "any" else every | ~some, active),)

    return fn


def _activemask(active: Array) -> tuple[Array, ...]:
    return (_spread(_mask_of(active)[:, None], active),)


def _elect(active: Array, mask: Array) -> tuple[Array, ...]:
    """Elect the lowest member: d is its lane, p is true there."""
    leader = np.argmax(participants(active, mask), axis=-1)
    return _spread(leader.astype(np.uint32), active), _spread(leader, active) == _LANE


# --- match, redux --------------------------------------------------------------------------------


def _match_any(active: Array, a: Array, mask: Array) -> tuple[Array, ...]:
    value = np.broadcast_to(a, active.shape)
    same = value[:, :, None] == value[:, None, :]
    return (_mask_of(same & participants(active, mask)),)


def _match_all(pair: bool) -> WarpFunction:
    def fn(active: Array, a: Array, mask: Array) -> tuple[Array, ...]:
        value = np.broadcast_to(a, active.shape)
        members = participants(active, mask)
        same = value[:, :, None] == value[:, None, :]
        alike: Array = np.all(same | ~members, axis=-1)
        result = np.where(alike, _spread(_mask_of(members), active), np.uint32(0))
        return (result, alike) if pair else (result,)

    return fn


_REDUCTIONS: dict[tuple[str, str], tuple[Any, Any, Any]] = {
    # operation and type: ufunc, value dtype, identity
    ("add", "u32"): (np.add, np.uint32, 0),
    ("add", "s32"): (np.add, np.uint32, 0),
    ("min", "u32"): (np.minimum, np.uint32, 2**32 - 1),
    ("max", "u32"): (np.maximum, np.uint32, 0),
    ("min", "s32"): (np.minimum, np.int32, 2**31 - 1),
    ("max", "s32"): (np.maximum, np.int32, -(2**31)),
    ("and", "b32"): (np.bitwise_and, np.uint32, 2**32 - 1),
    ("or", "b32"): (np.bitwise_or, np.uint32, 0),
    ("xor", "b32"): (np.bitwise_xor, np.uint32, 0),
}


def _redux(operation: str, type_: str) -> WarpFunction:
    ufunc, dtype, identity = _REDUCTIONS[operation, type_]
    neutral = dtype(identity)

    def fn(active: Array, a: Array, mask: Array) -> tuple[Array, ...]:
        members = participants(active, mask)
        value = np.broadcast_to(a, active.shape).view(dtype)[:, None, :]
        total = ufunc.reduce(np.where(members, value, neutral), axis=-1, dtype=dtype)
        return (_spread(total.view(np.uint32), active),)

    return fn


def _redux_f32(operation: str, magnitude: bool, nan: bool) -> WarpFunction:
    """Return the function of redux for floats, min or max. With `nan` a NaN operand wins, else it loses to numbers."""
    pair = extreme(operation, "f32", nan)
    neutral = np.uint32(0x7F800000 if operation == "min" else 0xFF800000) if nan else np.uint32(0x7FFFFFFF)

    def fn(active: Array, a: Array, mask: Array) -> tuple[Array, ...]:
        members = participants(active, mask)
        value = np.broadcast_to(a, active.shape).view(np.uint32)
        if magnitude:
            value = value & np.uint32(0x7FFFFFFF)
        total = np.where(members, value[:, None, :], neutral)
        while total.shape[-1] > 1:
            total = pair(total[..., ::2], total[..., 1::2])
        return (_spread(total[..., 0], active),)

    return fn


# --- the forms -----------------------------------------------------------------------------------

Shape = tuple[tuple[str, ...], tuple[str, ...], WarpFunction]


def _build(words: list[str], pair: bool) -> Shape:
    head = words[0]
    if head == "shfl":
        results = ("b32", "pred") if pair else ("b32",)
        return ("b32", "b32", "b32", "b32"), results, _shfl(words[2], pair)
    if head == "match" and words[1] == "all":
        type_ = words[3]
        return (type_, "b32"), ("b32", "pred") if pair else ("b32",), _match_all(pair)
    if head == "elect":
        if not pair:
            raise Illegal("it takes a destination d|p")
        return ("b32",), ("b32", "pred"), _elect
    if pair:
        raise Illegal("it takes one destination")
    if head == "vote":
        return ("pred", "b32"), (words[3],), _vote(words[2])
    if head == "activemask":
        return (), ("b32",), _activemask
    if head == "match":
        return (words[3], "b32"), ("b32",), _match_any
    if words[-1] == "f32":
        return ("f32", "b32"), ("f32",), _redux_f32(words[2], bool(words[3]), bool(words[4]))
    if (words[2], words[3]) not in _REDUCTIONS:
        raise Illegal("and, or and xor are for .b32; add, min and max for .u32 and .s32")
    return (words[3], "b32"), (words[3],), _redux(words[2], words[3])


#: The grammar of each instruction.
LINES: dict[str, tuple[str, ...]] = {
    "shfl": ("sync up|down|bfly|idx b32",),
    "vote": ("sync all|any|uni pred", "sync ballot b32"),
    "match": ("any|all sync b32|b64",),
    "redux": ("sync add|min|max|and|or|xor u32|s32|b32",),
    "activemask": ("b32",),
    "elect": ("sync",),
}
#: Forms that only sm_100a and similar targets have.
_LATER = {"redux": ("sync min|max abs? NaN? f32",)}


@cache
def compile_warp(opcode: Opcode, pair: bool = False) -> WarpOp:
    """Return the function of a warp-wide instruction; `pair` asks for a destination `d|p`.

    Raises `UnknownInstruction` or `BadModifier`.
    """
    lines = LINES.get(opcode[0])
    if lines is None:
        raise UnknownInstruction(opcode)
    found = parse_lines(lines, opcode[1:]) or parse_lines(_LATER.get(opcode[0], ()), opcode[1:])
    if found is not None:
        try:
            operands, results, function = _build([opcode[0], *found[1]], pair)
        except Illegal as error:
            raise BadModifier(opcode, str(error)) from None
        return WarpOp(opcode, operands, results, function)
    raise BadModifier(opcode, "unknown modifiers")


def forms() -> list[tuple[Opcode, bool]]:
    """Return every supported form, and whether its destination is `d|p`."""
    found: list[tuple[Opcode, bool]] = []
    for head, lines in LINES.items():
        for line in lines:
            for words in expand_slots(line):
                for pair in (False, True):
                    try:
                        _build([head, *words], pair)
                    except Illegal:
                        continue
                    found.append(((head, *words), pair))
    return found
