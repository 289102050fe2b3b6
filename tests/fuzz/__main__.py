"""`python -m tests.fuzz --count N --seed S [--device gpu] [--jobs J]`: random kernels, each against NumPy in float64.

With a GPU the interpreter must give its bits too. A failure prints a program that reproduces it, and ends with status 1.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tests.fuzz.generate import Program, generate


def attempt(program: Program, gpu: bool) -> str | None:
    """What is wrong with a program's results, or None."""
    try:
        seen = program.run(interpret=True)
        program.check(seen)
        if gpu:
            there = program.run(interpret=False)
            program.check(there)
            return differing(program, there, seen)
    except Exception:
        return traceback.format_exc(limit=-6)
    return None


def differing(program: Program, there: list[np.ndarray], seen: list[np.ndarray]) -> str | None:
    """The first step whose bits differ between the outputs of a GPU and those of the interpreter, or None."""
    # tensor cores add in an order and a width of their own: what they made agrees within its bound only
    loose: set[str] = set()
    count = len(program.steps)  # outputs that smaller values fill come after those of steps
    for number, (step, a, b) in enumerate(zip(program.steps, there[:count], seen[:count], strict=True)):
        made = step.operation == "dot" and a.dtype.kind not in "iu"
        if made or loose.intersection(step.operands):
            loose.add(f"v{number}")
        elif not same_bits(a, b):
            return f"GPU and interpreter differ in {step.text}"
    return None


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal, with every not-a-number as good as another."""
    if a.dtype.kind in "iub":
        return bool(np.array_equal(a, b))
    nan = np.isnan(a.astype(np.float64))
    bits = np.dtype(f"u{a.dtype.itemsize}")
    same = np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)
    return bool(np.all(same | (nan & np.isnan(b.astype(np.float64)))))


def minimal(program: Program, gpu: bool) -> Program:
    """The shortest slice of a program that still fails."""
    for number in range(len(program.steps)):
        shorter = program.sliced(number)
        if attempt(shorter, gpu) is not None:
            return shorter
    return program


def reproducer(program: Program) -> str:
    return f"""# python -m tests.fuzz --count 1 --seed {program.seed}
from tests.fuzz.generate import generate
# inputs: {", ".join(f"{i.name} {i.dtype}{list(i.shape)}" for i in program.inputs)}
arrays = generate({program.seed}).arrays()
{program.source()}
print(kernel(*arrays, interpret=True))
"""


def run(options: argparse.Namespace) -> int:
    """How many of the kernels fail, in this process."""
    failures = 0
    for seed in range(options.seed, options.seed + options.count):
        program = generate(seed)
        gpu = options.device == "gpu"
        wrong = attempt(program, gpu)
        if wrong is None:
            continue
        failures += 1
        print(f"seed {seed}: {wrong}\n{reproducer(minimal(program, gpu))}", flush=True)
        if not options.keep_going:
            break
    return failures


def share(options: argparse.Namespace) -> int:
    """How many fail, shared among `--jobs` processes, each of which is new after so many kernels.

    What ends a process, or leaves a GPU's context useless, costs no other's kernels; it counts as a failure, and says
    which seeds the process had.
    """
    ended = threading.Event()
    each = min(KERNELS_A_PROCESS, -(-options.count // options.jobs))

    def part(first: int) -> int:
        count = min(each, options.seed + options.count - first)
        if ended.is_set():
            return 0
        command = [sys.executable, "-m", "tests.fuzz", "--seed", str(first), "--count", str(count)]
        command += ["--device", options.device, *["--keep-going"] * options.keep_going]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        found = _TOTAL.search(done.stdout)
        if done.returncode == 0 and found:
            return 0
        if not options.keep_going:
            ended.set()
        print(done.stdout + f"\nended with {done.returncode}: {' '.join(command[1:])}", flush=True)
        return max(int(found[1]), 1) if found else 1

    with ThreadPoolExecutor(options.jobs) as pool:
        return sum(pool.map(part, range(options.seed, options.seed + options.count, each)))


KERNELS_A_PROCESS = 50
_TOTAL = re.compile(r"^\d+ kernels from seed \d+: (\d+) failures", re.M)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="how many kernels")
    parser.add_argument("--seed", type=int, default=0, help="the first kernel's seed; the others follow")
    parser.add_argument("--device", choices=["interpreter", "gpu"], default="interpreter")
    parser.add_argument("--keep-going", action="store_true", help="count failures instead of ending at the first")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes share the kernels")
    options = parser.parse_args()
    start = time.perf_counter()
    failures = run(options) if options.jobs == 1 else share(options)
    took = time.perf_counter() - start
    print(f"{options.count} kernels from seed {options.seed}: {failures} failures, {took:.1f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
