"""What loads, stores, atomics and copies share: forms, addresses, and how parts of memory are read and written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ptx.module import Imm, Instruction, Mem, Operand, Reg, Sym
from ..compiler import Compiler
from ..group import Group
from ..spaces import Part

Array = npt.NDArray[Any]
Address = Callable[[Group], Array]


class MemoryForm:
    """A load's or store's semantics, from its words."""

    updates = False

    def __init__(self, k: Compiler) -> None:
        form = k.form
        self.space: str = space_name(form["space"])
        self.semantics: str = form.words.get("order") or "weak"
        self.scope: str = form.words.get("scope", "")
        self.type: str = form["type"]
        self.count: int = form.vector
        self.size: int = form.size
        self.strong: bool = self.semantics != "weak"
        self.reach: int = k.program.reach(self.scope)
        self.read_only: bool = bool(form.words.get("nc"))


def space_name(word: str) -> str:
    """Return a state space's name for `space_of`, without ::cta, ::entry and ::func, which change nothing."""
    return word if word == "shared::cluster" else word.partition("::")[0]


def address_of(k: Compiler, mem: Operand, space: str = "shared") -> Address:
    """Return a function of the group that gives a memory operand's addresses as uint64, (rows, 32) or (1, 1).

    `space`: its state space; generic and global addresses take 64-bit registers.
    """
    if not isinstance(mem, Mem):
        raise k.error("an address in brackets is wanted")
    base, offset = mem.base, mem.offset
    if isinstance(base, Sym):
        slot = k.symbol(Sym(base.name, offset), "u64")
        return lambda c: c.v[slot]
    if isinstance(base, Imm):
        if space != "local":  # the ISA has these addresses, assemblers do not
            raise k.error(f"[{base.value + offset}]: a number is an address of local memory alone")
        slot = k.constant(base.value + offset, "u64")
        return lambda c: c.v[slot]
    if not isinstance(base, Reg):
        raise k.error("the address is no register")
    index = base.index
    if base.type in ("b64", "u64", "s64"):
        if not offset:
            return lambda c: c.v[index]
        delta = np.uint64(offset % (1 << 64))
        return lambda c: c.v[index] + delta
    if base.type not in ("b32", "u32", "s32") or space in ("", "global"):
        raise k.error(f"the address '{base.name}' is .{base.type}")
    if not offset:
        return lambda c: c.v[index].astype(np.uint64)
    small = np.uint32(offset % (1 << 32))
    return lambda c: (c.v[index] + small).astype(np.uint64)


def space_of(name: str) -> Callable[[Group], Any]:
    """Return a function that gives the space object of a state space's name: .shared is .shared::cta (PTX ISA 5.1.7)."""
    if name == "shared":
        return lambda c: c.batch.own_shared
    if name == "shared::cluster":
        return lambda c: c.batch.shared
    if name == "local":
        return lambda c: c.batch.local
    if name in ("global", "const"):
        return lambda c: c.batch.run.globals
    if name == "param":
        return lambda c: c.batch.parameters
    return lambda c: c.batch.run.generic


def gather(part: Part, count: int) -> Array:
    """Return the words at `part.index`: (rows, 32), or (rows, 32, count) for vectors."""
    view, index = part.view, part.index
    if len(view) < count:  # the view is too short, and no lane accesses it
        return np.zeros((*index.shape, count) if count > 1 else index.shape, view.dtype)
    if count > 1:
        return view[: len(view) // count * count].reshape(-1, count).take(index // count, axis=0)
    rows = _whole_rows(view, index) if index.shape[0] >= 16 else None
    if rows is None:
        return view.take(index)
    return rows[0].take(rows[1], axis=0)


def _whole_rows(view: Array, index: Array) -> tuple[Array, Array] | None:
    """Return (view as rows of 32, row numbers) if every warp accesses 32 consecutive words, otherwise None."""
    first = index[:, 0]
    shift = int(first[0]) & 31
    if int(index[0, 31]) - int(first[0]) != 31 or ((first - shift) & 31).any():
        return None
    if not (index - first[:, None] == _LANES).all():
        return None
    rows = (len(view) - shift) // 32
    return view[shift : shift + rows * 32].reshape(rows, 32), (first - shift) >> 5


_LANES = np.arange(32)


def unchanged(part: Part, values: list[Array]) -> Array:
    """Return the lanes, (rows, 32), whose store does not change memory."""
    same = np.ones(part.index.shape, np.bool_)
    for i, value in enumerate(values):
        same &= part.view[part.index + i] == value.astype(part.view.dtype)
    return same


def changes(run: Any, part: Part, values: list[Array]) -> bool:
    """Return whether a store changes memory; True as long as nothing polls memory, which alone asks."""
    if not run.polls:
        return True
    moved = ~unchanged(part, values)
    return bool((moved if part.mask is None else moved & part.mask).any())


def noted(
    c: Group, part: Part, size: int, count: int, ins: Instruction, form: Any, same: Callable[[], Array],
    put: Callable[[], None],
) -> None:  # fmt: skip
    """Write memory by `put()` and record the write in its shadow.

    `same()`: the lanes (rows, 32) whose write does not change memory.
    """
    shadow = part.shadow
    if shadow is None:
        put()
        return
    access = shadow.write(c, part.index, size, count, part.mask, ins, form, same)
    if form.strong:
        c.batch.run.sync.access(c, part, size, form, False, True)
    put()
    if access is not None and access.clash is not None:
        shadow.settle_clash(access)


def scatter(part: Part, values: list[Array]) -> None:
    """Write `values`, one array (rows, 32) for each vector element."""
    view, index, mask = part.view, part.index, part.mask
    if len(values) > 1:
        words = view[: len(view) // len(values) * len(values)].reshape(-1, len(values))
        index = index // len(values)
        for i, value in enumerate(values):
            value = value if value.shape == index.shape else np.broadcast_to(value, index.shape)
            words[index if mask is None else index[mask], i] = value if mask is None else value[mask]
        return
    value = values[0] if values[0].shape == index.shape else np.broadcast_to(values[0], index.shape)
    if mask is not None:
        view[index[mask]] = value[mask]
        return
    rows = _whole_rows(view, index) if index.shape[0] >= 16 else None
    if rows is None:
        view[index] = value
    else:
        rows[0][rows[1]] = value


def combine(parts: list[Part], count: int, c: Group) -> Array:
    """Combine the loaded values of lanes that read different buffers."""
    shape = (c.n, 32) if count == 1 else (c.n, 32, count)
    dtype = parts[0].view.dtype if parts else np.uint8
    out = np.zeros(shape, dtype)
    for part in parts:
        value = gather(part, count)
        where = part.mask if part.mask is not None else np.ones((c.n, 32), np.bool_)
        np.copyto(out, value, where=where if count == 1 else where[..., None])
    return out
