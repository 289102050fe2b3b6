"""Random matrices, references in float64, and what every assembled kernel must be."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import kernel_dsl as kd


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    """Normal floats, or small integers."""
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    return rng.integers(-9 if dtype.is_signed else 0, 10, shape).astype(dtype.numpy)


def relative(got: Any, expected: Any) -> float:
    """The worst error, of the largest expected magnitude."""
    scale = float(np.abs(expected).max()) or 1.0
    return float(np.abs(np.asarray(got, np.float64) - expected).max()) / scale


def assemble(kernel: Any, *args: Any) -> Any:
    """Assemble for sm_90a: no spills, and no remark that products were serialised."""
    compiled = kernel.lower(*args, target="sm_90a").compile()
    assert compiled.resources.spills == 0
    assert not [r for r in compiled.remarks if "C75" in r.text], compiled.remarks
    return compiled


def tiles(dtype: Any, swizzle: int = 128) -> tuple[Any, Any]:
    """The transforms of a swizzled buffer."""
    return kd.TilingTransform((8, swizzle // dtype.itemsize)), kd.SwizzleTransform(swizzle)


def run_random(description: str | None, make: Callable[[Any], Any], run: Callable[[Any, int, Any], None]) -> None:
    """A command line that runs random calls and prints those that fail.

    `make(rng)` makes a call, and `run(call, seed, interpret)` runs it.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--gpu", action="store_true", help="on the GPU instead of the interpreter")
    args = parser.parse_args()
    rng, failed, begun = np.random.default_rng(args.seed), 0, time.perf_counter()
    for number in range(args.count):
        call = make(rng)
        try:
            run(call, number, False if args.gpu else kd.InterpretParams(seed=number, report_unwritten=True))
        except Exception as error:
            failed += 1
            print(f"{number}: {call}\n   {type(error).__name__}: {str(error)[:300]}")
    print(f"{args.count} calls, {failed} wrong, {time.perf_counter() - begun:.0f} s")
    raise SystemExit(failed > 0)
