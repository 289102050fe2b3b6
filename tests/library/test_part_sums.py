"""The sum of parts, of a known number and of one that the launch gives."""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd
from kernel_dsl.library.attention_forward.opened import opened
from kernel_dsl.library.attention_forward.sizes import AttentionProblem
from kernel_dsl.library.attention_gradients.attention_backward import default_config
from kernel_dsl.library.attention_gradients.ends import ELEMENTS, SUMMED, stats_kernel, sum_kernel
from kernel_dsl.library.first_sizes import dim_of
from kernel_dsl.library.part_sums import sum_of_parts
from kernel_dsl.library.product_kernels import combine
from kernel_dsl.library.products.problem import Problem

Spec = kd.ShapeDtypeStruct
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


def sums_kernels() -> dict[str, tuple[Any, int]]:
    """By name: the stages of kernels that mostly load, and the registers of a lane that their first loads fill."""
    f32, found = kd.float32, dict[str, tuple[Any, int]]()
    for parts in (8, 16):
        for M in (100, 1000, dim_of("M", 2**24)):
            problem = Problem(M, 512, 1, kd.bfloat16, kd.bfloat16, kd.bfloat16, parts=parts)
            stages = combine.combine_kernel(problem, True).lower(Spec((parts, 1000, 512), f32), target="sm_90a")
            rows = combine.height_of(problem)
            found[f"{parts} parts of {M}"] = stages, combine.in_flight(parts, rows) * rows * combine.TILE_N // 128
    gradient = AttentionProblem(2, 8, 8, 1000, 1000, 128, kd.bfloat16, True, 0.1, False)
    for splits in (4, 8):
        sums = Spec((splits, 2, 8, 1000, 128), f32)
        stages = sum_kernel(gradient, splits).lower(sums, sums, target="sm_90a")
        found[f"{splits} parts of gradients"] = stages, splits * SUMMED // 128
    for name, problem in (("one size", gradient), ("any size", opened(gradient))):
        rows, logs = Spec((2, 8, 1000, 128), kd.bfloat16), Spec((2, 8, 1000), f32)
        stages = stats_kernel(problem, default_config(gradient, 132)).lower(rows, rows, logs, target="sm_90a")
        found[f"inputs of gradients of {name}"] = stages, 2 * ELEMENTS // 2 // 128 + 4  # logarithms by vectors
    return found


def test_all_loads_come_before_their_first_use() -> None:
    """A lane has registers for them. With as few as the assembler takes by itself, loads wait for uses."""
    for name, (stages, needed) in sums_kernels().items():
        resources = stages.compile().resources
        assert resources.registers > needed and not resources.spills, (name, resources)
