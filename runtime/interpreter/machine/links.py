"""Link errors: functions and variables that a module uses and does not define."""

from __future__ import annotations

from collections.abc import Iterator

from ..ptx.module import BraceGroup, Instruction, Mem, Module, Operand, PtxError, Sym, Var, Vec
from .system import SYSTEM

_CONSTANT = 1 << 16  # bytes of a module's constants (PTX ISA 5.1.3)


def check_links(module: Module) -> None:
    """Raise `PtxError` for more constants than fit, and at the first use of a name that is declared and not defined."""
    _check_constants(module)
    missing = {name for name, f in module.functions.items() if not f.defined and not f.entry and name not in SYSTEM}
    missing |= {name for name, v in module.variables.items() if v.extern and v.space != "shared"}
    if not missing:
        return
    for function in module.functions.values():
        for ins in function.body:
            if isinstance(ins, Instruction):
                for name in _names(ins.operands):
                    if name in missing and name not in function.variables:
                        what = f"'{name}' is declared, and nothing in the image defines it"
                        raise PtxError(what, ins.line, ins.column)


def _check_constants(module: Module) -> None:
    end = 0
    for var in _constants(module):
        end = -(-end // max(var.align, 1)) * max(var.align, 1) + var.size
        if end > _CONSTANT:
            what = f"the constants up to '{var.name}' take {end} bytes, and a module has {_CONSTANT}"
            raise PtxError(what, var.line, var.column)


def _constants(module: Module) -> Iterator[Var]:
    for variables in (module.variables, *(f.variables for f in module.functions.values())):
        yield from (v for v in variables.values() if v.space == "const" and not v.extern)


def _names(operands: tuple[Operand | None, ...]) -> list[str]:
    found: list[str] = []
    for operand in operands:
        match operand:
            case Sym(name=name):
                found.append(name)
            case Mem(base=base):
                found += _names((base,))
            case Vec(items=items) | BraceGroup(items=items):
                found += _names(items)
            case _:
                pass
    return found
