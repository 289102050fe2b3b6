"""`python -m tests.fuzz.memory KIND --count N --seed S [--device gpu]`: random kernels that move memory or nest, against NumPy.

KIND is views, halos, pipelines, specs, nests, tickets, scales, orders or products. A failure prints the kernel, and ends with status 1. On a GPU the kernels run in child
processes, as a fault takes the context with it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import kernel_dsl as kd
from tests.fuzz import halos, nests, orders, pipelines, products, scales, specs, tickets, views
from tests.schedules import SCHEDULES

KINDS: dict[str, Callable[[int], Any]] = {
    "views": views.generate,
    "halos": halos.generate,
    "pipelines": pipelines.generate,
    "specs": specs.generate,
    "nests": nests.generate,
    "tickets": tickets.generate,
    "scales": scales.generate,
    "orders": orders.generate,
    "products": products.generate,
}
REFUSED = "refused"
CHUNK = 100  # kernels a child process


def attempt(kind: str, seed: int, gpu: bool = False, schedules: tuple[str, ...] = SCHEDULES) -> str | None:
    """What is wrong with a kernel's results, or None; `REFUSED` for what TMA can't do, or a use before a wait, that says so."""
    program = KINDS[kind](seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            if gpu:
                program.check(program.run(False))
            for schedule in () if gpu else schedules:
                program.check(program.run(kd.InterpretParams(schedule=schedule, seed=seed)))
    except Exception as error:
        if isinstance(error, kd.Error) and error.code == ("accumulator-use" if kind == "products" else "tma-rule"):
            return REFUSED
        return f"{traceback.format_exc(limit=-4)}\n{program.source()}"
    return None


def _here(options: argparse.Namespace, seeds: range) -> list[int]:
    """The seeds that fail, printed as they do."""
    failed: list[int] = []
    for seed in seeds:
        wrong = attempt(options.kind, seed, options.device == "gpu")
        if wrong not in (None, REFUSED):
            failed.append(seed)
            print(f"{options.kind} {seed}: {wrong}", flush=True)
        if options.child:
            print(f"done {seed}", flush=True)
        if failed and not options.keep_going:
            break
    return failed


def _children(options: argparse.Namespace) -> list[int]:
    """The same in processes of their own: where one ends early, the next one goes on behind the kernel that it was at."""
    failed: list[int] = []
    at, end = options.seed, options.seed + options.count
    while at < end:
        count = min(CHUNK, end - at)
        command = [sys.executable, "-m", "tests.fuzz.memory", options.kind, "--count", str(count), "--seed", str(at)]
        child = subprocess.run(
            [*command, "--device", "gpu", "--child"], capture_output=True, text=True, timeout=3600, check=False
        )
        done = [int(line.split()[1]) for line in child.stdout.splitlines() if line.startswith("done ")]
        text = "\n".join(line for line in child.stdout.splitlines() if not line.startswith("done "))
        if child.returncode:
            culprit = done[-1] + 1 if done and text == "" else (done[-1] if done else at)
            failed.append(culprit)
            print(f"{options.kind} {culprit}: {text}\n{child.stderr[-2000:]}", flush=True)
            if not options.keep_going:
                break
            at = culprit + 1
        else:
            at += count
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.memory", description=__doc__)
    parser.add_argument("kind", choices=[*KINDS])
    parser.add_argument("--count", type=int, default=100, help="how many kernels")
    parser.add_argument("--seed", type=int, default=0, help="the first kernel's seed; the others follow")
    parser.add_argument("--device", choices=["interpreter", "gpu"], default="interpreter")
    parser.add_argument("--keep-going", action="store_true", help="count failures instead of ending at the first")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    start = time.perf_counter()
    if options.device == "gpu" and not options.child:
        failed = _children(options)
    else:
        failed = _here(options, range(options.seed, options.seed + options.count))
    if not options.child:
        took = time.perf_counter() - start
        print(
            f"{options.count} kernels of {options.kind} from seed {options.seed}: {len(failed)} failures, {took:.1f} s"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
