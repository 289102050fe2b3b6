"""mma.sync in every shape and type of sm_75 to sm_90 (PTX ISA 9.7.14.5).

A fragment is a list of registers, (warps, 32) each. Sums of products are computed in float64, where
every product of these types is exact, and rounded once to the accumulator's type. So they are at most
half a unit from the exact sum. The hardware cuts each aligned product, so its sums are further away.
f64 is a chain of fused multiply-adds, k ascending. Integer results are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from . import exact, fragments
from .errors import BadModifier, UnknownInstruction
from .floating import canonical_f32
from .formats import decode, f16_of_float
from .forms import Opcode, expand_slots, parse_lines, together
from .types import Array

Registers = list[Array]

WIDTH = {
    "f64": 64, "f32": 32, "tf32": 32, "s32": 32, "f16": 16, "bf16": 16,
    "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProductForm:
    """The shape, types and registers of one form of a warp's product.

    `a`, `b`, `c`, `d` are (register type, count); types and shape say what they hold.
    """

    opcode: Opcode
    m: int
    n: int
    k: int
    types: tuple[str, str, str, str]  # the types of A, B, C and D
    a: tuple[str, int]
    b: tuple[str, int]
    c: tuple[str, int]
    d: tuple[str, int]


@dataclass(frozen=True, slots=True)
class MmaSemantics(ProductForm):
    """One form of mma.sync."""

    function: Callable[[Registers, Registers, Registers], Registers]

    def __call__(self, a: Registers, b: Registers, c: Registers) -> Registers:
        """Compute D = A*B + C on lists of (warps, 32) register arrays."""
        with np.errstate(all="ignore"):
            return self.function(a, b, c)


# --- registers to elements and back --------------------------------------------------------------


def elements(registers: Registers, type_: str) -> Array:
    """Return a fragment's codes (warps, 32, elements), in uint8 for types narrower than a byte."""
    stacked = np.stack(registers, axis=-1)
    width = WIDTH[type_]
    if width >= 8:
        unsigned: Any = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}[width]
        return stacked.view(unsigned)
    codes = stacked.view(np.uint8)
    if width == 1:
        return np.unpackbits(codes, axis=-1, bitorder="little")
    return np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], -1)


def values(codes: Array, type_: str) -> Array:
    """Convert codes of any operand type to float64 (exact)."""
    if type_ == "s8":
        return codes.view(np.int8).astype(np.float64)
    if type_ == "s4":
        return ((codes ^ 8).astype(np.int8) - 8).astype(np.float64)
    if type_ in ("u8", "u4", "b1"):
        return codes.astype(np.float64)
    if type_ == "s32":
        return codes.view(np.int32).astype(np.float64)
    return decode(codes, type_).astype(np.float64)


def result_codes(total: Array, type_: str, satfinite: bool) -> Array:
    """Convert float64 sums to codes of the accumulator type."""
    if type_ == "f32":
        return canonical_f32(total.astype(np.float32))
    if type_ == "f16":
        return f16_of_float(total)
    if type_ == "f64":
        return total.view(np.uint64)
    if satfinite:
        total = np.clip(total, -(2.0**31), 2.0**31 - 1)
    return total.astype(np.int64).astype(np.uint32)


def _registers(elements: Array) -> Registers:
    """Convert codes (warps, 32, elements) to registers; 16-bit codes go in pairs."""
    packed = np.ascontiguousarray(elements)
    if packed.dtype == np.uint16:
        packed = packed.view(np.uint32)
    return [np.ascontiguousarray(packed[..., r]) for r in range(packed.shape[-1])]


# --- the product ---------------------------------------------------------------------------------


def _fused_chain(a: Array, b: Array, c: Array) -> Array:
    for k in range(a.shape[-1]):
        c = exact.fma_f64(a[:, :, k : k + 1], b[:, k : k + 1, :], c, "rn")
    return c


def _multiply(m: int, n: int, k: int, types: tuple[str, str, str, str], how: str) -> Any:
    a_type, b_type, c_type, d_type = types
    a_key = ("a", m, k, max(32 // WIDTH[a_type], 1))
    b_key = ("b", n, k, max(32 // WIDTH[b_type], 1))
    c_key = ("c", m, n, 0)

    def run(a: Registers, b: Registers, c: Registers) -> Registers:
        x = values(fragments.gather(elements(a, a_type), a_key, (m, k)), a_type)
        y = values(fragments.gather(elements(b, b_type), b_key, (k, n)), b_type)
        z = values(fragments.gather(elements(c, c_type), c_key, (m, n)), c_type)
        return products(x, y, z, d_type, how)

    return run


def products(x: Array, y: Array, z: Array, d_type: str, how: str) -> Registers:
    """Return x @ y + z as a fragment: (warps, m, k), (warps, k, n) and (warps, m, n) float64. `how`: "xor", "satfinite" or ""."""
    if d_type == "f64":
        total = _fused_chain(x, y, z)
    elif how == "xor":
        total = x.sum(axis=2, keepdims=True) + y.sum(axis=1, keepdims=True) - 2 * np.matmul(x, y) + z
    else:
        total = np.matmul(x, y) + z
    positions = fragments.accumulator_positions(*total.shape[1:])
    return _registers(fragments.scatter(result_codes(total, d_type, how == "satfinite"), positions))


def _multiply_quads(a_layout: str, b_layout: str, c_type: str, d_type: str) -> Any:
    """Return the product m8n8k4 of f16: four independent products."""

    def load(registers: Registers, kind: str, layout: str, type_: str, shape: tuple[int, int]) -> Array:
        order = np.argsort(fragments.quad_positions(kind, layout).reshape(-1))
        codes = elements(registers, type_)
        flat = np.take(codes.reshape(codes.shape[0], -1), order, axis=1)
        return values(flat.reshape(-1, 4, *shape), type_)

    def accumulator(type_: str) -> str:
        return "c16" if type_ == "f16" else "c32"

    def run(a: Registers, b: Registers, c: Registers) -> Registers:
        x = load(a, "a", a_layout, "f16", (8, 4))
        y = load(b, "b", b_layout, "f16", (4, 8))
        z = load(c, accumulator(c_type), "", c_type, (8, 8))
        total = result_codes(np.matmul(x, y) + z, d_type, False)
        out = fragments.quad_positions(accumulator(d_type), "")
        return _registers(fragments.scatter(total, out))

    return run


# --- the forms -----------------------------------------------------------------------------------

#: The grammar after `mma.sync.aligned`.
LINES = (
    "m8n8k4 row|col row|col f16 f16 f16 f16",
    "m8n8k4 row|col row|col f32 f16 f16 f16|f32",
    "m16n8k8|m16n8k16 row col f16 f16 f16 f16",
    "m16n8k8|m16n8k16 row col f32 f16 f16 f32",
    "m16n8k8|m16n8k16 row col f32 bf16 bf16 f32",
    "m16n8k4|m16n8k8 row col f32 tf32 tf32 f32",
    "m16n8k16|m16n8k32 row col f32 e4m3|e5m2 e4m3|e5m2 f32",
    "m16n8k16|m16n8k32 row col f16 e4m3|e5m2 e4m3|e5m2 f16",
    "m8n8k4|m16n8k4|m16n8k8|m16n8k16 row col f64 f64 f64 f64",
    "m8n8k16|m16n8k16|m16n8k32 row col satfinite? s32 u8|s8 u8|s8 s32",
    "m8n8k32|m16n8k32|m16n8k64 row col satfinite? s32 u4|s4 u4|s4 s32",
    "m8n8k128|m16n8k128|m16n8k256 row col s32 b1 b1 s32 xor|and popc",
)


def extents(shape: str) -> tuple[int, int, int]:
    """Return (M, N, K) of a shape such as m16n8k16."""
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    return int(m), int(n), int(k)


def held(type_: str, count: int) -> tuple[str, int]:
    """Return the register type and the number of registers for `count` elements a lane."""
    width = WIDTH[type_]
    if type_ in ("f64", "f32", "s32"):
        return type_, count
    return "b32", count * width // 32


@cache
def compile_mma(opcode: Opcode) -> MmaSemantics:
    """Return the semantics of an mma.sync form. Raises `UnknownInstruction` or `BadModifier`."""
    if opcode[:1] != ("mma",):
        raise UnknownInstruction(opcode)
    rest = together(opcode[1:], "sync", "aligned")
    if rest is None:
        raise BadModifier(opcode, "'.sync.aligned' must follow 'mma'")
    found = parse_lines(LINES, rest)
    if found is not None:
        return _build(opcode, found[1])
    raise BadModifier(opcode, "mma.sync has no such combination of shape, layouts and types")


def _build(opcode: Opcode, words: list[str]) -> MmaSemantics:
    shape, a_layout, b_layout = words[:3]
    m, n, k = extents(shape)
    how = next((word for word in words if word in ("satfinite", "xor", "and")), "")
    d_type, a_type, b_type, c_type = [word for word in words[3:] if word in WIDTH]
    types = (a_type, b_type, c_type, d_type)
    if shape == "m8n8k4" and a_type == "f16":
        counts = {"f16": ("b32", 4), "f32": ("f32", 8)}
        function = _multiply_quads(a_layout, b_layout, c_type, d_type)
        return MmaSemantics(opcode, m, n, k, types, ("b32", 2), ("b32", 2), counts[c_type], counts[d_type], function)
    function = _multiply(m, n, k, types, how)
    registers = (
        held(a_type, m * k // 32),
        held(b_type, n * k // 32),
        held(c_type, m * n // 32),
        held(d_type, m * n // 32),
    )
    return MmaSemantics(opcode, m, n, k, types, *registers, function)


def forms() -> list[Opcode]:
    """Return every supported form."""
    return [("mma", "sync", "aligned", *words) for line in LINES for words in expand_slots(line)]
