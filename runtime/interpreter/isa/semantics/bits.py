"""Logic, shifts and bit fields (PTX ISA 9.7.1 and 9.7.8), and mov."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .forms import Body, binary, form, in_pieces, unary
from .types import BITS, SIGNED, STORAGE, Array

_LOGIC: dict[str, Any] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@form("mov pred|b16|b32|b64|b128|u16|u32|u64|s16|s32|s64|f32|f64")
def mov(type_: str) -> Body:
    return Body((type_,), (type_,), lambda a: (a,))


@form("and|or|xor pred|b16|b32|b64")
def logic(name: str, type_: str) -> Body:
    return binary(_LOGIC[name], type_)


@form("not pred|b16|b32|b64")
def not_(type_: str) -> Body:
    return unary(np.invert, type_)


@form("cnot b16|b32|b64")
def cnot(type_: str) -> Body:
    storage = STORAGE[type_]
    return unary(lambda a: (a == 0).astype(storage), type_)


# --- shifts --------------------------------------------------------------------------------------


def _logical_shift(ufunc: Any, type_: str) -> Body:
    """Build a shift. The 32-bit shift amounts are clamped: a shift by the width or more leaves no bit."""
    storage, width = STORAGE[type_], np.uint32(BITS[type_])
    zero = storage(0)

    def fn(a: Array, amount: Array) -> tuple[Array, ...]:
        result: Array = ufunc(a, amount if storage is np.uint32 else amount.astype(storage))
        far = amount >= width
        return (np.where(far, zero, result) if np.count_nonzero(far) else result,)

    return Body((type_, "u32"), (type_,), fn)


@form("shl b16|b32|b64")
def shl(type_: str) -> Body:
    return _logical_shift(np.left_shift, type_)


@form("shr b16|b32|b64|u16|u32|u64|s16|s32|s64")
def shr(type_: str) -> Body:
    if type_[0] != "s":
        return _logical_shift(np.right_shift, type_)
    bits = BITS[type_]
    signed, storage, last = SIGNED[bits], STORAGE[type_], np.uint32(bits - 1)

    def fn(a: Array, amount: Array) -> tuple[Array, ...]:
        return (np.right_shift(a.view(signed), np.minimum(amount, last).astype(signed)).view(storage),)

    return Body((type_, "u32"), (type_,), fn)


@form("shf l|r clamp|wrap b32")
def shf(direction: str, mode: str, _type: str) -> Body:
    """Build the funnel shift: it shifts the 64 bits b:a, and returns the upper half (left) or the lower half (right)."""
    left, mask, limit = direction == "l", np.uint32(31), np.uint32(32)
    upper = np.uint64(32)

    def fn(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        amount = (np.minimum(c, limit) if mode == "clamp" else c & mask).astype(np.uint64)
        pair = (b.astype(np.uint64) << upper) | a
        result = (pair << amount) >> upper if left else pair >> amount
        return (result.astype(np.uint32),)

    return Body(("b32", "b32", "u32"), ("b32",), fn)


# --- lop3, prmt ----------------------------------------------------------------------------------


def _lop3(a: Array, b: Array, c: Array, lut: Array) -> Array:
    """Look up each bit in the truth table `lut`, at index a*4 + b*2 + c.

    `lut` is uniform (an immediate).
    """
    table = int(np.asarray(lut).reshape(-1)[0]) if np.size(lut) else 0
    special = _LOP3_SPECIAL.get(table)
    if special is not None:
        return special(a, b, c)
    shape = np.broadcast_shapes(np.shape(a), np.shape(b), np.shape(c))
    result = np.zeros(shape, np.uint32)
    for index in range(8):
        if table >> index & 1:
            term = (a if index & 4 else ~a) & (b if index & 2 else ~b)
            result |= term & (c if index & 1 else ~c)
    return result


_LOP3_SPECIAL: dict[int, Callable[[Array, Array, Array], Array]] = {
    0xC0: lambda a, b, _c: a & b,
    0xFC: lambda a, b, _c: a | b,
    0x3C: lambda a, b, _c: a ^ b,
    0x80: lambda a, b, c: a & b & c,
    0xFE: lambda a, b, c: a | b | c,
    0x96: lambda a, b, c: a ^ b ^ c,
    0xEA: lambda a, b, c: (a & b) | c,
    0xF8: lambda a, b, c: a | (b & c),
    0xCA: lambda a, b, c: (a & b) | (~a & c),
}


@form("lop3 b32")
def lop3(_type: str) -> Body:
    return Body(("b32",) * 3 + ("u32",), ("b32",), lambda a, b, c, lut: (_lop3(a, b, c, lut),))


@form("lop3 or|and b32", pair=True)
def lop3_predicate(op: str, _type: str) -> Body:
    combine = _LOGIC[op]

    def fn(a: Array, b: Array, c: Array, lut: Array, q: Array) -> tuple[Array, ...]:
        result = _lop3(a, b, c, lut)
        return result, combine(result != 0, q)

    return Body(("b32",) * 3 + ("u32", "pred"), ("b32", "pred"), fn)


_PRMT_MODES: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    # the source of d's bytes 0, 1, 2, 3 for each value of the low two bits of c (PTX ISA, prmt)
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}


@cache
def _moves(selector: int) -> tuple[tuple[bool, int, int], ...]:
    """Return a selector of prmt as moves of bytes: (from b, bits to the left, mask of the result)."""
    masks: dict[tuple[bool, int], int] = {}
    for at in range(4):
        source = selector >> (4 * at) & 7
        move = (source >= 4, 8 * (at - source % 4))
        masks[move] = masks.get(move, 0) | 0xFF << (8 * at)
    return tuple((from_b, shift, mask) for (from_b, shift), mask in masks.items())


def _permute_uniform(a: Array, b: Array, selector: int) -> Array:
    """Compute prmt with one selector for all lanes, such as an immediate."""
    result: Array | None = None
    for from_b, shift, mask in _moves(selector):
        term = b if from_b else a
        if shift:
            term = term << np.uint32(shift) if shift > 0 else term >> np.uint32(-shift)
        term = term & np.uint32(mask)
        result = term if result is None else result | term
    assert result is not None
    shape = np.broadcast_shapes(a.shape, b.shape)
    return result if result.shape == shape else np.broadcast_to(result, shape)


def _permute(a: Array, b: Array, c: Array) -> Array:
    """Compute prmt in its default mode: nibble i of c names the source of byte i, or its sign."""
    pair = (b.astype(np.uint64) << np.uint64(32)) | a
    result: Any = np.uint32(0)
    for at in range(4):
        nibble = c >> np.uint32(4 * at)
        shift = ((nibble & np.uint32(7)) << np.uint32(3)).astype(np.uint64)
        byte = (pair >> shift).astype(np.uint8)
        sign = np.right_shift(byte.view(np.int8), 7).view(np.uint8)
        byte = np.where(nibble & np.uint32(8), sign, byte)
        result = result | (byte.astype(np.uint32) << np.uint32(8 * at))
    return result


@form("prmt b32 f4e|b4e|rc8|ecl|ecr|rc16?")
def prmt(_type: str, mode: str) -> Body:
    selector_of_control: Array | None = None
    if mode:
        rows = [sum(byte << 4 * at for at, byte in enumerate(row)) for row in _PRMT_MODES[mode]]
        selector_of_control = np.array(rows, np.uint32)

    def fn(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        if selector_of_control is not None:
            c = selector_of_control[c & np.uint32(3)]
        if c.size == 1:
            selector = int(c.reshape(-1)[0])
            if not selector & 0x8888:
                return (_permute_uniform(a, b, selector & 0x7777),)
        return (_permute(a, b, c),)

    return in_pieces(Body(("b32", "b32", "b32"), ("b32",), fn))


# --- counting and searching ----------------------------------------------------------------------


def leading_zeros(a: Array, width: int) -> Array:
    """Return the number of zero bits above the highest set one, as uint32; `width` for 0."""
    if width == 32:
        # Every uint32 is exact in float64, and frexp's exponent is the position of the top bit plus
        # one.
        exponent = np.frexp(a.astype(np.float64))[1]
        return (np.int32(32) - exponent).astype(np.uint32)
    high = leading_zeros((a >> np.uint64(32)).astype(np.uint32), 32)
    low = leading_zeros(a.astype(np.uint32), 32)
    return np.where(high == 32, low + np.uint32(32), high)


@form("popc b32|b64")
def popc(type_: str) -> Body:
    return unary(lambda a: np.bitwise_count(a).astype(np.uint32), type_, "u32")


@form("clz b32|b64")
def clz(type_: str) -> Body:
    width = BITS[type_]
    return unary(lambda a: leading_zeros(a, width), type_, "u32")


@form("bfind shiftamt? u32|u64|s32|s64")
def bfind(shiftamt: str, type_: str) -> Body:
    width = BITS[type_]
    signed, last, none = SIGNED[width], np.uint32(width - 1), np.uint32(0xFFFFFFFF)

    def fn(a: Array) -> Array:
        if type_[0] == "s":
            a = np.where(a.view(signed) < 0, ~a, a)
        zeros = leading_zeros(a, width)
        return np.where(a == 0, none, zeros if shiftamt else last - zeros)

    return unary(fn, type_, "u32")


_REVERSED_BYTE = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], np.uint8)


@form("brev b32|b64")
def brev(type_: str) -> Body:
    storage = STORAGE[type_]

    def fn(a: Array) -> Array:
        swapped = np.ascontiguousarray(a).byteswap()
        return _REVERSED_BYTE[swapped.view(np.uint8)].view(storage).reshape(np.shape(a))

    return unary(fn, type_)


_LEAST = np.uint32(1 << 31)


@form("fns b32")
def fns(_type: str) -> Body:
    """Build fns: it finds the n-th set bit from `base`, up for n > 0, down for n < 0, `base` itself for n == 0.

    If there is none, the result is -1, or 0 for n = -2**31, whose negative does not exist.
    """

    def fn(mask: Array, base: Array, offset: Array) -> tuple[Array, ...]:
        mask, base, offset = np.broadcast_arrays(mask, base, offset)
        n: Array = offset.view(np.int32).astype(np.int64)[..., None]
        bit, start = np.arange(32, dtype=np.uint32), base[..., None]
        is_set: Array = (mask[..., None] >> bit & np.uint32(1)).astype(np.bool_)
        up, down = is_set & (bit >= start), is_set & (bit <= start)
        rank_up: Array = np.cumsum(up, axis=-1)
        rank_down: Array = np.cumsum(down[..., ::-1], axis=-1)[..., ::-1]
        match = is_set & (bit == start) & (n == 0)
        match |= up & (n > 0) & (rank_up == n)
        match |= down & (n < 0) & (rank_down == -n)
        found = np.argmax(match, axis=-1).astype(np.uint32)
        none = np.where(offset == _LEAST, np.uint32(0), np.uint32(0xFFFFFFFF))
        return (np.where(np.any(match, axis=-1), found, none),)

    return Body(("b32", "b32", "s32"), ("b32",), fn)


# --- bit fields ----------------------------------------------------------------------------------


def _field_mask(length: Array, dtype: Any) -> Array:
    """Return masks of `length` low ones; all bits are ones if `length` is the width or more."""
    width = np.dtype(dtype).itemsize * 8
    one, ones = dtype(1), dtype(2**width - 1)
    short: Array = (one << np.minimum(length, np.uint32(width - 1)).astype(dtype)) - one
    masks: Array = np.where(length >= np.uint32(width), ones, short)
    return masks


def _field_operand(width: int) -> Any:
    """Return the mask of the bits of a position or length that count.

    PTX says that the low 8 count. For 64-bit fields, for which the hardware has no instruction, all 32 count.
    """
    return np.uint32(0xFF if width == 32 else 0xFFFFFFFF)


@form("bfe u32|u64|s32|s64")
def bfe(type_: str) -> Body:
    """Build bfe: the bits [pos, pos+len). Bits above the top are zeros, or copies of the sign."""
    width = BITS[type_]
    storage: Any = STORAGE[type_]
    signed: Any = SIGNED[width]
    byte, last = _field_operand(width), np.uint32(width - 1)

    def fn(a: Array, position: Array, length: Array) -> tuple[Array, ...]:
        position, length = position & byte, length & byte
        if position.size == 1 and length.size == 1 and type_[0] == "u":
            first, count = int(position.reshape(-1)[0]), int(length.reshape(-1)[0])
            ones = (1 << min(count, width)) - 1
            return (a >> storage(first) & storage(ones) if first < width else a & storage(0),)
        if type_[0] == "u":
            shifted = np.where(position > last, storage(0), a >> np.minimum(position, last).astype(storage))
            return (shifted & _field_mask(length, storage),)
        shifted = (a.view(signed) >> np.minimum(position, last).astype(signed)).view(storage)
        spare = (np.uint32(width) - np.minimum(length, np.uint32(width))).astype(signed)
        spare_once = np.minimum(spare, signed(width - 1))
        field = ((shifted << spare_once.astype(storage)).view(signed) >> spare_once).view(storage)
        return (np.where(length == 0, storage(0), field),)

    return Body((type_, "u32", "u32"), (type_,), fn)


@form("bfi b32|b64")
def bfi(type_: str) -> Body:
    """Build bfi: it inserts the low bits of a into b at [pos, pos+len)."""
    width = BITS[type_]
    storage: Any = STORAGE[type_]
    byte, last = _field_operand(width), np.uint32(width - 1)

    def fn(a: Array, b: Array, position: Array, length: Array) -> tuple[Array, ...]:
        position, length = position & byte, length & byte
        inside = np.minimum(position, last).astype(storage)
        mask = np.where(position > last, storage(0), _field_mask(length, storage) << inside)
        return ((b & ~mask) | ((a << inside) & mask),)

    return Body((type_, type_, "u32", "u32"), (type_,), fn)


@form("bmsk clamp|wrap b32")
def bmsk(mode: str, _type: str) -> Body:
    """Build bmsk: a mask of b ones from bit a up."""

    def fn(a: Array, b: Array) -> tuple[Array, ...]:
        if mode == "wrap":
            a, b = a & np.uint32(31), b & np.uint32(31)
        mask = _field_mask(b, np.uint32) << np.minimum(a, np.uint32(31))
        return (np.where(a >= np.uint32(32), np.uint32(0), mask),)

    return Body(("u32", "u32"), ("b32",), fn)


@form("szext clamp|wrap u32|s32")
def szext(mode: str, type_: str) -> Body:
    """Build szext: the low b bits of a, extended by zeros or by the highest of them."""

    def fn(a: Array, b: Array) -> tuple[Array, ...]:
        length = b & np.uint32(31) if mode == "wrap" else np.minimum(b, np.uint32(32))
        if type_ == "u32":
            return (a & _field_mask(length, np.uint32),)
        spare = np.minimum(np.uint32(32) - length, np.uint32(31))
        extended = ((a << spare).view(np.int32) >> spare.view(np.int32)).view(np.uint32)
        return (np.where(length == 0, np.uint32(0), extended),)

    return Body((type_, "u32"), (type_,), fn)
