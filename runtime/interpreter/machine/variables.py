"""A module's .global and .const variables: memory for them, and the values that they begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..ptx.module import PtxError, Var

if TYPE_CHECKING:
    from .launch import Run

Array = npt.NDArray[Any]


def load_variables(run: Run, symbols: dict[str, int]) -> list[int]:
    """Allocate the variables for a run on one GPU, and enter their addresses in `symbols`. Returns the addresses."""
    variables: dict[str, Var] = dict(run.program.module.variables)
    for fn in run.program.module.functions.values():
        variables |= {n: v for n, v in fn.variables.items() if v.space in ("global", "const")}
    made: list[tuple[Var, Array]] = []
    addresses: list[int] = []
    for var in variables.values():
        if var.space not in ("global", "const"):
            continue
        data = np.zeros(max(var.size, 1), np.uint8)
        init = run.initial.get(var.name, var.init)
        if init is not None:
            data[: len(init)] = np.frombuffer(init, np.uint8)
        address = run.memory.allocate(data, var.name, initialised=True, writable=var.space == "global", kind="variable")
        symbols[var.name] = address
        addresses.append(address)
        made.append((var, data))
    for var, data in made:
        for at, name, addend in var.relocations:
            target = symbols.get(name, run.program.function_ids.get(name))
            if target is None:
                raise PtxError(f"'{var.name}' refers to '{name}', which is not declared", var.line)
            data[at : at + 8] = np.frombuffer((target + addend).to_bytes(8, "little"), np.uint8)
    return addresses
