"""Arguments and results of calls: .param variables, and registers or literals of their types (PTX ISA 9.7.12.5, call)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..ptx.module import TYPE_BYTES, BraceGroup, Function, Imm, Operand, Reg, Sink, Sym, Var
from .frame import STORAGE

if TYPE_CHECKING:
    from .compiler import Compiler
    from .frame import Frame
    from .group import Group

Array = npt.NDArray[Any]
_ARGUMENTS = "arguments are .param variables, registers and literals"
_RESULTS = "results are .param variables, registers or _"


class Passed:
    """One argument or result of a call, at the caller. `name`: of its .param variable, or ''."""

    def __init__(self, k: Compiler, operand: Operand, var: Var | None, sizes: dict[str, int], result: bool) -> None:
        self.name = operand.name if isinstance(operand, Sym) else ""
        self.size: int = sizes.get(self.name, 0)
        self.register: Reg | None = operand if isinstance(operand, Reg) else None
        self._read: Callable[[Group], Array] | None = None
        if self.name:
            shown = self.name.partition("@")[0]
            if self.name not in sizes:
                raise k.error(f"'{shown}' is no .param variable of this body")
            if var is not None and self.size != var.size:
                raise k.error(f"'{shown}' has {self.size} bytes, and the parameter '{var.name}' {var.size}")
            return
        if result and isinstance(operand, Sink):
            return
        if not isinstance(operand, (Reg, Imm)) or (result and self.register is None):
            raise k.error(_RESULTS if result else _ARGUMENTS)
        if var is None:
            return  # the count is wrong, which the check of the call reports
        if var.size != TYPE_BYTES[var.elem]:
            raise k.error(f"'{var.name}' has {var.size} bytes, which no register holds")
        self.size = var.size
        if result:
            k.writer(operand, var.elem)
        else:
            self._read = k.reader(operand, var.elem)

    def taken(self, c: Group) -> Array:
        """Return an argument's bytes: (rows, 32, size)."""
        if self._read is None:
            return c.frame.param(self.name, self.size)[c.select]
        return as_bytes(np.broadcast_to(self._read(c), (c.n, 32)), self.size)

    def all(self, c: Group) -> Array:
        """Return the bytes of all warps: (warps, 32, size)."""
        if self._read is None:
            return c.frame.param(self.name, self.size)
        found = np.zeros((c.batch.warps, 32, self.size), np.uint8)
        found[c.select] = self.taken(c)
        return found

    def give(self, c: Group, caller: Frame, value: Array) -> None:
        """Set a result in the active lanes of `c`, from its bytes (rows, 32, size)."""
        if self.register is None:
            if self.name:
                masked(caller.param(self.name, self.size), c, value[..., : self.size])
            return
        held = caller.base(self.register.index)
        masked(held, c, from_bytes(value, STORAGE[self.register.type]))


def passed(
    k: Compiler, operands: list[Operand], formal: list[Var], sizes: dict[str, int], result: bool
) -> list[Passed]:
    """Remove a list in parentheses from the front of `operands`, for the parameters `formal`."""
    if not operands or not isinstance(operands[0], BraceGroup):
        return []
    group = operands.pop(0)
    assert isinstance(group, BraceGroup)
    padded = [*formal, *([None] * len(group.items))]
    return [Passed(k, item, var, sizes, result) for item, var in zip(group.items, padded, strict=False)]


def as_bytes(value: Array, size: int) -> Array:
    """Return the first `size` bytes of each value: (rows, 32, size)."""
    return np.ascontiguousarray(value)[..., None].view(np.uint8)[..., :size]


def from_bytes(value: Array, dtype: Any) -> Array:
    """Return the values, (rows, 32), of bytes (rows, 32, size); missing ones are 0."""
    width = np.dtype(dtype).itemsize
    wide = np.zeros((*value.shape[:2], width), np.uint8)
    size = min(value.shape[2], width)
    wide[..., :size] = value[..., :size]
    return wide.view(dtype)[..., 0]


def own(fn: Function, frame: Frame, var: Var) -> Callable[[Any], Array]:
    """Return a function from rows to the bytes of a result of `fn`, a register or a .param variable."""
    if var.space == "reg":
        index = _register(fn, var)
        return lambda select: as_bytes(frame.base(index)[select], var.size)
    return lambda select: frame.param(var.name, var.size)[select]


def put(fn: Function, frame: Frame, var: Var, c: Group, value: Array) -> None:
    """Set an argument of `fn` in its frame, in the active lanes of `c`, from bytes (rows, 32, size)."""
    if var.space == "reg":
        index = _register(fn, var)
        masked(frame.base(index), c, from_bytes(value, STORAGE[var.elem]))
        return
    masked(frame.param(var.name, var.size), c, value[..., : var.size])


def _register(fn: Function, var: Var) -> int:
    """Return the number of a parameter in a register. Those come first, in order."""
    return [v for v in (*fn.params, *fn.rets) if v.space == "reg"].index(var)


def masked(target: Array, c: Group, value: Array) -> None:
    """Store `value` in the rows and active lanes of `c`."""
    if c.mask is None:
        target[c.select] = value
        return
    held = target[c.select]
    np.copyto(held, value, where=c.mask[..., None] if held.ndim == 3 else c.mask)
    target[c.select] = held
