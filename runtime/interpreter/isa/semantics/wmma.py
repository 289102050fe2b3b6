"""wmma.load, wmma.store and wmma.mma (PTX ISA 9.7.14.4), which CUDA C++'s `nvcuda::wmma` is made of.

PTX does not say which element a register of a fragment holds. Here lane l holds a run of the logical
matrix, row-major, from element l * (elements / 32) on, for any layout in memory. If PTX wants more
registers than the run fills, the run repeats. For elements of 4 bits or 1 bit, a lane holds a word of
a row of a, or of a column of b.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from .errors import BadModifier, UnknownInstruction
from .forms import Opcode, expand_slots, parse_lines, together
from .matrix import MmaSemantics, Registers, extents, result_codes, values
from .types import Array

_CODES: dict[str, Any] = {
    "f16": np.uint16,
    "bf16": np.uint16,
    "s8": np.uint8,
    "u8": np.uint8,
    "tf32": np.uint32,
    "f32": np.uint32,
    "s32": np.uint32,
    "f64": np.uint64,
}
_BIG = "m16n16k16|m8n32k16|m32n8k16"
_LAYOUTS = "row|col row|col"
MMA_LINES = (
    f"{_LAYOUTS} {_BIG} f16|f32 f16|f32",
    f"{_LAYOUTS} {_BIG} f32 bf16 bf16 f32",
    f"{_LAYOUTS} {_BIG} s32 s8 s8 s32 satfinite?",
    f"{_LAYOUTS} {_BIG} s32 u8 u8 s32 satfinite?",
    "row col m8n8k32 s32 s4 s4 s32 satfinite?",
    "row col m8n8k32 s32 u4 u4 s32 satfinite?",
    f"{_LAYOUTS} m16n16k8 f32 tf32 tf32 f32",
    f"{_LAYOUTS} m8n8k4 rn|rz|rm|rp? f64 f64 f64 f64",
    f"{_LAYOUTS} m8n8k4 f64 f64 f64 f64 rn|rz|rm|rp",  # as nvcc writes it
)
BITS_LINE = "row col m8n8k128 s32 b1 b1 s32"
_SPACES = "shared::cta|shared|global?"
MEMORY_LINES: dict[str, tuple[str, ...]] = {
    "a": (f"{_BIG} {_SPACES} f16|bf16|s8|u8", f"m16n16k8 {_SPACES} tf32", f"m8n8k4 {_SPACES} f64"),
    "b": (f"{_BIG} {_SPACES} f16|bf16|s8|u8", f"m16n16k8 {_SPACES} tf32", f"m8n8k4 {_SPACES} f64"),
    "c": (
        f"{_BIG} {_SPACES} f16|f32|s32",
        f"m8n8k32|m8n8k128 {_SPACES} s32",
        f"m16n16k8 {_SPACES} f32",
        f"m8n8k4 {_SPACES} f64",
    ),
}
_SMALL_LINES = {
    kind: tuple(f"{layout} {line}" for line in (f"m8n8k32 {_SPACES} s4|u4", f"m8n8k128 {_SPACES} b1"))
    for kind, layout in (("a", "row"), ("b", "col"))
}
_BITS = {"s4": 4, "u4": 4, "b1": 1}


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment of matrix `kind` (a, b, or c for accumulators): `rows` x `columns` of `type_`."""

    kind: str
    type_: str
    rows: int
    columns: int

    @property
    def element(self) -> Any:
        """Return the dtype of an element's code, as memory holds it."""
        return _CODES[self.type_]

    @property
    def bits(self) -> int:
        """Return the bits of an element in memory."""
        return 8 * np.dtype(self.element).itemsize

    @property
    def held(self) -> tuple[str, int]:
        """Return the register type and the number of registers a lane."""
        per_lane = self.rows * self.columns // 32
        if self.type_ in ("f32", "s32", "f64"):
            return self.type_, per_lane
        if self.kind != "c" and self.type_ == "f16":
            return "b32", 8
        return "b32", per_lane * np.dtype(self.element).itemsize // 4

    def offsets(self, layout: str, stride: int) -> Array:
        """Return the positions (32, elements) in memory, in elements, of the elements that each lane holds."""
        place = np.arange(self.rows * self.columns).reshape(32, -1)
        row, column = place // self.columns, place % self.columns
        return row * stride + column if layout == "row" else column * stride + row

    def to_registers(self, codes: Array) -> Registers:
        """Convert codes (warps, 32, elements) to registers."""
        type_, count = self.held
        words: Any = np.uint64 if type_ == "f64" else np.uint32
        packed = np.ascontiguousarray(codes).view(words)
        repeats = count // packed.shape[-1]
        packed = np.tile(packed, repeats) if repeats > 1 else packed
        return [np.ascontiguousarray(packed[..., r]) for r in range(count)]

    def from_registers(self, registers: Registers) -> Array:
        """Convert registers to codes (warps, 32, elements): the inverse of `to_registers`."""
        codes = np.stack(registers, axis=-1).view(self.element)
        return codes[..., : self.rows * self.columns // 32]

    def matrix(self, registers: Registers) -> Array:
        """Return the matrix (warps, rows, columns) as float64 values."""
        codes = np.ascontiguousarray(self.from_registers(registers))
        return values(codes, self.type_).reshape(codes.shape[0], self.rows, self.columns)


class SmallFragment(Fragment):
    """A fragment of integers of 4 bits or 1 bit: a word of a row of a, or of a column of b, in each lane."""

    __slots__ = ()

    @property
    def element(self) -> Any:
        return np.uint32

    @property
    def bits(self) -> int:
        return _BITS[self.type_]

    @property
    def held(self) -> tuple[str, int]:
        return "b32", 1

    def offsets(self, layout: str, stride: int) -> Array:
        lane = np.arange(32)[:, None]
        return lane // 4 * stride + lane % 4 * (32 // self.bits)

    def from_registers(self, registers: Registers) -> Array:
        return registers[0][..., None]

    def matrix(self, registers: Registers) -> Array:
        shifts = np.arange(0, 32, self.bits, dtype=np.uint32)
        found = (registers[0][..., None] >> shifts & np.uint32((1 << self.bits) - 1)).astype(np.float64)
        if self.type_ == "s4":
            found -= 16 * (found > 7)
        found = found.reshape(len(found), 8, -1)
        return found if self.kind == "a" else found.transpose(0, 2, 1)


@dataclass(frozen=True, slots=True)
class WmmaMemory:
    """wmma.load or wmma.store: `space` is "" for generic addresses."""

    opcode: Opcode
    action: str
    layout: str
    space: str
    fragment: Fragment

    @property
    def default_stride(self) -> int:
        """Return the stride, in elements, for an instruction that names none: rows or columns are dense."""
        return self.fragment.columns if self.layout == "row" else self.fragment.rows


def _fragment(kind: str, type_: str, shape: str) -> Fragment:
    m, n, k = extents(shape)
    rows, columns = {"a": (m, k), "b": (k, n), "c": (m, n)}[kind]
    return (SmallFragment if type_ in _BITS else Fragment)(kind, type_, rows, columns)


@cache
def compile_wmma_memory(opcode: Opcode) -> WmmaMemory:
    """Return the semantics of wmma.load.{a,b,c} or wmma.store.d. Raises `UnknownInstruction` or `BadModifier`."""
    action = next(iter(opcode[1:2]), "")
    if opcode[:1] != ("wmma",) or action not in ("load", "store"):
        raise UnknownInstruction(opcode)
    rest = together(opcode[3:], "sync", "aligned")
    kind = "c" if opcode[1:3] == ("store", "d") else next(iter(opcode[2:3]), "")
    if rest is not None and kind in MEMORY_LINES and (action == "load" or opcode[2] == "d"):
        found = parse_lines([f"row|col {line}" for line in MEMORY_LINES[kind]], rest)
        if found is not None:
            layout, shape, space, type_ = found[1]
            return WmmaMemory(opcode, action, layout, space, _fragment(kind, type_, shape))
    if rest is not None and action == "load":
        found = parse_lines(_SMALL_LINES.get(kind, ()), rest)
        if found is not None:
            layout, shape, space, type_ = found[1]
            return WmmaMemory(opcode, action, layout, space, _fragment(kind, type_, shape))
    raise BadModifier(opcode, "wmma has no such combination of shape and type")


@cache
def compile_wmma(opcode: Opcode) -> MmaSemantics:
    """Return the semantics of wmma.mma. Raises `UnknownInstruction` or `BadModifier`."""
    if opcode[:2] != ("wmma", "mma"):
        raise UnknownInstruction(opcode)
    rest = together(opcode[2:], "sync", "aligned")
    if rest is None:
        raise BadModifier(opcode, "'.sync.aligned' must follow 'wmma.mma'")
    if opcode[2] in ("xor", "and") and rest[1:2] == ("popc",):
        found = parse_lines([BITS_LINE], rest[2:])
        if found is not None:
            return _build(opcode, found[1], opcode[2] == "xor")
    found = parse_lines(MMA_LINES, rest)
    if found is not None:
        return _build(opcode, found[1])
    raise BadModifier(opcode, "wmma.mma has no such combination of shape, layouts and types")


def _build(opcode: Opcode, words: list[str], xor: bool = False) -> MmaSemantics:
    """Return the product; with `xor`, the product of single bits that counts how many differ."""
    shape, types = words[2], [word for word in words[3:] if word in _CODES or word in _BITS]
    if len(types) == 2:  # the f16 forms name D and C alone
        types = [types[0], "f16", "f16", types[1]]
    d_type, a_type, b_type, c_type = types
    m, n, k = extents(shape)
    a, b = _fragment("a", a_type, shape), _fragment("b", b_type, shape)
    c, d = _fragment("c", c_type, shape), _fragment("c", d_type, shape)
    satfinite = "satfinite" in words

    def run(x: Registers, y: Registers, z: Registers) -> Registers:
        left, right = a.matrix(x), b.matrix(y)
        product = np.matmul(left, right)
        if xor:
            product = left.sum(2, keepdims=True) + right.sum(1, keepdims=True) - 2 * product
        total = product + c.matrix(z)
        codes = result_codes(total, d_type, satfinite)
        return d.to_registers(codes.reshape(codes.shape[0], 32, -1))

    return MmaSemantics(opcode, m, n, k, (a_type, b_type, c_type, d_type), a.held, b.held, c.held, d.held, run)


def forms() -> list[Opcode]:
    """Return every supported form of wmma.mma, wmma.load and wmma.store."""
    found: list[Opcode] = [
        ("wmma", "mma", "sync", "aligned", *words) for line in MMA_LINES for words in expand_slots(line)
    ]
    found += [("wmma", "mma", op, "popc", "sync", "aligned", *BITS_LINE.split()) for op in ("xor", "and")]
    for kind, lines in _SMALL_LINES.items():
        for line in lines:
            found += [("wmma", "load", kind, "sync", "aligned", *words) for words in expand_slots(line)]
    for kind, lines in MEMORY_LINES.items():
        heads = [("load", kind), *([("store", "d")] if kind == "c" else [])]
        for action, name in heads:
            for layout in ("row", "col"):
                for line in lines:
                    for words in expand_slots(line):
                        found.append(("wmma", action, name, "sync", "aligned", layout, *words))
    return found
