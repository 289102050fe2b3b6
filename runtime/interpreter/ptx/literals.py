"""Bit patterns of literals (PTX ISA, section 4.5)."""

from __future__ import annotations

import math
import struct

from .module import Imm


def float_bits(value: float, width: int) -> int:
    """Return the IEEE bit pattern of `value` in 32 or 64 bits. What is too large for 32 becomes infinity."""
    try:
        return int.from_bytes(struct.pack("<f" if width == 32 else "<d", value), "little")
    except OverflowError:
        return float_bits(math.copysign(math.inf, value), width)


def literal_bits(imm: Imm, width: int, is_float: bool) -> int:
    """Return the bit pattern of a literal for an operand of `width` bits."""
    if imm.kind == "int":
        if is_float:
            return float_bits(float(imm.value), width) if imm.value else 0
        return imm.value & ((1 << width) - 1)
    if imm.kind == "f64" and width == 32 and is_float:
        return float_bits(struct.unpack("<d", imm.value.to_bytes(8, "little"))[0], 32)
    return imm.value & ((1 << width) - 1)
