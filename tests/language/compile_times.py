"""What cold compiles cost, as JSON: run in a process of its own by test_compile_time.py.

Every measured kernel is new to the process. Of each: the calls that tracing and lowering come down to, the lines of LLVM
text and of PTX that LLVM and the assembler are given, and the whole processor time beside that of a trace.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import kernel_dsl as kd
from kernel_dsl.runtime.assemble import find_ptxas
from tests.work import calls

X = kd.ShapeDtypeStruct((256,), kd.float32)


def chain(count: int, number: int) -> Any:
    """A kernel of `count` elementwise ops, one after the other."""

    def body(x: Any, out: Any) -> None:
        value = x[...]
        for i in range(count // 2):
            value = value * (1.5 + number)
            value = value + 0.25 * (i % 2)
        out[...] = value

    return kd.kernel(body, out_type=X, name=f"chain_{count}_{number}").lower(X)


def nested(depth: int, number: int) -> Any:
    """Conditionals within each other."""

    def within(level: int, chosen: Any, value: Any) -> Any:
        if level == 0:
            return value
        return kd.cond(chosen > level, lambda: within(level - 1, chosen, value + number), lambda: value * 2.0)

    def body(x: Any, chosen: Any, out: Any) -> None:
        out[...] = within(depth, chosen, x[...])

    return kd.kernel(body, out_type=X, name=f"nested_{depth}_{number}").lower(X, kd.int32(3))


def vector_add(number: int) -> Any:
    def body(x: Any, y: Any, out: Any) -> None:
        part = kd.ds(kd.program_id(0) * 512, 512)
        out[part] = x[part] + y[part]

    spec = kd.ShapeDtypeStruct((10_000 + number,), kd.float32)
    return kd.kernel(body, out_type=spec, grid=(20,), name="vector_add").lower(spec, spec)


def softmax(columns: int, number: int) -> Any:
    example = importlib.import_module("examples.01_softmax")
    spec = kd.ShapeDtypeStruct((1000 + number, columns), kd.bfloat16)
    return example.softmax_for(columns).lower(spec)


def matmul(number: int) -> Any:
    spec = kd.ShapeDtypeStruct((8192, 8192), kd.bfloat16)
    return kd.library.matmul.lower(spec, kd.ShapeDtypeStruct((8192, 8192 + 256 * number), kd.bfloat16))


def to_ptx(stages: Any) -> None:
    assert stages.ptx


def to_machine_code(stages: Any) -> None:
    """To a cubin, where there is an assembler."""
    assert stages.ptx
    if find_ptxas() is not None:
        assert stages.compile().cubin


class Case(NamedTuple):
    """A kernel of a number, and what its compile may cost: a third more than it does, and four times its time."""

    make: Callable[[int], Any]
    calls: int
    llvm: int
    ptx: int
    traces: float


CASES: dict[str, Case] = {
    "chain of 400": Case(lambda n: chain(400, n), 260_000, 2_200, 2_700, 11),
    "chain of 800": Case(lambda n: chain(800, n), 510_000, 4_400, 5_400, 22),
    "nested 12 deep": Case(lambda n: nested(12, n), 38_000, 380, 150, 2),
    "vector add": Case(vector_add, 7_000, 220, 190, 3),
    "matmul": Case(matmul, 160_000, 2_100, 1_700, 24),
    "softmax of 128": Case(lambda n: softmax(128, n), 14_000, 420, 610, 6),
    "softmax of 4096": Case(lambda n: softmax(4096, n), 18_000, 700, 1_120, 10),
    "softmax of 8192": Case(lambda n: softmax(8192, n), 28_000, 1_220, 2_100, 21),
    "softmax of 32768": Case(lambda n: softmax(32768, n), 57_000, 4_100, 2_850, 23),
}


def spent() -> float:
    """Seconds of processor time, with those of finished child processes."""
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


def seconds(work: Callable[[], Any]) -> float:
    start = spent()
    work()
    return spent() - start


def in_traces(case: Case, number: Iterator[int], tries: int = 6) -> float:
    """Processor time from the body to machine code, in that of tracing 800 ops, which is Python's alone.

    A slow machine is slow at both. Noise only adds, so the least of several counts, until it is within the bound.
    """
    unit = least = 1e9
    for _ in range(tries):
        unit = min(unit, seconds(lambda: chain(800, next(number))))
        least = min(least, seconds(lambda: to_machine_code(case.make(next(number)))))
        if least <= case.traces * unit:
            break
    return least / unit


def main() -> None:
    number = itertools.count(1)
    rows: dict[str, dict[str, float]] = {}
    for name, case in CASES.items():
        to_ptx(case.make(next(number)))  # what is imported and looked up once is no part of it
        stages: list[Any] = []
        counted = calls(lambda c=case, s=stages: (s.append(c.make(next(number))), to_ptx(s[0])))
        rows[name] = {
            "calls": counted,
            "llvm": stages[0].llvm.count("\n"),
            "ptx": stages[0].ptx.count("\n"),
            "traces": in_traces(case, number),
        }
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
