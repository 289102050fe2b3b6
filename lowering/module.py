"""Steps of the pipeline: a kernel's LLVM module and its `CompiledKernel`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

from kernel_dsl.blocks import placed
from kernel_dsl.compiled import (
    ANY,
    ArrayAssumption,
    CompiledKernel,
    LaunchAttributes,
    Param,
    PointerParam,
    ReportNames,
    ScalarParam,
    ShapeParam,
    SourceLine,
    StrideParam,
)
from kernel_dsl.errors import GridLimit
from kernel_dsl.in_place import member_of
from kernel_dsl.ir import Axis, KernelIR, MemorySpace, Op, RefType, buffer_of
from kernel_dsl.ops.debug import DebugCheck, DebugPrint
from kernel_dsl.ops.matrix import SetMaxRegisters
from kernel_dsl.ops.threads import AliasSmem, GridDependencyWait, InlinePtx
from kernel_dsl.source import Loc
from kernel_dsl.storage import bytes_of
from kernel_dsl.target import Feature, Target

from . import llvm
from .comparisons import compare_again
from .context import WARPS, Context, Rule, source_line
from .debug_lines import DebugLines
from .job import Job, Lowered
from .llvm_types import llvm_type
from .lowered import SmemBuffer
from .operand_copies import copy_operands
from .passes import plan_smem
from .position import WARPGROUP
from .rules import all_rules
from .rules.cluster import lower_body, meeting_places
from .value import V
from .writer import Writer


@cache
def _rules() -> dict[type[Op], Rule]:
    return all_rules()


def entry_name(name: str) -> str:
    """A PTX identifier for a kernel's name: LLVM ends the process on others (PTX ISA 4.4, 'Identifiers')."""
    clean = re.sub(r"[^A-Za-z0-9_$]", "_", name)
    return clean if re.match(r"[A-Za-z]", clean) else f"kernel_{clean}"


def open_module(job: Job) -> None:
    """A writer, and the context that rules see."""
    job.entry = entry_name(job.ir.name)
    debug = DebugLines()
    debug.start(job.entry, job.ir.loc)
    job.ctx = Context(job.ir, job.target, Writer(debug), _rules())


def plan_buffers(job: Job) -> None:
    """Plan the position of each allocation in SMEM."""
    ctx = job.ctx
    ctx.plan, ctx.smem_offsets, ctx.sharing = plan_smem.plan(ctx.ops)


def meet(job: Job) -> None:
    """Find the ops between which all blocks of the cluster must run."""
    if job.ir.cluster:
        job.ctx.meetings = meeting_places(job.ir)


def lower_ops(job: Job) -> None:
    """Lower the body by the rules, and add the parameters that they asked for."""
    ctx = job.ctx
    lower_body(ctx)
    ctx.e.do("ret void")
    for param, place in ctx.tensor_maps.items():
        # byval and grid_constant: the kernel uses the descriptor in parameter memory (PTX ISA 9.7.9.27)
        size = 128 * max(param.ranks, 1)
        job.signature.append(f'ptr byval([{size} x i8]) align 64 "nvvm.grid_constant" %map{place}')
        job.params.append(param)
    for extent, name in ctx.extents.items():
        job.signature.append(f"i64 {name}")
        job.params.append(ShapeParam(extent.array, extent.axis))
    for place in range(len(ctx.workspaces)):
        job.signature.append(f"i64 %ws{place}")
        job.params.append(PointerParam(len(job.arrays) + place))


def plan_exchange(job: Job) -> None:
    """Add the SMEM through which rules exchange data."""
    job.exchange = plan_smem.add_exchange(job.ctx.plan, job.ir.threads, job.target.limits.smem_per_block)


def check_smem(job: Job) -> None:
    """Raise `SmemExceeded`."""
    plan_smem.check(job.ctx.plan, job.target, job.ir.loc)


def place_launch(job: Job) -> None:
    """Grid, block and cluster. Raises `GridLimit`."""
    overlaps = any(isinstance(op, GridDependencyWait) for op in job.ctx.ops)
    job.launch = launch_attributes(job.ir, job.target, job.ctx.plan.size, overlaps)


def describe(job: Job) -> None:
    """Collect the names and properties of the kernel for its `CompiledKernel`."""
    ir, ctx, arrays = job.ir, job.ctx, tuple(job.arrays)
    names = ReportNames(
        arrays=tuple(a.name for a in arrays),
        smem=tuple(ctx.plan.regions),
        accumulators=tuple(ctx.accumulator_names),
        grid_axes=tuple(zip((a.name for a in ir.grid), _known(a.size for a in ir.grid), strict=True)),
        thread_axis=(ir.thread_name, ir.threads) if ir.thread_name else None,
    )
    offset, half = job.exchange
    spans = _smem_spans(ctx, (offset, offset + 2 * half * ir.threads))
    effects = any(map(_has_effects, ctx.ops))
    workspaces = tuple(ctx.workspaces)
    job.lowered = Lowered(job.text, job.entry, tuple(job.params), arrays, job.launch, names, workspaces, effects, spans)


def _has_effects(op: Op) -> bool:
    return isinstance(op, (DebugPrint, DebugCheck)) or (isinstance(op, InlinePtx) and not op.pure)


def _smem_spans(ctx: Context, internal: tuple[int, int]) -> dict[tuple[str, int], frozenset[tuple[int, int]]]:
    """For each of the user's lines, the spans of its ops' buffers and of the exchange space."""
    found: dict[tuple[str, int], set[tuple[int, int]]] = {}
    for op in ctx.ops:
        spans = found.setdefault((op.loc.file, op.loc.line), {internal})
        for value in op.values():
            type = value.type
            if isinstance(type, RefType) and type.space is MemorySpace.SMEM:
                member = member_of(value)
                alloc = buffer_of(member).op
                assert alloc is not None
                start = ctx.smem_offsets[alloc] + (member.op.offset if isinstance(member.op, AliasSmem) else 0)
                spans.add((start, start + bytes_of(member.type)))
    return {place: frozenset(spans) for place, spans in found.items() if place[1]}


_SHARED = re.compile(r"\b(?:ld|st|atom|red)\.[\w.:]*shared\b")


def _smem_uses(
    ptx: str, lines: Mapping[int, SourceLine], spans: dict[tuple[str, int], frozenset[tuple[int, int]]]
) -> tuple[tuple[tuple[tuple[int, int], ...], tuple[int, ...]], ...]:
    """The spans of SMEM that loads and stores may access, and the PTX lines with these spans."""
    text = ptx.split("\n")
    uses: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for number, place in lines.items():
        found = spans.get((place.file, place.line))
        if found is not None and _SHARED.search(text[number - 1]):
            uses.setdefault(tuple(sorted(found)), []).append(number)
    return tuple((key, tuple(numbers)) for key, numbers in uses.items())


def declare_parameters(job: Job) -> None:
    """Declare the entry's LLVM parameters, how the runtime fills them, and assumptions on the arrays."""
    ctx, scalars = job.ctx, 0

    def parameter(type: str, param: Param) -> V:
        name = ctx.e.value(f"%p{len(job.params)}", type)
        job.signature.append(f"{type} {name}")
        job.params.append(param)
        return name

    for value in ctx.ir.params:
        if not isinstance(value.type, RefType):
            t = llvm_type(value.type.dtype)
            boolean = t == "i1"
            name = parameter("i8" if boolean else t, ScalarParam(scalars, value.type.dtype))
            ctx.values[value] = [name.once.differs(0) if boolean else name]
            scalars += 1
            continue
        type: RefType = value.type
        number = len(job.arrays)
        ctx.arrays.append(value)
        address = parameter("i64", PointerParam(number))
        strides = ctx.row_major(type)  # the launch passes those of a non-contiguous array
        if not type.contiguous:
            strides = tuple(parameter("i64", StrideParam(number, axis)) for axis in range(len(type.shape)))
        ctx.buffers[value] = SmemBuffer(address, strides)
        job.arrays.append(
            ArrayAssumption(_known(type.shape), type.dtype, type.contiguous, type.alignment, type.written, type.name)
        )


_ATTRIBUTES = """
attributes #0 = { convergent nounwind }
attributes #1 = { nounwind willreturn memory(none) }
"""


def write_module(job: Job) -> None:
    """The module's text, around the lines that the rules wrote."""
    ctx, spec = job.ctx, job.spec
    ir, e = ctx.ir, ctx.e
    exchange, half = job.exchange
    attributes = [f'"nvvm.reqntid"="{WARPGROUP * ir.threads}"']
    if any(isinstance(op, SetMaxRegisters) for op in ctx.ops):
        # without it the assembler may not know how many registers a lane starts with, and then ignores setmaxnreg (C7508)
        attributes.append('"nvvm.minctasm"="1"')
    if ir.cluster:
        x, y, z = cluster_dims(ir.cluster)
        attributes.append(f'"nvvm.cluster_dim"="{x},{y},{z}"')
    if spec.max_registers is not None:
        attributes.append(f'"nvvm.maxnreg"="{spec.max_registers}"')
    lines = [llvm.header(ctx.target)]
    lines.append("@smem = external addrspace(3) global [0 x i8], align 1024")
    lines += sorted(ctx.declarations)
    lines += ctx.constants
    lines.append(
        f"define ptx_kernel void @{job.entry}({', '.join(job.signature)}) {' '.join(attributes)} !dbg !{e.debug.subprogram} {{"
    )
    lines.append("entry:")
    lines.append("  %smem_base = ptrtoint ptr addrspace(3) @smem to i32")
    lines.append(f"  %exchange_offset = add i32 0, {exchange}")
    lines.append(f"  %exchange_half = add i32 0, {half}")
    lines.append(f"  %exchange_stride = add i32 0, {2 * half}")
    _setup(ctx)
    lines += e.prelude
    lines.append("  br label %setup")
    lines.append("setup:")
    lines += e.setup
    lines.append("  br label %start")
    lines.append("start:")
    lines += e.lines
    lines.append("}")
    lines.append(_ATTRIBUTES)
    if ctx.math:
        from .math import definitions

        lines.append(definitions(ctx.math))
    lines.append(e.debug.text())
    job.text = "\n".join(lines)


def _setup(ctx: Context) -> None:
    """Write the prologue of one lane: fetch descriptors, initialise mbarriers and make them visible to all."""
    peers = ctx.meetings is not None
    if not ctx.barriers and not peers and not ctx.tensor_maps:
        return
    e = ctx.e
    first = ctx.thread().once.equal(0)
    outer, e.lines = e.lines, []
    e.at(Loc("", 0))  # these belong to no line of the user's

    # descriptors on their way before the first copy waits for them (PTX ISA, prefetch)
    for param in ctx.tensor_maps:
        address = ctx.tensor_map(param)
        for place in (address, *(address.plus(128 * rank) for rank in range(1, param.ranks))):
            e.ptx("prefetch.tensormap [$0];", place, when=first)
    for value, barriers in ctx.barriers.items():
        for i in range(barriers.count):
            address, count = barriers.address.once.plus(8 * i), e.i32(value.type.arrivals * WARPS)
            e.ptx("@$1 mbarrier.init.shared::cta.b64 [$0], $2;", address, first, count)
    if ctx.barriers and ctx.target.supports(Feature.CLUSTER):  # TMA completes on them through the asynchronous proxy
        e.do("call void @llvm.nvvm.fence.mbarrier_init.release.cluster()")
    if ctx.barriers:
        ctx.sync_block()
    if peers:  # the wait is before the first op that accesses a peer
        e.do("call void @llvm.nvvm.barrier.cluster.arrive.aligned() #0")
    e.setup, e.lines = e.lines, outer


def cluster_dims(cluster: tuple[Axis, ...]) -> tuple[int, int, int]:
    """Extents for x, y, z: the last axis is x."""
    sizes = [*[a.size for a in cluster][::-1], 1, 1, 1]
    return sizes[0], sizes[1], sizes[2]


def launch_attributes(ir: KernelIR, target: Target, smem: int, overlaps: bool) -> LaunchAttributes:
    """Grid, block and cluster as CUDA counts them.

    Raises `GridLimit`. `overlaps`: the kernel itself waits for the kernels before it, so that it may start before they
    end.
    """
    cluster = cluster_dims(ir.cluster)
    if prod(cluster) > 16:
        hint = "a cluster has at most 8 blocks, or 16 where the GPU allows it"
        raise GridLimit(loc=ir.loc, what=f"a cluster of {prod(cluster)} blocks is too large", hint=hint)
    launch = LaunchAttributes(cluster, (WARPGROUP * ir.threads, 1, 1), cluster, smem, overlaps, False)
    sizes = _known(a.size for a in ir.grid)
    # `settle` places a grid whose sizes come from the launch
    return launch if ANY in sizes else placed(launch, sizes, target.limits.grid, ir.loc)


def _known(sizes: Iterable[Any]) -> tuple[int, ...]:
    """Sizes in a compiled kernel: `ANY` for those that come from each launch."""
    return tuple(n if isinstance(n, int) else ANY for n in sizes)


_FILE = re.compile(r'^[ \t]*\.file\s+(\d+)\s+"((?:[^"\\]|\\.)*)"', re.MULTILINE)
_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")


def line_map(ptx: str) -> dict[int, SourceLine]:
    """The user's line of every line of the PTX that follows a `.loc`."""
    files = {int(number): name for number, name in _FILE.findall(ptx)}
    out: dict[int, SourceLine] = {}
    here: SourceLine | None = None
    made: dict[tuple[int, int], SourceLine] = {}
    for number, line in enumerate(ptx.split("\n"), 1):
        found = _LOC.match(line)
        if found:
            key = (int(found[1]), int(found[2]))
            here = made.get(key)
            if here is None:
                here = made[key] = SourceLine(files.get(key[0], "?"), key[1])
        # an instruction of inline assembly with a register of its own ends in a brace
        elif here is not None and (line.rstrip().endswith(";") or line.lstrip().startswith("{ ")):
            out[number] = here
    return out


def compile_text(job: Job) -> None:
    """Compile the LLVM text to PTX."""
    job.ptx = compare_again(copy_operands(llvm.to_ptx(job.lowered.text, job.target)))


def find_lines(job: Job) -> None:
    """The user's line of each line of the PTX."""
    job.lines = line_map(job.ptx)


def make_kernel(job: Job) -> None:
    """PTX, and everything needed to launch it."""
    ir, spec, lowered = job.ir, job.spec, job.lowered
    free = [n for a in lowered.arrays for n in a.shape] + [n for _, n in lowered.names.grid_axes]
    job.kernel = CompiledKernel(
        name=ir.name,
        entry=lowered.entry,
        ptx=job.ptx,
        target=job.target.name,
        params=lowered.params,
        arrays=lowered.arrays,
        inputs=len(lowered.arrays) - len(spec.outputs),
        outputs=spec.outputs,
        output_tree=spec.output_tree,
        launch=lowered.launch,
        workspaces=lowered.workspaces,
        names=replace(lowered.names, smem_uses=_smem_uses(job.ptx, job.lines, lowered.smem_spans)),
        lines=job.lines,
        source=source_line(ir.loc),
        max_registers=spec.max_registers,
        overlaps=spec.overlaps,
        effects=lowered.effects,
        conditions=spec.conditions if ANY in free else (),
    )
