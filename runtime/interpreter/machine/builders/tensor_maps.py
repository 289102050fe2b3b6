"""Tensor maps that a kernel makes or changes (PTX ISA 9.7.9.28, tensormap.replace, and 9.7.13.4, the fences of their proxy)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...checks import tensor_proxy
from ...checks.kinds import HazardKind
from ...ptx.module import Instruction
from ..compiler import Compiler
from ..control import together
from ..group import Group
from ..program import Op, builds
from ..spaces import Part
from ..tensor_map import MAP_BYTES, replace_field
from .accesses import address_of, space_name, space_of
from .lanes import constant_operand
from .mbarrier_ops import Weak

Array = npt.NDArray[Any]
_WORDS = MAP_BYTES // 8


def _parts(space: Any, c: Group, address: Array, ins: Instruction, write: bool) -> list[Part]:
    """Return the parts with the first 8 of the 128 bytes of each map; check that all 128 are in bounds."""
    first = space.locate(c, address, 8, 8, ins, write)
    space.locate(c, address + np.uint64(MAP_BYTES - 8), 8, 8, ins, write)
    return first


def _note(c: Group, part: Part, mask: Array, ins: Instruction, write: bool) -> None:
    """Record an access to the whole map in shadow memory."""
    if part.shadow is None:
        return
    for word in range(_WORDS):
        if write:
            part.shadow.write(c, part.index + word, 8, 1, mask, ins, Weak)
        else:
            part.shadow.read(c, part.index + word, 8, 1, mask, ins, Weak)


@builds("tensormap.replace")
def build_replace(k: Compiler, ins: Instruction) -> Op:
    """Build tensormap.replace of every field, in global and shared memory: a weak access of all 1024 bits."""
    operands, field = ins.operands, k.form["field"]
    name = space_name(k.form["space"])
    address, space = address_of(k, operands[0], name), space_of(name)
    dimension = constant_operand(k, operands[1]) if len(operands) == 3 else 0
    value = k.reader(operands[-1], k.form["type"])

    def run(c: Group) -> None:
        new = np.broadcast_to(value(c), (c.n, 32))
        for part in _parts(space(c), c, address(c), ins, True):
            mask = c.active if part.mask is None else part.mask
            _note(c, part, mask, ins, True)
            for row, lane in np.argwhere(mask):
                at = int(part.index[row, lane])
                held = part.view[at : at + _WORDS].tobytes()
                made = replace_field(held, field, dimension, int(new[row, lane]))
                if made is None:
                    _, _, who = c.batch.run.reporter.group(c, mask)
                    what = "tensormap.replace of bytes that are neither a tensor map nor zero"
                    c.batch.run.reporter.hazard(HazardKind.DESCRIPTOR, what, ins, (who,))
                    return
                part.view[at : at + _WORDS] = np.frombuffer(made, np.uint64)
        c.batch.run.progress += 1

    return run


@builds("tensormap.cp_fenceproxy")
def build_copy_and_fence(k: Compiler, ins: Instruction) -> Op:
    """Build tensormap.cp_fenceproxy: a warp copies a map to global memory, and releases it to the proxy of tensor maps."""
    target, source = address_of(k, ins.operands[0], "global"), address_of(k, ins.operands[1])
    reach = k.program.reach(k.form["scope"])

    def run(c: Group) -> bool:
        if not together(c, None):
            return False
        held, active = c.mask, c.active
        lead = np.zeros((c.n, 32), np.bool_)
        lead[np.arange(c.n), active.argmax(axis=1)] = True
        c.mask = lead
        try:
            (origin,) = _parts(c.batch.own_shared, c, source(c), ins, False)
            places = _parts(c.batch.run.globals, c, target(c), ins, True)
            _note(c, origin, lead if origin.mask is None else origin.mask, ins, False)
            for part in places:
                mask = lead if part.mask is None else part.mask
                _note(c, part, mask, ins, True)
                for row, lane in np.argwhere(mask):
                    here, there = int(part.index[row, lane]), int(origin.index[row, lane])
                    part.view[here : here + _WORDS] = origin.view[there : there + _WORDS]
        finally:
            c.mask = held
        tensor_proxy.release(c, reach)
        c.batch.run.progress += 1
        return True

    return run
