"""tcgen05.mma: the instruction descriptor, types, and the layout of operands in tensor memory (PTX ISA 9.7.16.2 to .4, and .10).

Products of the operand types are exact in float32, so float32 BLAS sums them as well as a float32 accumulator allows; which
bits hardware keeps is not published. Integers and scaled products are computed in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from .formats import decode
from .sparse import stored_at
from .types import Array

LANES = 128
COLUMNS = 512

_K = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
_SMALL = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_TYPES = {
    "f16": {0: "f16", 1: "bf16"}, "tf32": {2: "tf32"}, "f8f6f4": _SMALL, "i8": {0: "u8", 1: "s8"}, "mxf8f6f4": _SMALL,
    "mxf4": {1: "e2m1"}, "mxf4nvf4": {1: "e2m1"},
}  # fmt: skip
_RESULTS = {"f16": {0: "f16", 1: "f32"}, "tf32": {1: "f32"}, "f8f6f4": {0: "f16", 1: "f32"}, "i8": {2: "s32"}}
_CODES: dict[str, Any] = {"f16": np.uint16, "bf16": np.uint16, "tf32": np.uint32}
SCALES = {"": 1, "scale_vec::1X": 1, "scale_vec::2X": 2, "scale_vec::4X": 4, "block16": 4, "block32": 2}


class BadDescriptor(ValueError):
    """The error of an instruction descriptor that names no product; its text is the reason."""


@dataclass(frozen=True, slots=True)
class Product:
    """The product of one tcgen05.mma: D (m, n) = A (m, k) B (k, n) + D, of one block or a pair.

    `a_type`, `b_type` and `d_type` are PTX names. `a_transposed` and `b_transposed`: whether rows of one k are contiguous in
    shared memory. `negative`: the product is -A B. `scales`: the number of scale factors of a row, 0 if there are none.
    `scale_type`: ue8m0 or ue4m3. `ids`: the byte of tensor memory's words at which the scales of A and B begin. `stationary`:
    whether it is tcgen05.mma.ws. `sparse`: half of A's k is stored, and columns of tensor memory from `selector` on say which.
    """

    kind: str
    pair: bool
    m: int
    n: int
    k: int
    a_type: str
    b_type: str
    d_type: str
    a_transposed: bool
    b_transposed: bool
    negative: bool
    saturates: bool
    scales: int
    scale_type: str
    ids: tuple[int, int]
    stationary: bool = False
    sparse: bool = False
    selector: int = 0

    @property
    def rows(self) -> int:
        """Return the rows of A and D in one block."""
        return self.m // 2 if self.pair else self.m

    @property
    def columns(self) -> int:
        """Return the columns of tensor memory that D takes."""
        return self.n // self.splits

    @property
    def splits(self) -> int:
        """Return the number of parts of D's columns that lie in lanes of their own: 2 in layouts B and E, 4 in layout G."""
        return 128 // self.m if self.stationary else 2 if self.pair and self.m == 128 else 1

    @property
    def half(self) -> bool:
        """Return whether D takes 16 of each 32 lanes (layout F)."""
        return self.m == 64 and not self.pair and not self.stationary

    @property
    def lanes(self) -> Array:
        """Return the lanes of a block that D takes: one for each row, for each part of the columns. A row of A lies there,
        too.
        """
        return lanes_of(self.half)

    @property
    def narrow(self) -> bool:
        """Return whether elements of A have less than 8 bits."""
        return self.a_type in _MINI

    @property
    def packed(self) -> bool:
        """Return whether a byte of shared memory has two elements of 4 bits."""
        return self.kind in ("mxf4", "mxf4nvf4")

    def size(self, which: str) -> int:
        """Return the bytes of an element of A or B in shared memory, at least 1."""
        return np.dtype(self.code(which)).itemsize

    def used(self, which: str) -> int:
        """Return how many of each 16 bytes of A or B in shared memory hold elements: those of 4 and 6 bits are padded."""
        type_ = self.a_type if which == "a" else self.b_type
        return {"e2m1": 8, "e2m3": 12, "e3m2": 12}.get(type_, 16) if not self.packed else 16

    @property
    def chunk(self) -> int:
        """Return the number of elements of a sparse A that four bits of metadata describe."""
        return 8 if self.packed else 2 if self.kind == "tf32" else 4

    @property
    def metadata_columns(self) -> int:
        return 1 if self.kind in ("f16", "tf32") else 2

    def places(self, words: Array) -> Array:
        """Return where along k the stored elements of A lie, (n, rows, k / 2), from words (n, lanes, columns); -1 if bits
        name none.
        """
        lane, column, first = metadata_places(self.rows, self.k // self.chunk, self.metadata_columns)
        bits = (words[:, lane, column] >> first & np.uint32(15)).astype(np.int64)
        return stored_at(bits, self.chunk, np.isin(bits, _MEANINGFUL))

    def code(self, which: str) -> Any:
        return _CODES.get(self.a_type if which == "a" else self.b_type, np.uint8)

    def values(self, codes: Array, which: str) -> Array:
        """Convert codes (..., rows, 32 bytes' worth) to values (..., rows, k): float32, or float64 for integers and scaled
        products.
        """
        type_ = self.a_type if which == "a" else self.b_type
        if type_ in ("s8", "u8"):
            return (codes.view(np.int8) if type_ == "s8" else codes).astype(np.float64)
        if self.packed:
            codes = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)
        elif type_ in ("e2m1", "e2m3", "e3m2"):
            codes = _unpacked(codes, type_)
        found = _minifloats(type_)[codes] if type_ in _MINI else decode(codes, type_)
        return found.astype(np.float64) if self.scales else found

    def sum(self, product: Array, d: Array | None) -> Array:
        """Return A B, plus D if `d` is given, in accumulator values."""
        if self.negative:
            product = -product
        if self.d_type == "s32":
            total = product if d is None else product + d
            if self.saturates:
                total = np.clip(total, -(2.0**31), 2.0**31 - 1)
            return total.astype(np.int64).astype(np.int32)
        total = product.astype(np.float32) if d is None else (product + d).astype(np.float32)
        return total.astype(np.float16) if self.d_type == "f16" else total

    def accumulator(self, words: Array) -> Array:
        """Convert words of tensor memory to values of D: one element a word."""
        if self.d_type == "f16":
            return words.astype(np.uint16).view(np.float16).astype(np.float32)
        return words.view(np.float32 if self.d_type == "f32" else np.int32)

    def words(self, values: Array) -> Array:
        """Convert values of D to words of tensor memory: the inverse of `accumulator`."""
        if self.d_type == "f16":
            return values.view(np.uint16).astype(np.uint32)
        return values.view(np.uint32)


def _bits(word: int, first: int, count: int) -> int:
    return word >> first & ((1 << count) - 1)


@cache
def product_of(
    word: int, kind: str, pair: bool, vector: str, stationary: bool = False, sparse: bool = False
) -> Product:  # fmt: skip
    """Return the product that an instruction descriptor names for `kind`. Raises `BadDescriptor`."""
    scaled = kind.startswith("mx")
    if _bits(word, 2, 1) != sparse:
        says, name = ("dense", "tcgen05.mma.sp") if sparse else ("sparse", "tcgen05.mma")
        raise BadDescriptor(f"the instruction descriptor says that A is {says}, and the instruction is {name}")
    a, b = _bits(word, 7, 3), _bits(word, 10, 2 if kind in ("mxf4", "mxf4nvf4") else 3)
    d = 1 if scaled else _bits(word, 4, 2)
    results = {1: "f32"} if scaled else _RESULTS[kind]
    for what, code, names in (("A", a, _TYPES[kind]), ("B", b, _TYPES[kind]), ("D", d, results)):
        if code not in names:
            raise BadDescriptor(
                f"the instruction descriptor gives {what} type {code}, which .kind::{kind} does not have"
            )
    types = _TYPES[kind][a], _TYPES[kind][b], results[d]
    if kind == "f16" and types[2] == "f16" and "bf16" in types[:2]:
        raise BadDescriptor("sums of bf16 are f32")
    m = _bits(word, 27, 2) << 7 if scaled else _bits(word, 24, 5) << 4
    n = _bits(word, 17, 6) << 3
    transposed = bool(_bits(word, 15, 1)), bool(_bits(word, 16, 1))
    _check_shape(kind, pair, m, n, stationary)
    selector = _selector(kind, pair, m, word) if sparse else 0
    for type_, turned in zip(types, transposed, strict=False):
        if turned and type_ in _MINI:
            raise BadDescriptor(f"a matrix of {type_} is K-major")
    if kind != "i8" and _bits(word, 3, 1):
        raise BadDescriptor("only integers saturate")
    if kind == "i8" and _bits(word, 13, 2):
        raise BadDescriptor("integers are not negated")
    if kind in ("mxf4", "mxf4nvf4") and _bits(word, 31, 1):
        raise BadDescriptor("K = 96 is not interpreted")
    scales = 0 if not scaled else 1 if kind == "mxf8f6f4" else SCALES[vector] if vector else 2
    scale_type = "ue8m0" if _bits(word, 23, 1) else "ue4m3"
    if scaled and scale_type == "ue4m3" and (kind != "mxf4nvf4" or scales != 4):
        raise BadDescriptor(f"the scales of .kind::{kind} with {scales} a row are ue8m0")
    ids = (_bits(word, 29, 2), _bits(word, 4, 2)) if scaled else (0, 0)
    if scaled and any(i % scales for i in ids):
        raise BadDescriptor(f"a scale factor ID is {max(ids)}, no multiple of {scales}")
    negative = _bits(word, 13, 1) != _bits(word, 14, 1)
    saturates = bool(_bits(word, 3, 1)) and kind == "i8"
    k = _K[kind] * (1 + sparse)
    return Product(kind, pair, m, n, k, *types, *transposed, negative, saturates, scales, scale_type, ids, stationary, sparse,
                   selector)  # fmt: skip


def _selector(kind: str, pair: bool, m: int, word: int) -> int:
    """Return the sparsity selector. Raises `BadDescriptor` for products whose place of metadata no text tells."""
    if m != (256 if pair else 128):
        raise BadDescriptor(f"metadata of a sparse A with M = {m} is not interpreted")
    if kind.startswith("mx"):
        return 0
    selector, most = _bits(word, 0, 2), 1 if kind in ("f16", "tf32") else 0
    if selector > most:
        raise BadDescriptor(f"a sparsity selector of {selector} for .kind::{kind} is not interpreted")
    return selector


def _check_shape(kind: str, pair: bool, m: int, n: int, stationary: bool) -> None:
    """Check M and N by the table of PTX ISA 9.7.16.2.1."""
    if stationary:
        for what, given, wanted in (("M", m, (32, 64, 128)), ("N", n, (64, 128, 256))):
            if given not in wanted:
                raise BadDescriptor(
                    f"the instruction descriptor says {what} = {given}; {', '.join(map(str, wanted))} are possible"
                )
        return
    rows = (128, 256) if pair else (128,) if kind.startswith("mx") else (64, 128)
    if m not in rows:
        raise BadDescriptor(f"the instruction descriptor says M = {m}; {' or '.join(map(str, rows))} is wanted")
    step = (32 if kind == "i8" else 16) if pair else 16 if kind == "i8" and n > 32 else 8
    if not 8 <= n <= 256 or n % step:
        raise BadDescriptor(f"the instruction descriptor says N = {n}; a multiple of {step} up to 256 is wanted")


# --- small formats -------------------------------------------------------------------------------

_MINI = {"e2m1": (1, 1, 4), "e2m3": (3, 1, 6), "e3m2": (2, 3, 6)}  # mantissa bits, bias, bits


@cache
def _minifloats(name: str) -> Array:
    """Return all values of a format without infinities and NaN, by code, as float32."""
    mantissa, bias, bits = _MINI[name]
    code = np.arange(1 << bits)
    exponent, fraction = code >> mantissa & ((1 << (bits - 1 - mantissa)) - 1), code & ((1 << mantissa) - 1)
    value = np.ldexp(
        np.where(exponent > 0, fraction + (1 << mantissa), fraction), np.maximum(exponent, 1) - bias - mantissa
    )
    found = np.where(code >> (bits - 1), -value, value).astype(np.float32)
    found.setflags(write=False)
    return found


def _unpacked(codes: Array, type_: str) -> Array:
    """Return the sixteen elements of 4 or 6 bits at the start of each 16 bytes, (..., 32), as one code a byte."""
    chunks = codes.reshape(*codes.shape[:-1], -1, 16)
    if type_ == "e2m1":
        halves = chunks[..., :8]
        found = np.stack([halves & 15, halves >> 4], -1)
    else:
        triples = chunks[..., :12].reshape(*chunks.shape[:-1], 4, 3).astype(np.uint32)
        words = triples[..., 0] | triples[..., 1] << np.uint32(8) | triples[..., 2] << np.uint32(16)
        found = words[..., None] >> np.arange(0, 24, 6, dtype=np.uint32) & np.uint32(63)
    return found.reshape(codes.shape).astype(np.uint8)


@cache
def scale_values(type_: str) -> Array:
    """Return all values of a type of scale factors, by code, as float64."""
    code = np.arange(256)
    if type_ == "ue8m0":
        found = np.where(code == 255, np.nan, np.ldexp(1.0, np.minimum(code, 254) - 127))
    else:
        found = decode((code & 127).astype(np.uint8), "e4m3").astype(np.float64)
    found.setflags(write=False)
    return found


# --- metadata of a sparse A ----------------------------------------------------------------------

_MEANINGFUL = (0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b0110, 0b1110)


@cache
def metadata_places(rows: int, chunks: int, columns: int) -> tuple[Array, Array, Array]:
    """Return the lane, the column and the first bit that describe each chunk of each row: three arrays (rows, chunks).

    If metadata takes one column (16 and 32 bits), a lane of each 16 has rows g (low bits) and g + 8, of one half of the
    chunks. If it takes two, a lane has its own row (PTX ISA 9.7.16.10.8.4; the layouts are those of CuTe's fragments).
    """
    row, chunk = np.arange(rows)[:, None], np.arange(chunks)[None, :]
    if columns == 1:
        lane = row // 16 * 16 + chunk // 4 * 8 + row % 8
        return lane, np.zeros_like(lane), (16 * (row // 8 % 2) + 4 * (chunk % 4)).astype(np.uint32)
    return row + 0 * chunk, chunk // 8 + 0 * row, (4 * (chunk % 8) + 0 * row).astype(np.uint32)


# --- tensor memory -------------------------------------------------------------------------------


@cache
def lanes_of(half: bool) -> Array:
    """Return all lanes, or the first 16 of each 32."""
    rows = np.arange(64 if half else LANES)
    found = rows // 16 * 32 + rows % 16 if half else rows
    found.setflags(write=False)
    return found


@cache
def fragment(shape: str, num: int, packed: bool, split: int) -> tuple[Array, Array]:
    """Return where tcgen05.ld and .st find registers: lanes (registers, 32), and columns (registers, 32, words).

    `words` is 2 if a register holds 16 bits of two columns. PTX ISA 9.7.16.2.3.1.
    """
    thread, x = np.arange(32)[None, :], np.arange(num)[:, None]
    g, t = thread // 4, thread % 4
    if shape == "32x32b":
        lanes, words = thread + 0 * x, x + 0 * thread
    elif shape == "16x64b":
        lanes, words = g + 8 * (t % 2) + 0 * x, 2 * x + t // 2
    elif shape == "16x32bx2":
        lanes, words = thread % 16 + 0 * x, x + 0 * thread
    else:  # rows g and g + 8, of 4 or 8 words each x
        per = 1 if shape == "16x128b" else 2
        h, b = np.arange(2)[None, :, None, None], np.arange(per)[None, None, :, None]
        j, gg, tt = (v[:, None, None, :] for v in (x, g, t))
        lanes = (gg + 8 * h + 0 * b + 0 * j).reshape(-1, 32)
        words = (4 * per * j + per * tt + b + 0 * h).reshape(-1, 32)
    columns = (2 * words)[..., None] + np.arange(2) if packed else words[..., None]
    if shape == "16x32bx2":
        columns = columns + np.where(thread >= 16, split, 0)[..., None]
    lanes, columns = np.ascontiguousarray(lanes), np.ascontiguousarray(columns)
    lanes.setflags(write=False)
    columns.setflags(write=False)
    return lanes, columns
