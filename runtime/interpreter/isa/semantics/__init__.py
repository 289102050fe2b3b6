"""The semantics of each PTX instruction, as vectorised NumPy on register bits.

Public names: `compile_alu` for elementwise instructions, the type tables, and the errors. Each
family is one file; importing this package registers them all.
"""

from __future__ import annotations

from . import (
    approx,
    bits,
    carry,
    compare,
    convert,
    convert_packed,
    floating,
    halves,
    integer,
    minmax,
    video,
)
from .errors import BadModifier, UnknownInstruction
from .forms import Alu, compile_alu
from .types import BITS, STORAGE, VALUE, Array, narrow

FAMILIES = (
    integer,
    carry,
    bits,
    floating,
    minmax,
    halves,
    approx,
    convert,
    convert_packed,
    compare,
    video,
)

__all__ = [
    "BITS",
    "FAMILIES",
    "STORAGE",
    "VALUE",
    "Alu",
    "Array",
    "BadModifier",
    "UnknownInstruction",
    "compile_alu",
    "narrow",
]
