"""How far sums of tensor cores may be from the exact ones, relative to the greatest."""

from __future__ import annotations

FP8_STEP = 32  # elements of K that one instruction adds up
FP8_ULP = 2.0**-13  # of an accumulator of fp8 products, which has 14 significant bits, relative to its value


def fp8_error(K: int, run: int | None = None) -> float:
    """Of a product of fp8 operands whose sums are promoted to float32 after each `run` elements of K, or never.

    An instruction lines up its products and the accumulator by the greatest of them, and cuts off what lies below 14 bits:
    it loses up to a unit of the last place of the products, another of the accumulator. What is cut off always brings sums
    nearer to zero, so the losses of the instructions of a run add up: half a unit each on the average, for the accumulator is
    at its greatest at the end. The losses of several runs are of the same share of each run's sum, and so of the whole.
    One NVIDIA H200, normal numbers: 3.1e-4 after 128, 2.7e-3 after 2048, 5.2e-3 after 4098, 9.3e-3 after 8191 (the last two
    rounded to bfloat16), where this gives 4.9e-4, 4.2e-3, 8.1e-3 and 1.6e-2.
    """
    steps = -(-min(K, run or K) // FP8_STEP)
    return FP8_ULP * (2 + steps / 2)


def float32_error(K: int) -> float:
    """Of sums in float32 by `mma.sync`, at most 8 elements of K an instruction (tf32; others take more).

    Each instruction cuts off what lies below the sum's last place, which brings it nearer to zero: half a unit, of a sum that
    is half of its end on the average. One NVIDIA H200: 2.7e-5 of a product of two sums of 8192, where this gives 6.2e-5.
    """
    return 2.0**-25 * -(-K // 8)
