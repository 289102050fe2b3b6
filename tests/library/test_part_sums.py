"""The sum of parts, of a known number and of one that the launch gives."""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd
from kernel_dsl.library.part_sums import sum_of_parts

N = kd.Dim("N", max=64)


def kernel(known: bool) -> Any:
    def body(parts: Any, out: Any) -> None:
        count = parts.shape[0]
        out[...] = sum_of_parts(lambda number: parts[number], count, 4)

    shapes = None if known else {"parts": (N, None)}
    return kd.kernel(body, out_type=lambda parts: kd.ShapeDtypeStruct((200,), kd.float32), shapes=shapes)


def test_parts_are_added_in_order() -> None:
    """Fewer than are loaded together, as many, and numbers that leave some; each gives the bits of a sum in order."""
    fixed, free = kernel(True), kernel(False)
    for count in (1, 2, 3, 4, 5, 7, 8, 9, 13):
        parts = np.random.default_rng(count).standard_normal((count, 200)).astype(np.float32)
        want = parts[0]
        for part in parts[1:]:
            want = want + part
        for made in (fixed, free):
            assert made(parts, interpret=True).tobytes() == want.tobytes(), count
    assert len(free.specialisations()) == 1
