"""The vector sum in Triton: its kernels must live in a file of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl


@triton.jit
def add(x, y, o, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(o + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


def run(x: Any, y: Any, out: Any, n: int, block: int) -> Callable[[], Any]:
    """A call of the kernel on these arrays."""
    grid = (triton.cdiv(n, block),)
    return lambda: add[grid](x, y, out, n, BLOCK=block)
