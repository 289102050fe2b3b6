"""Random calls of the library as a command: in this process, or in several, in the interpreter or on a GPU.

A kind makes the call of a seed, `make(seed, large)`: an object whose `run(interpret)` raises where a result is wrong, and whose text
says what was called. Seed n is always a call of kind n % (number of kinds), so a failure is repeated by its seed alone.
"""

from __future__ import annotations

import argparse
import ast
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import kernel_dsl as kd
from kernel_dsl.tuning_file import choose_anew
from tests.schedules import SCHEDULES

SILENT = {False: 900.0, True: 45.0}  # seconds after which a child without a word counts as stuck; on a GPU
ALONE = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}  # of many processes


class Call(Protocol):
    """One call with its arrays; its text describes it."""

    def run(self, interpret: Any) -> None: ...


Kinds = dict[str, Callable[[int, bool], Call]]


def attempt(kinds: Kinds, seed: int, gpu: bool = False) -> str | None:
    """What is wrong with the call of a seed, or None. On a GPU it has real sizes."""
    number, turn = seed % len(kinds), seed // len(kinds)
    choose_anew()  # calls before this one have no part in it
    call = [*kinds.values()][number](seed, gpu)
    schedule = kd.InterpretParams(schedule=SCHEDULES[turn % 3], seed=seed, report_unwritten=True)
    try:
        call.run(False if gpu else schedule)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__} at {where.name}: {where.line}\n   {str(error)[:1500]}"
        return f"{[*kinds][number]}, {schedule.schedule}: {call}\n   {said}"
    return None


def check(kinds: Kinds, module: str, seeds: Iterable[int], gpu: bool = False) -> None:
    """Raise an AssertionError that says how to repeat the first call that is wrong."""
    for seed in seeds:
        wrong = attempt(kinds, seed, gpu)
        assert wrong is None, f"python -m {module} --count 1 --seed {seed}{' --gpu' * gpu}\n{wrong}"


def main(kinds: Kinds, module: str, description: str | None) -> int:
    """The command: prints each failure and a last line, and returns the exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--only", choices=[*kinds], help="skip the seeds of other kinds")
    parser.add_argument(
        "--count", type=int, default=10**6, help="how many seeds, by default as many as --seconds allows"
    )
    parser.add_argument("--seed", type=int, default=0, help="the first one; the others follow")
    parser.add_argument("--seconds", type=float, default=60.0, help="begin none after so many seconds")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--gpu", action="store_true", help="on the GPU and at real sizes, instead of the interpreter")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    seeds = [
        n
        for n in range(options.seed, options.seed + options.count)
        if options.only is None or [*kinds][n % len(kinds)] == options.only
    ]
    begun = time.perf_counter()
    if options.child:
        return _child(kinds, options)
    if options.processes == 1 and not options.gpu:
        done, failed = _here(kinds, seeds, begun + options.seconds)
    else:
        done, failed = _Parent(module, seeds, options).run()
    print(f"{done} calls from seed {options.seed}: {len(failed)} wrong {failed}, {time.perf_counter() - begun:.0f} s")
    return 1 if failed else 0


def _here(kinds: Kinds, seeds: list[int], end: float) -> tuple[int, list[int]]:
    """(how many calls were made, the seeds of those that are wrong)."""
    failed: list[int] = []
    for done, seed in enumerate(seeds):
        if time.perf_counter() > end:
            return done, failed
        wrong = attempt(kinds, seed)
        if wrong:
            failed.append(seed)
            print(f"{seed}: {wrong}", flush=True)
    return len(seeds), failed


def _child(kinds: Kinds, options: argparse.Namespace) -> int:
    """Run the seeds that the parent writes; answer each by a line."""
    for line in sys.stdin:
        wrong = attempt(kinds, int(line), options.gpu)
        print("right" if wrong is None else f"wrong {wrong!r}", flush=True)
    return 0


class _Parent:
    """Children that take the next seed when they have answered. One that ends or is stuck is replaced."""

    def __init__(self, module: str, seeds: list[int], options: argparse.Namespace) -> None:
        self.command = [sys.executable, "-m", module, "--child", *["--gpu"] * options.gpu]
        self.seeds: queue.SimpleQueue[int] = queue.SimpleQueue()
        for seed in seeds[: 10**5]:
            self.seeds.put(seed)
        self.end, self.count, self.silent = (
            time.perf_counter() + options.seconds,
            options.processes,
            SILENT[options.gpu],
        )
        self.done, self.failed = 0, list[int]()

    def run(self) -> tuple[int, list[int]]:
        workers = [threading.Thread(target=self._work) for _ in range(self.count)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return self.done, sorted(self.failed)

    def _work(self) -> None:
        child: Any = None
        while time.perf_counter() < self.end:
            try:
                seed = self.seeds.get_nowait()
            except queue.Empty:
                break
            child = child or self._child()
            answer = self._ask(child, seed)
            self.done += 1
            if answer.startswith("right"):
                continue
            self.failed.append(seed)
            words = ast.literal_eval(answer.partition(" ")[2]) if answer.startswith("wrong") else answer
            print(f"{seed}: {words}", flush=True)
            if not answer.startswith("wrong") or "CUDA" in words:  # a fault takes the context with it
                child.kill()
                child.wait()
                child = None
        if child is not None:
            child.stdin.close()
            child.wait()

    def _child(self) -> Any:
        pipe = subprocess.PIPE
        return subprocess.Popen(self.command, stdin=pipe, stdout=pipe, text=True, env=os.environ | ALONE)

    def _ask(self, child: Any, seed: int) -> str:
        stuck = threading.Timer(self.silent, child.kill)
        stuck.start()
        try:
            child.stdin.write(f"{seed}\n")
            child.stdin.flush()
            return child.stdout.readline() or f"the process ended, or was stuck for {self.silent:.0f} s"
        except BrokenPipeError:
            return "the process ended"
        finally:
            stuck.cancel()
