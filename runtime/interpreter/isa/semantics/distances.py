"""Distances between sums of the tensor instructions and the exact sums, measured on one NVIDIA H200.

Distances are relative to the sum of |a b| and |c|. Hardware accumulates in fewer bits than the
accumulator has, in an order that is not published. The interpreter does not follow that order, but
its sums stay within the same bounds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measured:
    """The largest distances measured, of the hardware and of the interpreter, and the bound for both."""

    hardware: float
    interpreter: float
    bound: float


#: By instruction ("mma.sync" or "wgmma"), type of A and type of D. Forms that are not listed are exact.
DISTANCES: dict[tuple[str, str, str], Measured] = {
    ("mma.sync", "f16", "f16"): Measured(3.52e-04, 3.52e-04, 2.0**-11),
    ("mma.sync", "f16", "f32"): Measured(8.78e-08, 4.62e-08, 2.0**-23),
    ("mma.sync", "bf16", "f32"): Measured(8.60e-08, 4.62e-08, 2.0**-23),
    ("mma.sync", "tf32", "f32"): Measured(9.84e-08, 5.64e-08, 2.0**-23),
    ("mma.sync", "e4m3", "f16"): Measured(6.10e-04, 3.33e-04, 1.5 * 2.0**-11),
    ("mma.sync", "e5m2", "f16"): Measured(5.23e-04, 3.17e-04, 1.5 * 2.0**-11),
    ("mma.sync", "e4m3", "f32"): Measured(4.11e-08, 4.11e-08, 2.0**-24),
    ("mma.sync", "e5m2", "f32"): Measured(4.18e-08, 4.18e-08, 2.0**-24),
    ("mma.sync", "f64", "f64"): Measured(3.94e-16, 3.94e-16, 2.0**-51),
    ("wgmma", "f16", "f16"): Measured(4.08e-04, 4.08e-04, 2.0**-11),
    ("wgmma", "f16", "f32"): Measured(1.00e-07, 2.08e-07, 2.0**-22),
    ("wgmma", "bf16", "f32"): Measured(1.09e-07, 1.34e-07, 2.0**-22),
    ("wgmma", "tf32", "f32"): Measured(1.13e-07, 1.72e-07, 2.0**-22),
    ("wgmma", "e4m3", "f16"): Measured(3.53e-04, 3.53e-04, 2.0**-11),
    ("wgmma", "e5m2", "f16"): Measured(3.93e-04, 3.93e-04, 2.0**-11),
    ("wgmma", "e4m3", "f32"): Measured(1.08e-04, 4.02e-08, 2.0**-13),
    ("wgmma", "e5m2", "f32"): Measured(8.71e-05, 6.15e-08, 2.0**-13),
}


def bound(instruction: str, a_type: str, d_type: str) -> float:
    """Return the largest distance allowed; 0 for integers."""
    found = DISTANCES.get((instruction, a_type, d_type))
    return 0.0 if found is None else found.bound
