"""SMEM operands of wgmma and tcgen05: the matrix descriptor and the addresses it stands for (PTX ISA
9.7.15.5.1 and 9.7.16.4.1).

A tile is (rows, k): rows are A's m or B's n, and k is 32 bytes' worth of elements, or 64 for the B of a sparse A. In the
K-major order the k elements of one row are contiguous; in the MN-major order (16-bit types only) the rows of one k are
contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from .types import Array

#: Span in bytes of each value of the swizzle field, 0 for none.
_SPAN = {0: 0, 1: 128, 2: 64, 3: 32}
_WINDOW = 1 << 18  # bytes that a 14-bit address of 16-byte units can name
#: The bits that belong to no field, (first, last), and the field that they lie above.
_RESERVED = {
    (14, 15): "the start address",
    (30, 31): "the leading-dimension byte offset",
    (46, 48): "the stride-dimension byte offset",
    (52, 61): "the base offset",
}
RESERVED = sum((1 << last + 1) - (1 << first) for first, last in _RESERVED)


@dataclass(frozen=True, slots=True)
class MatrixDescriptor:
    """The fields of a 64-bit descriptor, in bytes.

    `swizzle` is the span of the XOR pattern, 0 for none.
    """

    start: int
    leading: int
    stride: int
    base_offset: int
    swizzle: int


@cache
def decode_descriptor(bits: int) -> MatrixDescriptor:
    """Return the fields of a descriptor register."""
    return MatrixDescriptor(
        start=(bits & 0x3FFF) << 4,
        leading=(bits >> 16 & 0x3FFF) << 4,
        stride=(bits >> 32 & 0x3FFF) << 4,
        base_offset=bits >> 49 & 7,
        swizzle=_SPAN[bits >> 62 & 3],
    )


#: The swizzle of a descriptor for tcgen05, in bytes; ATOMS_OF_32 permutes 32-byte chunks among four rows of 128.
ATOMS_OF_32 = -128
_SPAN_100 = {0: 0, 1: ATOMS_OF_32, 2: 128, 4: 64, 6: 32}
#: Bits of such a descriptor that are fixed, and their value.
FIXED = (7 << 46) | (0xFF << 53) | (3 << 14) | (3 << 30)
FIXED_VALUE = 1 << 46


@cache
def decode_tensor_descriptor(bits: int) -> MatrixDescriptor:
    """Return the fields of a descriptor of tcgen05. An unknown swizzle counts as none."""
    return MatrixDescriptor(
        start=(bits & 0x3FFF) << 4,
        leading=(bits >> 16 & 0x3FFF) << 4,
        stride=(bits >> 32 & 0x3FFF) << 4,
        base_offset=bits >> 49 & 7,
        swizzle=_SPAN_100.get(bits >> 61 & 7, 0),
    )


def wrong_tensor_descriptor(bits: int) -> str:
    """Return why these bits are no descriptor of tcgen05; empty if they are one."""
    if bits >> 46 & 7 != 1:
        return f"bits 46 to 48 are {bits >> 46 & 7}, where version 1 is wanted"
    if bits & FIXED != FIXED_VALUE:
        return "bits are set that belong to no field"
    if bits >> 61 not in _SPAN_100:
        return f"there is no swizzle {bits >> 61}"
    return "leading dimensions by absolute address are not interpreted" if bits >> 52 & 1 else ""


def reserved_fields(bits: int) -> str:
    """Return the reserved bits that are set, and the fields that they lie above; empty if there are none."""
    found: list[str] = []
    for (first, last), field in _RESERVED.items():
        some = [str(i) for i in range(first, last + 1) if bits >> i & 1]
        if some:
            found.append(f"{' and '.join(some)} above {field}")
    return ", ".join(found)


def swizzled(address: Array, span: int, base_offset: int = 0) -> Array:
    """Return byte addresses after the XOR pattern of `span` bytes.

    The pattern permutes 16-byte chunks among eight rows.
    """
    if span == 0:
        return address
    if span == ATOMS_OF_32:
        return address ^ (((address >> 7) - base_offset & 3) << 5)
    phase = ((address >> 7) - base_offset) & (span // 16 - 1)
    return address ^ (phase << 4)


def _k_major(fields: MatrixDescriptor, rows: Array, byte: Array) -> Array:
    """Return the linear offsets of (row, byte of k)."""
    if fields.swizzle == 0:
        # 8 rows of 16 bytes make a contiguous block; the two blocks along k lie `leading` apart
        return (rows >> 3) * fields.stride + (rows & 7) * 16 + (byte >> 4) * fields.leading + (byte & 15)
    return (rows >> 3) * fields.stride + (rows & 7) * abs(fields.swizzle) + byte


def _mn_major(fields: MatrixDescriptor, rows: Array, k: Array, element: int) -> Array:
    """Return the linear offsets of (row, k) in the order in which rows are contiguous."""
    byte = rows * element
    if fields.swizzle == 0:
        return (byte >> 4) * fields.stride + (byte & 15) + (k >> 3) * fields.leading + (k & 7) * 16
    if fields.swizzle == ATOMS_OF_32:
        return (byte // 128) * fields.leading + byte % 128 + (k >> 2) * fields.stride + (k & 3) * 128
    span = fields.swizzle
    return (byte // span) * fields.leading + byte % span + (k >> 3) * fields.stride + (k & 7) * span


@cache
def _offsets(fields: MatrixDescriptor, rows: int, element: int, mn_major: bool, depth: int) -> Array:
    """Return offsets (rows, k) from the start's multiple of 1024, with `fields.start` reduced modulo 1024."""
    row = np.arange(rows, dtype=np.int64)[:, None]
    k = np.arange(depth // element, dtype=np.int64)[None, :]
    linear = _mn_major(fields, row, k, element) if mn_major else _k_major(fields, row, k * element)
    offsets = swizzled(fields.start + linear, fields.swizzle, fields.base_offset)
    offsets.setflags(write=False)
    return offsets


def operand_addresses(
    bits: int, rows: int, element: int, mn_major: bool = False, depth: int = 32, tensor: bool = False
) -> Array:
    """Return the byte addresses in the shared window, (rows, depth // element) int64, of a descriptor's tile.

    `bits`: the descriptor; `element`: bytes of an element; `mn_major`: the transposed order; `depth`: bytes of k, 64 of an
    operand that is multiplied by a sparse A; `tensor`: whether this is a descriptor of tcgen05.
    """
    fields = decode_tensor_descriptor(bits) if tensor else decode_descriptor(bits)
    local = MatrixDescriptor(fields.start & 1023, fields.leading, fields.stride, fields.base_offset, fields.swizzle)
    addresses = _offsets(local, rows, element, mn_major, depth) + (fields.start & ~1023)
    return addresses & (_WINDOW - 1)
