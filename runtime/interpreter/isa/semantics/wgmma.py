"""wgmma.mma_async and its sparse form: shapes, types and the product (PTX ISA 9.7.15).

Descriptors are in descriptor.py, register layouts in fragments.py. The machine decides when a product
takes effect. Products of the operand types are exact in float32 (tf32: 11 by 11 digits), so float32
BLAS sums one instruction's 32 bytes of k as well as a float32 accumulator allows. Integers are computed
in float64 and are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from .errors import BadModifier, UnknownInstruction
from .floating import canonical_f32
from .formats import decode, f16_of_float
from .forms import Opcode, expand_slots, parse_lines, together
from .types import Array

_FLOAT_N = "|".join(f"m64n{n}kK" for n in range(8, 257, 8))
_INTEGER_N = "|".join(f"m64n{n}kK" for n in [8, 16, 24, *range(32, 257, 16)])

_ELEMENT: dict[str, Any] = {
    "f16": np.uint16, "bf16": np.uint16, "tf32": np.uint32,
    "e4m3": np.uint8, "e5m2": np.uint8, "s8": np.uint8, "u8": np.uint8,
}  # fmt: skip


def _lines(times: int) -> tuple[str, ...]:
    """Return the grammar of the dense form or, with `times` 2, of the sparse form, whose K is twice as long."""

    def shapes(names: str, k: int) -> str:
        return names.replace("kK", f"k{k * times}")

    return (
        f"{shapes(_FLOAT_N, 16)} f16|f32 f16 f16",
        f"{shapes(_FLOAT_N, 16)} f32 bf16 bf16",
        f"{shapes(_FLOAT_N, 8)} f32 tf32 tf32",
        f"{shapes(_FLOAT_N, 32)} f16|f32 e4m3|e5m2 e4m3|e5m2",
        f"{shapes(_INTEGER_N, 32)} satfinite? s32 u8|s8 u8|s8",
    )


@dataclass(frozen=True, slots=True)
class WgmmaSemantics:
    """One form of wgmma.mma_async. Matrices are 64 x k, k x n and 64 x n; types are PTX names.

    Of a `sparse` A, half of k is stored, and metadata says which half. `element_bytes`: bytes of an element of A and B.
    `transposable`: whether SMEM operands may be MN-major (the instruction then has imm-trans operands). `negatable`:
    whether it has imm-scale operands.
    """

    opcode: Opcode
    n: int
    k: int
    d_type: str
    a_type: str
    b_type: str
    satfinite: bool
    sparse: bool = False

    @property
    def selectors(self) -> int:
        """Return the number of values of the sparsity selector: 2, one for each half of a quad, or 1 if all lanes have
        metadata.
        """
        return 1 if self.element_bytes == 1 else 2

    @property
    def element_bytes(self) -> int:
        return np.dtype(_ELEMENT[self.a_type]).itemsize

    @property
    def element(self) -> type[np.generic]:
        """Return the dtype of an operand's codes, in which SMEM is gathered."""
        return _ELEMENT[self.a_type]

    @property
    def transposable(self) -> bool:
        return self.a_type in ("f16", "bf16")

    @property
    def negatable(self) -> bool:
        return self.d_type != "s32"

    @property
    def accumulator_registers(self) -> int:
        """Return the registers of a lane: n/2, or n/4 for f16, which go in pairs."""
        return self.n // 4 if self.d_type == "f16" else self.n // 2

    def operand(self, codes: Array, which: str) -> Array:
        """Convert codes of A (`which` = "a") or B to float32 values; integers to float64."""
        type_ = self.a_type if which == "a" else self.b_type
        if type_ == "s8":
            return codes.view(np.int8).astype(np.float64)
        if type_ == "u8":
            return codes.astype(np.float64)
        return decode(codes, type_)

    def accumulator_values(self, registers: Array) -> Array:
        """Convert uint32 registers (registers, warps, 32) to values (n/2, warps, 32), one element a row."""
        if self.d_type == "f32":
            return registers.view(np.float32)
        if self.d_type == "s32":
            return registers.view(np.int32)
        halves = np.stack([registers.astype(np.uint16), (registers >> np.uint32(16)).astype(np.uint16)], 1)
        return halves.reshape(self.n // 2, *registers.shape[1:]).view(np.float16)

    def accumulator_bits(self, values: Array) -> Array:
        """Convert values (n/2, warps, 32) to uint32 registers: the inverse of `accumulator_values`."""
        if self.d_type == "f32":
            return canonical_f32(values)
        if self.d_type == "s32":
            return values.view(np.uint32)
        codes = f16_of_float(values).astype(np.uint32)
        pairs = codes.reshape(self.n // 4, 2, *values.shape[1:])
        return pairs[:, 0] | (pairs[:, 1] << np.uint32(16))

    def multiply(self, a: Array, b: Array, c: Array | None, scale_a: int = 1, scale_b: int = 1) -> Array:
        """Return a @ b + c, for operands (..., 64, k) and (..., k, n) from `operand`; c and the result are accumulator
        values.

        `c` is None if scale-d is false. `scale_a`, `scale_b`: 1 or -1.
        """
        with np.errstate(all="ignore"):
            # in float64: the order in which a library sums float32 depends on the processor
            product = np.matmul(a, b, dtype=np.float64)
            if scale_a != scale_b:
                product = -product
            if self.d_type == "s32":
                return self._integer_sum(product, c)
            product = product.astype(np.float32)
            if self.d_type == "f16":
                total = product if c is None else product + c.astype(np.float32)
                return total.astype(np.float16)
            return product if c is None else np.add(product, c, out=product)

    def _integer_sum(self, product: Array, c: Array | None) -> Array:
        total = product if c is None else product + c
        if self.satfinite:
            total = np.clip(total, -(2.0**31), 2.0**31 - 1)
        return total.astype(np.int64).astype(np.int32)


@cache
def compile_wgmma(opcode: Opcode) -> WgmmaSemantics:
    """Return the semantics of a form such as ("wgmma", "mma_async", "sync", "aligned", "m64n128k16", "f32", "f16", "f16").

    Raises `UnknownInstruction` or `BadModifier`.
    """
    if opcode[:2] != ("wgmma", "mma_async"):
        raise UnknownInstruction(opcode)
    sparse = "sp" in opcode
    rest = together(opcode[2:], "sync")
    if rest is None:
        raise BadModifier(opcode, "'.sync.aligned' must follow 'wgmma.mma_async'")
    found = parse_lines(_lines(1 + sparse), tuple(w for w in rest if w not in ("sp", "aligned")))
    if found is not None and rest.count("aligned") < 2:  # assemblers accept the instruction without `aligned`
        words = found[1]
        shape, d_type, a_type, b_type = words[0], *words[-3:]
        n, k = (int(x) for x in shape.removeprefix("m64n").split("k"))
        return WgmmaSemantics(opcode, n, k, d_type, a_type, b_type, "satfinite" in words, sparse)
    raise BadModifier(opcode, "wgmma.mma_async has no such combination of shape and types")


def forms() -> list[Opcode]:
    """Return every supported form of the dense product."""
    head = ("wgmma", "mma_async", "sync", "aligned")
    return [(*head, *words) for line in _lines(1) for words in expand_slots(line)]


def sparse_forms() -> list[Opcode]:
    """Return every supported form of the product with a sparse A."""
    head = ("wgmma", "mma_async", "sp", "sync", "aligned")
    return [(*head, *words) for line in _lines(2) for words in expand_slots(line)]
