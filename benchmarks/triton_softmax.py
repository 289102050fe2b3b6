"""Softmax in Triton, a row a program: a peer of the interpreter's benchmark."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * columns + at, mask=inside, other=-float("inf"))
    shifted = tl.exp(value - tl.max(value, axis=0))
    tl.store(out + row * columns + at, shifted / tl.sum(shifted, axis=0), mask=inside)
