"""Instructions by which the lanes of a warp exchange values (PTX ISA 9.7.9.6 and 9.7.13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .barriers import warp_together
from .frame import STORAGE
from .group import Group
from .kinds import HazardKind
from .program import Compiler, Op, builds
from .ptx import Instruction, Pair

Array = npt.NDArray[Any]
_LANES = np.arange(32)


def _wide(c: Group, value: Array) -> Array:
    return np.broadcast_to(value, (c.n, 32))


def _member(c: Group, member: Array, ins: Instruction) -> None:
    """Each active lane must be in its own membermask."""
    bits = (_wide(c, member) >> _LANES.astype(np.uint32)) & np.uint32(1)
    bad = (bits == 0) & c.active
    if bad.any():
        _, _, who = c.batch.run.reporter.group(c, bad)
        what = "a lane executes a .sync instruction without being in its membermask"
        c.batch.run.reporter.hazard(HazardKind.DIVERGENCE, what, ins, (who,))


@builds("shfl")
def build_shfl(k: Compiler, ins: Instruction) -> Op:
    """shfl.sync.{up,down,bfly,idx}.b32 d[|p], a, b, c, membermask."""
    if ins.opcode[1] != "sync" or len(ins.opcode) != 4 or ins.opcode[3] != "b32":
        raise k.error("only shfl.sync.MODE.b32 is known")
    mode = ins.opcode[2]
    if mode not in ("up", "down", "bfly", "idx"):
        raise k.error(f"unknown mode '.{mode}'")
    dest, a, b, clamp, member = ins.operands
    first, second = (dest.first, dest.second) if isinstance(dest, Pair) else (dest, None)
    write, flag = k.writer(first, "b32"), k.writer(second, "pred")
    read, lane, limit, mask = (k.reader(o, "b32") for o in (a, b, clamp, member))

    def run(c: Group) -> bool:
        members = mask(c)
        if not warp_together(c, members):
            return False
        _member(c, members, ins)
        source, valid = _shuffle_source(mode, lane(c).astype(np.int64), limit(c).astype(np.int64))
        source, valid = _wide(c, source), _wide(c, valid)
        if write is not None:
            write(c, np.take_along_axis(_wide(c, read(c)), source, axis=1))
        if flag is not None:
            flag(c, valid)
        return True

    return run


def _shuffle_source(mode: str, b: Array, clamp: Array) -> tuple[Array, Array]:
    """(source lane, whether it is within the segment) after the pseudocode of the PTX ISA."""
    b = b & 31
    limit, segment = clamp & 31, (clamp >> 8) & 31
    most = (_LANES & segment) | (limit & ~segment & 31)
    least = _LANES & segment
    if mode == "up":
        j = _LANES - b
        valid = j >= most
    elif mode == "down":
        j = _LANES + b
        valid = j <= most
    elif mode == "bfly":
        j = _LANES ^ b
        valid = j <= most
    else:
        j = least | (b & ~segment)
        valid = j <= most
    return np.where(valid, j, _LANES), valid


@builds("vote")
def build_vote(k: Compiler, ins: Instruction) -> Op:
    """vote.sync.{all,any,uni}.pred and vote.sync.ballot.b32."""
    if ins.opcode[1] != "sync":
        raise k.error("only vote.sync is known")
    mode, type_ = ins.opcode[2], ins.opcode[3]
    if (mode, type_) not in {("all", "pred"), ("any", "pred"), ("uni", "pred"), ("ballot", "b32")}:
        raise k.error("unknown mode or type")
    write = k.writer(ins.operands[0], type_)
    read, mask = k.reader(ins.operands[1], "pred"), k.reader(ins.operands[2], "b32")

    def run(c: Group) -> bool:
        members = mask(c)
        if not warp_together(c, members):
            return False
        _member(c, members, ins)
        votes = _bits(_wide(c, read(c)) & c.active)
        here = _bits(c.active)
        part = _wide(c, members) & here[:, None]
        votes = votes[:, None] & part
        if write is not None:
            write(c, _VOTES[mode](votes, part))
        return True

    return run


def _bits(lanes: Array) -> Array:
    """(rows, 32) booleans as (rows,) uint32."""
    return np.packbits(lanes, axis=1, bitorder="little").view("<u4")[:, 0]


_VOTES: dict[str, Callable[[Array, Array], Array]] = {
    "all": lambda votes, part: votes == part,
    "any": lambda votes, part: votes != 0,
    "uni": lambda votes, part: (votes == part) | (votes == 0),
    "ballot": lambda votes, part: votes,
}


@builds("elect")
def build_elect(k: Compiler, ins: Instruction) -> Op:
    """elect.sync d|p, membermask: the lowest lane of the mask leads."""
    dest = ins.operands[0]
    if not isinstance(dest, Pair):
        raise k.error("a destination d|p is wanted")
    write, flag = k.writer(dest.first, "b32"), k.writer(dest.second, "pred")
    mask = k.reader(ins.operands[1], "b32")

    def run(c: Group) -> bool:
        members = mask(c)
        if not warp_together(c, members):
            return False
        _member(c, members, ins)
        part = _wide(c, members) & _bits(c.active)[:, None]
        lowest = part & (~part + np.uint32(1))
        leader = np.log2(np.maximum(lowest, 1)).astype(np.uint32)
        if write is not None:
            write(c, leader)
        if flag is not None:
            flag(c, leader == _LANES)
        return True

    return run


_REDUX: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


@builds("redux")
def build_redux(k: Compiler, ins: Instruction) -> Op:
    """redux.sync.{add,min,max}.{u32,s32} and .{and,or,xor}.b32."""
    _, sync, mode, type_ = (*ins.opcode, "", "", "")[:4]
    types = ("b32",) if mode in ("and", "or", "xor") else ("u32", "s32")
    if sync != "sync" or mode not in _REDUX or type_ not in types or len(ins.opcode) != 4:
        raise k.error("unknown mode or type")
    write = k.writer(ins.operands[0], type_)
    read, mask = k.reader(ins.operands[1], type_), k.reader(ins.operands[2], "b32")
    fn = _REDUX[mode]
    dtype = np.int32 if type_ == "s32" else np.uint32
    neutral = {"add": 0, "or": 0, "xor": 0, "and": 0xFFFFFFFF}.get(mode)
    if neutral is None:
        neutral = int(np.iinfo(dtype).max if mode == "min" else np.iinfo(dtype).min)
    blank = np.array(neutral).astype(dtype)

    def run(c: Group) -> bool:
        members = _wide(c, mask(c))
        if not warp_together(c, members):
            return False
        _member(c, members, ins)
        values = _wide(c, read(c)).view(dtype)
        out = np.zeros((c.n, 32), np.uint32)
        active = c.active
        lead = members[np.arange(c.n), active.argmax(axis=1)]
        if ((members == lead[:, None]) | ~active).all():
            some = np.where(active, values, blank)
            out[...] = fn.reduce(some, axis=1, dtype=dtype).view(np.uint32)[:, None]
        else:
            for one in np.unique(members[active]):
                same = active & (members == one)
                total = fn.reduce(np.where(same, values, blank), axis=1, dtype=dtype)
                np.copyto(out, total.view(np.uint32)[:, None], where=same)
        if write is not None:
            write(c, out)
        return True

    return run


@builds("match")
def build_match(k: Compiler, ins: Instruction) -> Op:
    """match.any.sync and match.all.sync on b32 and b64."""
    _, mode, sync, type_ = (*ins.opcode, "", "", "")[:4]
    if mode not in ("any", "all") or sync != "sync" or type_ not in ("b32", "b64"):
        raise k.error("unknown mode or type")
    dest = ins.operands[0]
    first, second = (dest.first, dest.second) if isinstance(dest, Pair) else (dest, None)
    write, flag = k.writer(first, "b32"), k.writer(second, "pred")
    read, mask = k.reader(ins.operands[1], type_), k.reader(ins.operands[2], "b32")
    dtype = STORAGE[type_]

    def run(c: Group) -> bool:
        members = _wide(c, mask(c))
        if not warp_together(c, members):
            return False
        _member(c, members, ins)
        values = _wide(c, read(c)).astype(dtype)
        part = members & _bits(c.active)[:, None]
        inside = ((part[:, :, None] >> _LANES.astype(np.uint32)) & np.uint32(1)).astype(np.bool_)
        same = (values[:, :, None] == values[:, None, :]) & inside
        found = _bits(same.reshape(-1, 32)).reshape(c.n, 32)
        everyone = found == part
        if mode == "all":
            found = np.where(everyone, found, np.uint32(0))
        if write is not None:
            write(c, found)
        if flag is not None:
            flag(c, everyone)
        return True

    return run
