"""The layout of matrices in the registers of a warp or a warpgroup (PTX ISA 9.7.14.5 and 9.7.15.5, the
fragment figures).

All fragments of mma.sync and wgmma have one pattern: in each register, lane 4*g + t holds `width`
consecutive elements of row g, which start at column (or, for B, row) t*width. Further registers step
by 8 rows and then by 4*width columns.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from .types import Array

_GROUP = np.arange(32) >> 2  # g
_MEMBER = np.arange(32) & 3  # t


def _flat(rows: Array, columns: Array, width: int) -> Array:
    """Return the row-major positions of (lane, element) pairs."""
    return (rows * width + columns).reshape(rows.shape[0], -1)


@cache
def a_positions(m: int, k: int, per_register: int) -> Array:
    """Return the positions (32, elements) of A's elements in the row-major m x k matrix."""
    row_blocks = m // 8
    registers = (m * k) // (32 * per_register)
    r = np.arange(registers)[None, :, None]
    j = np.arange(per_register)[None, None, :]
    g, t = _GROUP[:, None, None], _MEMBER[:, None, None]
    rows = g + 8 * (r % row_blocks) + 0 * j
    columns = t * per_register + j + (r // row_blocks) * 4 * per_register
    return _flat(rows, columns, k)


@cache
def b_positions(n: int, k: int, per_register: int) -> Array:
    """Return the positions (32, elements) of B's elements in the row-major k x n matrix."""
    registers = (n * k) // (32 * per_register)
    r = np.arange(registers)[None, :, None]
    j = np.arange(per_register)[None, None, :]
    g, t = _GROUP[:, None, None], _MEMBER[:, None, None]
    rows = t * per_register + j + r * 4 * per_register
    return _flat(rows, g + 0 * rows, n)


@cache
def accumulator_positions(m: int, n: int) -> Array:
    """Return the positions (32, elements) of C's and D's elements in the row-major m x n matrix, pairs of columns together."""
    row_blocks = m // 8
    element = np.arange(m * n // 32)[None, :]
    pair, half = element & 1, element >> 1
    g, t = _GROUP[:, None], _MEMBER[:, None]
    rows = g + 8 * (half % row_blocks)
    return _flat(rows, 8 * (half // row_blocks) + 2 * t + pair, n)


@cache
def inverse(positions_key: tuple[str, int, int, int]) -> Array:
    """Return for each matrix element, row-major, its place among the (lane, element) pairs of a fragment."""
    kind, rows, columns, per_register = positions_key
    if kind == "a":
        positions = a_positions(rows, columns, per_register)
    elif kind == "b":
        positions = b_positions(rows, columns, per_register)
    else:
        positions = accumulator_positions(rows, columns)
    return np.argsort(positions.reshape(-1))


def gather(elements: Array, key: tuple[str, int, int, int], shape: tuple[int, int]) -> Array:
    """Convert fragments (warps, 32, elements) to matrices (warps, rows, columns)."""
    flat = elements.reshape(elements.shape[0], -1)
    return np.take(flat, inverse(key), axis=1).reshape(-1, *shape)


def scatter(matrix: Array, positions: Array) -> Array:
    """Convert matrices (warps, rows, columns) to fragments (warps, 32, elements)."""
    return np.take(matrix.reshape(matrix.shape[0], -1), positions, axis=1)


# --- m8n8k4 of the first tensor cores: four 8x8x4 products, one for each group of eight lanes -----

_LANES = np.arange(32)
#: The product (0 to 3) that a lane belongs to: lanes 4q..4q+3 and 16+4q..16+4q+3.
QUAD_PAIR = (_LANES & 15) >> 2
_UPPER = _LANES >> 4


@cache
def quad_positions(kind: str, layout: str) -> Array:
    """Return positions (32, elements) in four stacked row-major matrices; kinds a, b, c16 and c32."""
    element = np.arange(8 if kind.startswith("c") else 4)[None, :]
    lane = (_LANES & 3)[:, None] + 0 * element
    upper, product = 4 * _UPPER[:, None], QUAD_PAIR[:, None]
    if kind in ("a", "b"):
        # The vector of four that a lane holds runs along k for row-major A and column-major B.
        along_k = (layout == "row") == (kind == "a")
        k = element + 0 * lane if along_k else lane
        other = (lane if along_k else element + 0 * lane) + upper
        return product * 32 + (other * 4 + k if kind == "a" else k * 8 + other)
    if kind == "c16":
        return product * 64 + (lane + upper) * 8 + element
    row = (lane & 1) + (element & 2) + upper
    column = (element & 4) + (lane & 2) + (element & 1)
    return product * 64 + row * 8 + column


# --- ldmatrix, stmatrix, movmatrix ---------------------------------------------------------------


@cache
def matrix_row_map(count: int, transposed: bool) -> tuple[Array, Array]:
    """Return where register r of each lane lies, for ldmatrix and stmatrix `.m8n8.x{count}.b16`.

    These are two arrays (count, 32, 2), whose last axis is the low and high half: the lane whose address operand names the
    row, and the byte offset in that row of 16 bytes.
    """
    r = np.arange(count)[:, None, None]
    half = np.arange(2)[None, None, :]
    g, t = _GROUP[None, :, None], _MEMBER[None, :, None]
    row, column = (2 * t + half, g + 0 * half) if transposed else (g + 0 * half, 2 * t + half)
    return 8 * r + row, 2 * column + 0 * r


def movmatrix(a: Array) -> Array:
    """Compute movmatrix.sync.aligned.m8n8.trans.b16 on (warps, 32) registers."""
    halves = np.ascontiguousarray(a).view(np.uint16).reshape(a.shape[0], 8, 8)
    return np.ascontiguousarray(halves.transpose(0, 2, 1)).reshape(a.shape[0], 64).view(np.uint32)


# --- wgmma ---------------------------------------------------------------------------------------


def accumulator_matrix(registers: Array, n: int) -> Array:
    """Convert accumulator values (n/2, 4*groups, 32), one element a register, to (groups, 64, n)."""
    groups = registers.shape[1] // 4
    blocks = registers.reshape(n // 8, 2, 2, groups, 4, 8, 4)  # column block, row half, pair, group, warp, g, t
    return blocks.transpose(3, 4, 1, 5, 0, 6, 2).reshape(groups, 64, n)


def accumulator_registers(matrix: Array) -> Array:
    """Convert (groups, 64, n) to (n/2, 4*groups, 32): the inverse of `accumulator_matrix`."""
    groups, _, n = matrix.shape
    blocks = matrix.reshape(groups, 4, 2, 8, n // 8, 4, 2)
    return np.ascontiguousarray(blocks.transpose(4, 2, 6, 0, 1, 3, 5)).reshape(n // 2, 4 * groups, 32)


def a_matrix(registers: Array, element: type[np.generic]) -> Array:
    """Convert A's uint32 registers (4, 4*groups, 32) to (groups, 64, k) codes of `element` width; k is 32 bytes' worth."""
    groups = registers.shape[1] // 4
    blocks = registers.reshape(2, 2, groups, 4, 8, 4)  # column half, row half, group, warp, g, t
    words = np.ascontiguousarray(blocks.transpose(2, 3, 1, 4, 0, 5)).reshape(groups, 64, 8)
    return words.view(element)


def sparse_indices(words: Array, element_bytes: int, selector: int) -> Array:
    """Return where the stored elements of a sparse A lie: (4*groups, 32) registers to (groups, 64, k/2) indices along k.

    PTX ISA 9.7.15.6.1. For 8-bit elements, lane 4 g + 2 c + r has the 32 k of half c of row g + 8 r. For others, lane 4 g +
    2 s + c of selector s has a half of the k of rows g (low bits) and g + 8. Four bits say which two of four elements are
    stored, in ascending order, or which one of two 32-bit elements. An index is -1 if the bits are invalid.
    """
    groups = words.shape[0] // 4
    lanes = np.ascontiguousarray(words).reshape(groups, 4, 8, 4)
    bits = lanes[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & np.uint32(15)  # group, warp, g, t, nibble
    if element_bytes == 1:
        nibbles = bits.reshape(groups, 4, 8, 2, 2, 8).transpose(0, 1, 4, 2, 3, 5)  # row half before g, then c, nibble
    else:
        chosen = bits.reshape(groups, 4, 8, 2, 2, 2, 4)[:, :, :, selector]  # group, warp, g, c, row half, nibble
        nibbles = chosen.transpose(0, 1, 4, 2, 3, 5)
    nibbles = nibbles.reshape(groups, 64, -1).astype(np.int64)
    first = np.arange(nibbles.shape[2])
    if element_bytes == 4:
        which = np.where(nibbles == 0b1110, 1, np.where(nibbles == 0b0100, 0, -1))
        return np.where(which < 0, -1, which + 2 * first)
    low, high = nibbles & 3, nibbles >> 2
    pairs = np.where((low < high)[..., None], np.stack([low, high], -1) + 4 * first[:, None], -1)
    return pairs.reshape(groups, 64, -1)
