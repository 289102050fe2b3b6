"""Measures the worst errors of `lowering.math` and keeps the table in `docs/math-accuracy.md`.

`python -m tests.math.accuracy` measures everything (an hour on one core) and rewrites the table;
`python -m tests.math.accuracy exp log` measures only those and replaces their rows. Functions of
one float32 are compared at all 2^32 of them, the others at random arguments.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernel_dsl.lowering.math import FUNCTIONS

from .device import compile_ptx
from .host import errors_double, errors_single, host_function
from .references import pairs, reference, samples

TABLE = Path(__file__).parents[2] / "docs" / "math-accuracy.md"
RANDOM_ARGUMENTS = 3_000_000
CHUNK = 1 << 20

HEADER = """# Accuracy of the mathematical functions

The table gives the largest measured error of each function, in units in the last place (ulp) of the
exact result, and the argument with this error. Float32 functions of one argument were evaluated at
all 2^32 arguments and compared with float64. All others were evaluated at 3 million random arguments
(special values, all exponents alike, and values near 0) and compared with the next wider format. Below
the smallest normal number, one ulp is the smallest subnormal. A wrong NaN, a wrong infinity and a zero
of the wrong sign count as infinite errors; the measurement found none.

The limits are 2 ulp in float32 and 4 in float64; for `pow` 4 and 8. `fmod` and `remainder` are
exact (the table's half ulp is the rounding of a sum with the divisor). The functions consist of
IEEE-rounded operations only, so a GPU, the interpreter and this measurement on a CPU should give
the same bits; `tests/math/test_same_bits.py` compares them. With `approx_math=True` float32
functions that the hardware approximates use its instructions instead: see the PTX ISA for their
errors.

The last two columns count PTX instructions, without those of a rare slow path.

Measured by `python -m tests.math.accuracy`.

| function | float32, ulp | at | float64, ulp | at | PTX float32 | PTX float64 |
|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Worst:
    """The largest error found, in ulp, and the arguments it was found at."""

    error: float
    arguments: tuple[float, ...]

    def or_worse(self, other: Worst) -> Worst:
        return other if other.error > self.error else self


def measured_names() -> list[str]:
    """The functions that have a reference and an error worth a row."""
    names = dict.fromkeys(key.split(".")[0] for key in FUNCTIONS if not FUNCTIONS.is_helper(key))
    exact = {"floor", "ceil", "trunc", "rint", "sqrt", "nextafter", "ldexp", "floor_divide"}
    composed = {"logaddexp", "logaddexp2"}  # their error is relative to the larger operand
    return sorted(set(names) - exact - composed)


def worst_of(name: str, dtype: str, *arguments: np.ndarray) -> Worst:
    """The worst error of `name` ("exp") in `dtype` ("f32") at the given arguments."""
    result = host_function(f"{name}.{dtype}")(*arguments)
    exact = reference(name, dtype)(*arguments)
    errors = (errors_single if dtype == "f32" else errors_double)(result, exact)
    where = int(np.argmax(errors))
    return Worst(float(errors[where]), tuple(float(a[where]) for a in arguments))


def all_singles(stride: int = 1) -> Iterator[np.ndarray]:
    """All float32 values, or every `stride`-th, in chunks."""
    for base in range(0, 1 << 32, CHUNK * stride):
        stop = min(base + CHUNK * stride, 1 << 32)
        yield np.arange(base, stop, stride, dtype=np.uint64).astype(np.uint32).view(np.float32)


def sweep(name: str, stride: int = 1) -> Worst:
    """The worst error over all float32 arguments (every `stride`-th)."""
    worst = Worst(-1.0, ())
    for x in all_singles(stride):
        worst = worst.or_worse(worst_of(name, "f32", x))
    return worst


def worst_at_random(name: str, dtype: str, count: int, seed: int = 0) -> Worst:
    """The worst error at `count` random arguments or pairs of them."""
    worst = Worst(-1.0, ())
    for part in range(0, count, CHUNK):
        size = min(CHUNK, count - part)
        if FUNCTIONS[f"{name}.{dtype}"].arity == 1:
            arguments = (samples(dtype, size, seed + part),)
        else:
            arguments = pairs(name, dtype, size, seed + part)
        worst = worst.or_worse(worst_of(name, dtype, *arguments))
    return worst


def row(name: str) -> str:
    """The table's row for a function, measured now."""
    unary = FUNCTIONS[f"{name}.f32"].arity == 1
    single = sweep(name) if unary else worst_at_random(name, "f32", RANDOM_ARGUMENTS)
    double = worst_at_random(name, "f64", RANDOM_ARGUMENTS)
    cells = [f"`{name}`"]
    for worst, digits in ((single, 9), (double, 17)):
        cells += [f"{worst.error:.2f}", ", ".join(f"{a:.{digits}g}" for a in worst.arguments)]
    return with_counts(name, "| " + " | ".join([*cells, "", ""]) + " |")


def with_counts(name: str, line: str) -> str:
    """A row with its instruction counts brought up to date."""
    counts = [compile_ptx(f"{name}.{dtype}").instructions for dtype in ("f32", "f64")]
    return "| " + " | ".join(line.strip("| ").split(" | ")[:5] + [str(c) for c in counts]) + " |"


def main(names: list[str]) -> None:
    rows: dict[str, str] = {}
    if TABLE.exists():
        lines = [line for line in TABLE.read_text().splitlines() if line.startswith("| `")]
        names_of = {line.split("`")[1]: line for line in lines}
        rows = {name: with_counts(name, line) for name, line in names_of.items()}
    for name in names or measured_names():
        rows[name] = row(name)
        print(rows[name], flush=True)
        TABLE.parent.mkdir(exist_ok=True)
        TABLE.write_text(HEADER + "".join(rows[key] + "\n" for key in sorted(rows)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.math.accuracy", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", choices=[[], *measured_names()], help="a function, such as exp"
    )
    main(parser.parse_args().names)
