"""Times of cold compiles, in milliseconds, as JSON: run in a process of its own by test_compile_time.py.

Every measured kernel is new to the process. Processor time of this process and of the assembler counts, and of several
compiles alike the fastest, so that a busy machine is no failure.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import kernel_dsl as kd
from tests.speed import linear, slowness

X = kd.ShapeDtypeStruct((256,), kd.float32)
TRIES = 3


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


def spent() -> float:
    """Seconds of processor time, with those of finished child processes."""
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


def fastest(make: Callable[[int], Any], finish: Callable[[Any], Any], tries: int = TRIES) -> float:
    """The least time of a few compiles, from the body on."""
    times: list[float] = []
    for number in range(tries):
        start = spent()
        finish(make(number))
        times.append(spent() - start)
    return 1e3 * min(times)


def to_ptx(stages: Any) -> None:
    assert stages.ptx


def to_cubin(stages: Any) -> None:
    assert stages.compile().cubin


def main() -> None:
    to_ptx(chain(2, 100))  # llvmlite loaded
    before = slowness()
    numbers = itertools.count()
    short, long = linear(lambda size: fastest(lambda _: chain(size, next(numbers)), to_ptx, 1), 800, 1600)
    rows: dict[str, float] = {
        "chain of 800": short,
        "chain of 1600": long,
        "nested 12 deep": fastest(lambda n: nested(12, n), to_ptx),
    }
    if "--assemble" in sys.argv:
        rows["vector add"] = fastest(vector_add, to_cubin)
        rows["matmul"] = fastest(matmul, to_cubin)
        for columns in (128, 4096, 8192, 32768):
            rows[f"softmax of {columns}"] = fastest(lambda n, c=columns: softmax(c, n), to_cubin)
    rows["slowness"] = max(before, slowness())
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
