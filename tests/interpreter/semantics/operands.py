"""Operands for tests: specials of every format crossed with one another, and random bits."""

from __future__ import annotations

import itertools

import numpy as np

from kernel_dsl.runtime.interpreter.isa.semantics import BITS, STORAGE, Array

_SPECIAL = {
    "f32": [
        0, 1, 2, 0x007FFFFF, 0x00800000, 0x00800001, 0x00FFFFFF, 0x33800000, 0x34000000,
        0x3EFFFFFF, 0x3F000000, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x3FC00000, 0x40200000,
        0x4B000001, 0x4B800000, 0x4EFFFFFF, 0x4F000000, 0x4F800000, 0x5EFFFFFF, 0x5F000000,
        0x5F800000, 0x7F000000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF,
        0x38800000, 0x387FC000, 0x33000000, 0x477FE000, 0x477FF000, 0x3F802000, 0x3F801000,
        0x3F808000, 0x3F000001, 0x00FFFFFE,
    ],
    "f64": [
        0, 1, 3, 0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x0010000000000001, 0x001FFFFFFFFFFFFF,
        0x3CA0000000000000, 0x3FE0000000000000, 0x3FEFFFFFFFFFFFFF, 0x3FF0000000000000,
        0x3FF0000000000001, 0x3FF8000000000000, 0x4004000000000000, 0x41DFFFFFFFC00000,
        0x41E0000000000000, 0x43E0000000000000, 0x43F0000000000000, 0x36A0000000000000,
        0x3810000000000000, 0x47EFFFFFE0000000, 0x47EFFFFFF0000000, 0x3FF0000010000000,
        0x7FE0000000000000, 0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, 0x7FF8000000000000,
        0x4340000000000000, 0x3C90000000000000, 0x0350000000000001, 0x0340000000000001,
        0x7FD0000000000001, 0x7FF0000000000001, 0x7FF8123456789ABC,
        0x380FFFFFE0000000, 0x380FFFFFF8000000,
    ],
    "f16": [
        0, 1, 2, 0x3FF, 0x400, 0x401, 0x3800, 0x3BFF, 0x3C00, 0x3C01, 0x3E00, 0x4100, 0x6400,
        0x7800, 0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x7FFF, 0x5F00, 0x5F40, 0x2400, 0x1400, 0x1000,
        0x7FF7,
    ],
    "bf16": [
        0, 1, 2, 0x7F, 0x80, 0x81, 0x3F00, 0x3F7F, 0x3F80, 0x3F81, 0x3FC0, 0x4020, 0x4B00,
        0x4F00, 0x5F00, 0x7F00, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0, 0x7FFF, 0x3380, 0x3B80, 0x1F80,
        0x2000, 0x7FF7,
    ],
}  # fmt: skip


def specials(type_: str) -> Array:
    """Interesting bit patterns of a type: specials of both signs, or an integer type's edges."""
    bits = BITS[type_]
    if type_ in _SPECIAL:
        positive = _SPECIAL[type_]
        return np.array(positive + [p | 1 << (bits - 1) for p in positive], STORAGE[type_])
    if type_ == "pred":
        return np.array([False, True])
    if type_ in ("f16x2", "bf16x2"):
        half = specials(type_[:-2]).astype(np.uint32)
        return (half << 16) | np.roll(half, 7)
    if type_ == "f32x2":
        half = specials("f32").astype(np.uint64)
        return (half << np.uint64(32)) | np.roll(half, 5)
    if type_ in ("e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2", "e2m1x2", "ue8m0x2"):
        return (np.arange(0, 65536, 257) % (1 << bits)).astype(np.uint16)
    width = min(bits, 64)
    edges = {0, 1, 2, 3, 5, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256}
    for at in (8, 15, 16, 24, 31, 32, 53, 63, 64):
        edges |= {
            2**at - 1,
            2**at,
            2**at + 1,
            2**width - 2**at,
            2**width - 2**at - 1,
            2**width - 2**at + 1,
        }
    fitting = sorted(e for e in edges if 0 <= e < 2**width)
    return np.array(fitting, STORAGE[type_])


def random_bits(type_: str, count: int, rng: np.random.Generator) -> Array:
    """Random registers.

    Half of the floats have exponents near one another, so that sums really interact.
    """
    storage = STORAGE[type_]
    if type_ == "pred":
        return rng.random(count) < 0.5
    raw = rng.integers(0, 2**64, count, np.uint64).astype(storage)
    if type_ == "f32":
        near = (rng.standard_normal(count) * 4).astype(np.float32).view(np.uint32)
        return np.where(rng.random(count) < 0.5, near, raw)
    if type_ == "f64":
        near = (rng.standard_normal(count) * 4).view(np.uint64)
        return np.where(rng.random(count) < 0.5, near, raw)
    if type_[0] in "bus" and BITS[type_] >= 32:  # small numbers too: shift amounts, divisors
        small = rng.integers(0, 80, count).astype(storage)
        return np.where(rng.random(count) < 0.3, small, raw)
    if type_ in ("s8", "u8"):
        return raw  # the upper half of the register is noise that must not matter
    return raw


def operands(types: tuple[str, ...], count: int, seed: int = 0) -> list[Array]:
    """One array of `count` elements an operand.

    First a sample of the cross product of the specials, then random bits.
    """
    rng = np.random.default_rng([seed, len(types), count])
    half = count // 2
    pools = [specials(t) for t in types]
    size = int(np.prod([len(p) for p in pools]))
    if size <= half:
        grid = list(itertools.product(*(range(len(p)) for p in pools)))
        rows = np.array(grid, np.int64).reshape(size, len(types))
    else:
        rows = np.stack([rng.integers(0, len(p), half) for p in pools], axis=1)
    columns: list[Array] = []
    for index, type_ in enumerate(types):
        special = pools[index][rows[:, index]]
        columns.append(np.concatenate([special, random_bits(type_, count - len(special), rng)]))
    return columns
