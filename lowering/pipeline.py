"""The pipeline as a table of contents: what happens to a traced kernel before it becomes LLVM text, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernel_dsl.ir import KernelIR
from kernel_dsl.target import Target
from kernel_dsl.verify import verify

from .passes import check_target, finish_copies, order_memory, split_loops


@dataclass(frozen=True)
class Pass:
    """A step from kernel to kernel."""

    name: str
    run: Callable[[KernelIR, Target], KernelIR]
    why: str


PASSES = (
    Pass("check target", check_target.run, "LLVM ends the process on a missing instruction; say it first"),
    Pass("finish copies", finish_copies.run, "no copy may read or write SMEM that has ended or is another's"),
    Pass("split loops", split_loops.run, "each warpgroup's role keeps the registers that it asked for"),
    Pass("order memory", order_memory.run, "lanes of a warpgroup must see each other's stores in program order"),
)

# (earlier, later): why
BEFORE = {
    ("check target", "finish copies"): "nothing is changed in a kernel that is refused",
    ("finish copies", "split loops"): "which takes allocations out of the loops where they are made anew",
    ("finish copies", "order memory"): "its waits are meetings of the warpgroup too",
    ("split loops", "order memory"): "where a warpgroup has to meet depends on what is left of its loop",
}

# Whether the kernel is verified after tracing and after each pass: the tests' debug switch.
check_each_pass = False

_names = [p.name for p in PASSES]
for _first, _second in BEFORE:
    assert _names.index(_first) < _names.index(_second), f"{_first} must come before {_second}"


def run_passes(ir: KernelIR, target: Target, observe: Callable[[Pass, KernelIR], None] | None = None) -> KernelIR:
    """All passes in order; `observe` sees the kernel after each."""
    if check_each_pass:
        verify(ir)
    for step in PASSES:
        ir = step.run(ir, target)
        if check_each_pass:
            verify(ir)
        if observe is not None:
            observe(step, ir)
    return ir
