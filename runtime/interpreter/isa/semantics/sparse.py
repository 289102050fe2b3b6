"""mma.sp.sync: products with an A that is half stored (PTX ISA 9.7.14.6).

Registers of A hold the stored elements, in the fragment of a dense A of half the columns. A register of metadata has four
bits for each chunk of a row. They name the two elements (or pairs of 4-bit elements) of the chunk that are stored or, for
elements of 32 bits, the one of two that is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from . import fragments
from .errors import BadModifier
from .forms import Opcode, expand_slots, parse_lines, together
from .matrix import WIDTH, ProductForm, Registers, elements, extents, held, products, values
from .types import Array

VARIANTS = ("sp", "sp::ordered_metadata")

#: The grammar after `mma.sp.sync.aligned`.
LINES = (
    "m16n8k16|m16n8k32 row col f16 f16 f16 f16",
    "m16n8k16|m16n8k32 row col f32 f16 f16 f32",
    "m16n8k16|m16n8k32 row col f32 bf16 bf16 f32",
    "m16n8k8|m16n8k16 row col f32 tf32 tf32 f32",
    "m16n8k64 row col f32 e4m3|e5m2 e4m3|e5m2 f32",
    "m16n8k32|m16n8k64 row col satfinite? s32 u8|s8 u8|s8 s32",
    "m16n8k64|m16n8k128 row col satfinite? s32 u4|s4 u4|s4 s32",
)


@dataclass(frozen=True, slots=True)
class SparseSemantics(ProductForm):
    """One form of mma.sp.

    `selectors`: the number of values of the sparsity selector. `ordered`: whether metadata must name the stored elements of a
    chunk in ascending order. `function(a, b, c, places)` takes the result of `places`.
    """

    selectors: int
    ordered: bool
    function: Callable[[Registers, Registers, Registers, Array], Registers]

    @property
    def chunk(self) -> int:
        return _chunk(self.types[0])

    def __call__(self, a: Registers, b: Registers, c: Registers, places: Array) -> Registers:
        """Compute D = A*B + C on lists of (warps, 32) register arrays."""
        with np.errstate(all="ignore"):
            return self.function(a, b, c, places)

    def places(self, words: Array, selector: int) -> Array:
        """Return where along k the stored elements lie, (warps, 16, k / 2); -1 where the metadata, (warps, 32), is invalid."""
        lane, nibble = metadata(self.k // self.chunk, selector, WIDTH[self.types[0]] <= 8)
        bits = (words[:, lane] >> (4 * nibble).astype(np.uint32) & np.uint32(15)).astype(np.int64)
        low, high = bits & 3, bits >> 2
        return stored_at(bits, self.chunk, low < high if self.ordered else low != high)


def _chunk(type_: str) -> int:
    """Return the number of elements of A that four bits of metadata describe."""
    return {32: 2, 4: 8}.get(WIDTH[type_], 4)


def stored_at(bits: Array, chunk: int, valid: Array) -> Array:
    """Return where along k the stored elements lie, (n, rows, k / 2), from the four bits (n, rows, chunks) of each chunk.

    The result is -1 if the bits name no place. `valid`: whether the two numbers in four bits may stand together, for chunks
    of four and more.
    """
    first = chunk * np.arange(bits.shape[2])
    if chunk == 2:
        which = np.where(bits == 0b1110, 1, np.where(bits == 0b0100, 0, -1))
        return np.where(which < 0, -1, which + first)
    pairs = np.stack([bits & 3, bits >> 2], -1)
    if chunk == 8:
        pairs = np.stack([2 * pairs, 2 * pairs + 1], -1).reshape(*bits.shape, 4)
    return np.where(valid[..., None], pairs + first[:, None], -1).reshape(*bits.shape[:2], -1)


@cache
def metadata(chunks: int, selector: int, narrow: bool) -> tuple[Array, Array]:
    """Return which lane, and which four bits of its metadata, describe each chunk: two arrays (16 rows, chunks).

    For 4 chunks, lane `selector` of each four lanes has both rows of the four (g and g + 8). For 8 chunks, two lanes have
    half of the columns each or, for elements of at most 8 bits (`narrow`), one row each. For 16 chunks, each of the four
    lanes has one half of one row.
    """
    row, chunk = np.arange(16)[:, None], np.arange(chunks)[None, :]
    g, upper = row % 8, row // 8
    if chunks == 4:
        return 4 * g + selector + 0 * chunk, 4 * upper + chunk
    if chunks == 8 and narrow:
        return 4 * g + 2 * selector + upper + 0 * chunk, chunk + 0 * row
    if chunks == 8:
        return 4 * g + 2 * selector + chunk // 4, 4 * upper + chunk % 4
    return 4 * g + 2 * (chunk // 8) + upper, chunk % 8 + 0 * row


def _multiply(m: int, n: int, k: int, types: tuple[str, str, str, str], how: str) -> Callable[..., Registers]:
    a_type, b_type, c_type, _ = types
    a_key = ("a", m, k // 2, max(32 // WIDTH[a_type], 1))
    b_key = ("b", n, k, max(32 // WIDTH[b_type], 1))

    def run(a: Registers, b: Registers, c: Registers, places: Array) -> Registers:
        stored = values(fragments.gather(elements(a, a_type), a_key, (m, k // 2)), a_type)
        x = np.zeros((len(stored), m, k))
        np.put_along_axis(x, np.maximum(places, 0), stored, 2)
        y = values(fragments.gather(elements(b, b_type), b_key, (k, n)), b_type)
        z = values(fragments.gather(elements(c, c_type), ("c", m, n, 0), (m, n)), c_type)
        return products(x, y, z, types[3], how)

    return run


@cache
def compile_sparse(opcode: Opcode) -> SparseSemantics:
    """Return the semantics of an mma.sp form. Raises `BadModifier`."""
    variant = next(word for word in opcode if word in VARIANTS)
    rest = together(opcode[1:], "sync", "aligned", variant)
    found = None if rest is None else parse_lines(LINES, rest)
    if found is None:
        why = "mma.sp.sync.aligned has no such combination of shape, layouts and types"
        raise BadModifier(opcode, why)
    words = found[1]
    m, n, k = extents(words[0])
    d_type, a_type, b_type, c_type = (word for word in words[3:] if word in WIDTH)
    types = (a_type, b_type, c_type, d_type)
    chunks = k // _chunk(a_type)
    function = _multiply(m, n, k, types, "satfinite" if "satfinite" in words else "")
    return SparseSemantics(
        opcode, m, n, k, types, held(a_type, m * k // 64), held(b_type, n * k // 32), held(c_type, m * n // 32),
        held(d_type, m * n // 32), 16 // chunks, variant != "sp", function,
    )  # fmt: skip


def forms() -> list[Opcode]:
    """Return every supported form."""
    return [("mma", v, "sync", "aligned", *words) for v in VARIANTS for line in LINES for words in expand_slots(line)]
