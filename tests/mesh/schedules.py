"""What share of the random schedules finds a bug that only some orders show: `python -m tests.mesh.schedules --programs 40`.

The programs are mutants of the patterns and of random programs (`sync_programs`), with at least one clean order and at least one that
is not. For each probability that a schedule gives batches ranks, it prints the share of (program, seed) pairs whose run is not clean.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from itertools import islice

from kernel_dsl.runtime.interpreter.machine import turns

from .sync_programs import MOST, PATTERNS, Program, TooLongError, mutants, outcomes, scattered
from .test_random_programs import told


def hard_programs(seed: int) -> Iterator[Program]:
    """Endless programs that are wrong in some orders and right in others."""
    pick = random.Random(seed)
    while True:
        program = pick.choice([*PATTERNS, scattered, scattered])(pick)
        if not any(program.events):
            continue
        for _, mutant in islice(mutants(program, pick), 4):
            if max(map(len, mutant.events)) > MOST:
                continue
            try:
                truth = outcomes(mutant)
            except TooLongError:
                continue
            if "clean" in truth and len(truth) > 1:
                yield mutant


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--first", type=int, default=0, help="the seed of the programs")
    parser.add_argument("--ranked", type=float, nargs="*", default=[0.0, 0.5, 0.75, 1.0])
    args = parser.parse_args()
    programs = list(islice(hard_programs(args.first), args.programs))
    several = sum(program.blocks > 1 for program in programs)
    print(f"{len(programs)} programs, {several} of several blocks a GPU; {args.seeds} seeds")
    for share in args.ranked:
        turns._RANKED = share
        found = [[told(program, seed=seed) != "clean" for seed in range(args.seeds)] for program in programs]
        every = sum(map(sum, found)) / (len(programs) * args.seeds)
        some = sum(map(any, found))
        print(
            f"ranked {share:4.2f}: {every:.1%} of the schedules find it; {some} programs are found by some seed",
            flush=True,
        )


if __name__ == "__main__":
    main()
