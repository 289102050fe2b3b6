"""Layer norm in Triton, a row a program: a peer of the interpreter's benchmark."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def layer_norm(x, weight, bias, out, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * columns + at, mask=inside, other=0.0)
    centred = tl.where(inside, value - tl.sum(value, axis=0) / columns, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / columns + eps)
    factor, shift = tl.load(weight + at, mask=inside), tl.load(bias + at, mask=inside)
    tl.store(out + row * columns + at, centred * scale * factor + shift, mask=inside)
