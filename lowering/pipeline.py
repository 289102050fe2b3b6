"""The table of the pipeline's steps from the trace to the `CompiledKernel`, with the reason of each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernel_dsl.compiled import CompiledKernel
from kernel_dsl.ir import KernelIR
from kernel_dsl.steps import TRACED, Step, Where, walk
from kernel_dsl.target import Target
from kernel_dsl.verify import verify

from . import module
from .job import CallSpec, Job, Lowered
from .passes import check_barriers, check_target, fence_reads, finish_copies, order_memory, split_loops


def _pass(name: str, run: Callable[[KernelIR, Target], KernelIR], why: str) -> Step[Job]:
    def step(job: Job) -> None:
        job.ir = run(job.ir, job.target)

    return Step(Where.PASS, name, step, why)


def _module(name: str, run: Callable[[Job], None], why: str) -> Step[Job]:
    return Step(Where.MODULE, name, run, why)


def _code(name: str, run: Callable[[Job], None], why: str) -> Step[Job]:
    return Step(Where.CODE, name, run, why)


STEPS: tuple[Step[Any], ...] = (
    *TRACED,
    Step(Where.GPU, "check waits", check_barriers.check_waits, "a wait that nothing ends would hang the GPU"),
    _pass("check target", check_target.run, "LLVM ends the process on a missing instruction; say it first"),
    _pass("finish copies", finish_copies.run, "copies must be done before their SMEM ends or is used again"),
    _pass("split loops", split_loops.run, "each warpgroup's role keeps the registers that it asked for"),
    _pass("fence reads", fence_reads.run, "a bulk copy must not overtake lanes' loads of what it overwrites"),
    _pass("order memory", order_memory.run, "lanes of a warpgroup must see each other's stores in program order"),
    _module("open the module", module.open_module, "rules write with one writer and share one context"),
    _module("plan SMEM", module.plan_buffers, "addresses of buffers are constants of the text"),
    _module("declare parameters", module.declare_parameters, "rules read arrays and scalars by the entry's names"),
    _module("find meetings", module.meet, "no block touches another's SMEM before it has started or after it has left"),
    _module("lower ops", module.lower_ops, "each op becomes text by its rule or its template"),
    _module("plan exchange", module.plan_exchange, "only after all rules is the size of the exchange space known"),
    _module("check SMEM", module.check_smem, "a block that needs more than there is would fail at its launch"),
    _module("place the launch", module.place_launch, "a grid that the GPU does not take would fail at its launch"),
    _module(
        "write the module", module.write_module, "the prologue needs every barrier and descriptor that rules asked for"
    ),
    _module("describe", module.describe, "the runtime checks arguments and names buffers in reports"),
    _code("compile", module.compile_text, "LLVM selects instructions and allocates virtual registers"),
    _code("find lines", module.find_lines, "remarks, hazards and errors are shown at the user's lines"),
    _code("make the kernel", module.make_kernel, "it is all that the runtime knows of a kernel"),
)

# (earlier, later): why
BEFORE = {
    ("check registers", "settle layouts"): "a kernel that is refused needs no layouts",
    ("settle layouts", "warn of large values"): "a layout says how many registers a lane has of a value",
    ("check target", "finish copies"): "a kernel that is refused stays unchanged",
    ("finish copies", "split loops"): "it must see allocations in their loops, and split loops moves them out",
    ("finish copies", "order memory"): "the waits that it inserts are barriers of the warpgroup, too",
    ("split loops", "order memory"): "where a warpgroup has to meet depends on what is left of its loop",
    ("plan SMEM", "lower ops"): "rules must know how much SMEM the buffers leave for exchanges",
    ("find meetings", "lower ops"): "the first op that touches a peer waits for all blocks",
    ("lower ops", "plan exchange"): "rules say how much they exchange as they are run",
    ("plan exchange", "check SMEM"): "the exchange space counts towards a block's SMEM",
    ("check SMEM", "place the launch"): "the launch asks for this SMEM",
    ("lower ops", "write the module"): "the prologue makes the barriers and descriptors that the body asked for",
}

# With a function, kernels are verified before and after the passes, and those for which it is true after each. Tests set it.
check_each_pass: Callable[[KernelIR], bool] | None = None

_names = [step.name for step in STEPS]
for _first, _second in BEFORE:
    assert _names.index(_first) < _names.index(_second), f"{_first} must come before {_second}"


def check_for_gpu(ir: KernelIR) -> None:
    """Raise an error at the user's line for kernels that would hang a GPU."""
    walk(STEPS, Where.GPU, ir)


def _passes(job: Job, observe: Callable[[str, KernelIR], None] | None) -> None:
    each = check_each_pass is not None and check_each_pass(job.ir)

    def after(step: Step[Any]) -> None:
        if each:
            verify(job.ir)
        if observe is not None:
            observe(step.name, job.ir)

    if check_each_pass is not None:
        verify(job.ir)
    walk(STEPS, Where.PASS, job, after)
    if check_each_pass is not None and not each:
        verify(job.ir)


def run_passes(ir: KernelIR, target: Target, observe: Callable[[str, KernelIR], None] | None = None) -> KernelIR:
    """Run all passes in order. `observe` gets the name of each, and the kernel after it."""
    job = Job(ir, target)
    _passes(job, observe)
    return job.ir


def to_llvm(ir: KernelIR, target: Target, spec: CallSpec) -> Lowered:
    """Run the passes and write the module. Raises the errors of the steps at the user's line."""
    job = Job(ir, target, spec)
    _passes(job, None)
    walk(STEPS, Where.MODULE, job)
    return job.lowered


def compile_kernel(ir: KernelIR, target: Target, spec: CallSpec, lowered: Lowered) -> CompiledKernel:
    """PTX, and everything needed to launch it."""
    job = Job(ir, target, spec)
    job.lowered = lowered
    walk(STEPS, Where.CODE, job)
    return job.kernel
