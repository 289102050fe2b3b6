"""Link errors: functions and variables that a module uses and does not define."""

from __future__ import annotations

from ..ptx.module import BraceGroup, Instruction, Mem, Module, Operand, PtxError, Sym, Vec
from .system import SYSTEM


def check_links(module: Module) -> None:
    """Raise `PtxError` at the first use of a name that is declared and not defined."""
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
