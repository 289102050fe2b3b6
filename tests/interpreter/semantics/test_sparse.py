"""mma.sp against float64 products of decompressed matrices, laid out by the figures of PTX ISA 9.7.14.6.2, lane by lane."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter.isa.semantics import BadModifier, sparse
from kernel_dsl.runtime.interpreter.isa.semantics.sparse import SparseSemantics

from .test_matrix import WARPS, c_position, element, number, random_registers

_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "s4": 4, "u4": 4}
_BOUND = {"f32": 2.0**-23, "f16": 2.0**-11, "s32": 0.0}
_NAMED = {0b0100: (0, 1), 0b1000: (0, 2), 0b1100: (0, 3), 0b1001: (1, 2), 0b1101: (1, 3), 0b1110: (2, 3)}


def lane_and_nibble(op: SparseSemantics, selector: int, row: int, chunk: int) -> tuple[int, int]:
    """Where the four bits of a chunk of a row are (figures of 9.7.14.6.2.1 to .8)."""
    chunks, four, upper = op.k // op.chunk, 4 * (row % 8), row // 8
    if chunks == 4:  # one lane has both rows
        return four + selector, chunk + 4 * upper
    if chunks == 8 and _BITS[op.types[0]] <= 8:  # two lanes have a row each
        return four + 2 * selector + upper, chunk
    if chunks == 8:  # two lanes have both rows, half of the columns each
        return four + 2 * selector + (chunk >= 4), chunk % 4 + 4 * upper
    return four + 2 * (chunk >= 8) + upper, chunk % 8  # a lane for each row and half


def metadata(op: SparseSemantics, rng: np.random.Generator) -> np.ndarray:
    choices = [0b0100, 0b1110] if op.chunk == 2 else list(_NAMED)
    nibbles = rng.choice(choices, (WARPS, 32, 8)).astype(np.uint32)
    return np.bitwise_or.reduce(nibbles << np.arange(0, 32, 4, dtype=np.uint32), axis=-1)


def dense(op: SparseSemantics, a: list[np.ndarray], words: np.ndarray, selector: int, warp: int) -> np.ndarray:
    """A with its zeros."""
    A, per = np.zeros((op.m, op.k)), max(32 // _BITS[op.types[0]], 1)
    for lane in range(32):
        for i in range(op.m * op.k // 64):
            register, j = divmod(i, per)
            row = lane // 4 + 8 * (register % 2)
            stored = (lane % 4) * per + j + 4 * per * (register // 2)  # which of the stored elements of its row
            of_chunk = 1 if op.chunk == 2 else op.chunk // 2
            chunk, which = divmod(stored, of_chunk)
            at, nibble = lane_and_nibble(op, selector, row, chunk)
            bits = int(words[warp, at]) >> (4 * nibble) & 15
            if op.chunk == 2:
                column = {0b0100: 0, 0b1110: 1}[bits]
            elif op.chunk == 4:
                column = _NAMED[bits][which]
            else:
                column = 2 * _NAMED[bits][which // 2] + which % 2
            A[row, op.chunk * chunk + column] = number(element(a, warp, lane, i, op.types[0]), op.types[0])
    return A


@pytest.mark.parametrize("opcode", [o for o in sparse.forms() if o[1] == "sp"], ids=".".join)
def test_every_selector(opcode: tuple[str, ...]) -> None:
    op = sparse.compile_sparse(opcode)
    rng = np.random.default_rng(len(opcode))
    a, b, c = (random_registers(h, t, rng) for h, t in zip((op.a, op.b, op.c), op.types[:3], strict=True))
    words, per, warp = metadata(op, rng), max(32 // _BITS[op.types[1]], 1), 1
    B, C = np.zeros((op.k, 8)), np.zeros((16, 8))
    for lane in range(32):
        for i in range(op.k // 4):
            k = (lane % 4) * per + i % per + 4 * per * (i // per)
            B[k, lane // 4] = number(element(b, warp, lane, i, op.types[1]), op.types[1])
        for i in range(4):
            C[c_position(lane >> 2, lane & 3, i)] = number(element(c, warp, lane, i, op.types[2]), op.types[2])
    for selector in range(op.selectors):
        A = dense(op, a, words, selector, warp)
        d = op(a, b, c, op.places(words, selector))
        exact, scale = A @ B + C, abs(A) @ abs(B) + abs(C)
        for lane in range(32):
            for i in range(4):
                place = c_position(lane >> 2, lane & 3, i)
                got = number(element(d, warp, lane, i, op.types[3]), op.types[3])
                assert abs(got - exact[place]) <= _BOUND[op.types[3]] * scale[place], (selector, place)


def test_metadata_out_of_order() -> None:
    """mma.sp takes the elements of a chunk in any order, .sp::ordered_metadata in ascending order."""
    words = np.full((1, 32), 0x11111111, np.uint32)  # element 1, then element 0
    tail = ("sync", "aligned", "m16n8k32", "row", "col", "f32", "f16", "f16", "f32")
    assert sparse.compile_sparse(("mma", "sp", *tail)).places(words, 0)[0, 0, :4].tolist() == [1, 0, 5, 4]
    assert (sparse.compile_sparse(("mma", "sp::ordered_metadata", *tail)).places(words, 0) == -1).all()
    twice = np.full((1, 32), 0x55555555, np.uint32)
    assert (sparse.compile_sparse(("mma", "sp", *tail)).places(twice, 0) == -1).all()


def test_strangers() -> None:
    for shape, type_ in (("m16n8k64", "f16"), ("m16n8k32", "e4m3"), ("m16n8k4", "tf32")):
        with pytest.raises(BadModifier, match=r"mma\.sp"):
            sparse.compile_sparse(("mma", "sp", "sync", "aligned", shape, "row", "col", "f32", type_, type_, "f32"))
