"""The context of every rule: the writer, the values lowered so far, parameters and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kernel_dsl.compiled import AccumulatorNames, SourceLine, TensorMapParam, Workspace
from kernel_dsl.extents import Extent
from kernel_dsl.ir import KernelIR, MemorySpace, Op, RefType, Region, Value, Yield, buffer_of
from kernel_dsl.lazy import lazy
from kernel_dsl.ops.cluster import PeerRef
from kernel_dsl.ops.copy import CopyGmemToSmem, CopySmemToGmem
from kernel_dsl.ops.gather import Gather
from kernel_dsl.ops.matrix import Wgmma
from kernel_dsl.ops.ref import AllocBarrier, BitcastRef, Load, Store
from kernel_dsl.ops.remote import RemoteRef
from kernel_dsl.ops.threads import InlinePtx
from kernel_dsl.source import Loc
from kernel_dsl.target import Target
from kernel_dsl.tma import Way

from .llvm_types import llvm_type
from .lowered import Accumulator, GmemScratch, MadeDescriptor, NamedBarriers, SmemBuffer, SmemPlan
from .position import WARPGROUP, Position
from .value import Regs, V
from .writer import Writer

WARPS = 4  # of a warpgroup; each arrives separately on an mbarrier


Rule = Callable[["Context", Any], None]
Rules = dict[type[Op], Rule]


class Context(Position):
    """The state of lowering one kernel."""

    def __init__(self, ir: KernelIR, target: Target, writer: Writer, rules: Rules) -> None:
        super().__init__(ir, writer)
        self.ops: list[Op] = list(ir.walk())  # no rule changes the kernel
        self.target = target
        self.rules = rules
        self.values: dict[Value, Regs] = {}
        self.buffers: dict[Value, SmemBuffer] = {}
        self.barriers: dict[Value, NamedBarriers] = {}
        self.smem_offsets: dict[Op, int] = {}
        self.sharing: frozenset[tuple[int, ...]] = frozenset()  # scopes that share SMEM with others
        self.plan: SmemPlan = SmemPlan()
        self.meetings: tuple[int, int] | None = (
            None  # top-level ops: a cluster's blocks wait for each other before the first and after the second
        )
        self.math: dict[str, None] = {}  # functions of lowering/math that are called, in order of first use
        self.last_half: int | None = None  # the half of the exchange space that was used last; None: unknown
        self.fresh_exchange: bool = True  # nothing has used the exchange space yet
        self.constants: list[str] = []  # module-level data
        self.declarations: set[str] = set()  # functions that the driver provides
        self.used: set[Value] = {v for op in self.ops for v in op.values()}
        self.accumulators: dict[Value, Accumulator] = {}
        self.accumulator_names: list[AccumulatorNames] = []
        self.fragments: dict[Value, Regs] = {}  # the registers of values that wgmma reads
        self.region_stack: list[Region] = []
        self._loaded: dict[Region, set[Value]] = {}  # by region: what its ops load, and compute from that
        self.workspaces: list[Workspace] = []  # hidden GMEM, %ws0 ...
        self.scratch: dict[Value, GmemScratch] = {}  # Refs to it
        self.arrays: list[Value] = []  # the GMEM arguments, as the launch counts them
        self.tensor_maps: dict[TensorMapParam, int] = {}
        self.remotes: dict[Value, RemoteRef] = {}  # the ops that made Refs on other devices' memory
        self.descriptors: dict[Value, MadeDescriptor] = {}  # Refs whose descriptors the kernel makes
        self.extents: dict[Extent, str] = {}  # extents of arrays that the launch passes
        self.words: dict[str, tuple[V, int]] = {}  # by 16- or 8-bit name: the 32-bit word and the number of its part

    def region(self, region: Region) -> list[Value]:
        """Lower a region's ops in place. Returns the registers that it yields."""
        self.region_stack.append(region)
        for op in region.ops:
            if isinstance(op, Yield):
                break
            self.e.at(op.loc)
            rule = self.rules.get(type(op))
            assert rule is not None, f"{op.op_name} has no rule"
            rule(self, op)
        self.region_stack.pop()
        return list(region.yields)

    def just_loaded(self, values: Sequence[Value]) -> bool:
        """Whether one of these values is computed from a load in the innermost region."""
        region = self.region_stack[-1]
        found = self._loaded.get(region)
        if found is None:
            found = self._loaded[region] = set()
            for op in region.ops:
                if isinstance(op, (Load, Gather)) or not found.isdisjoint(op.values()):
                    found.update(op.results)
        return not found.isdisjoint(values)

    def regs(self, value: Value) -> Regs:
        return self.values[value]

    def scalar(self, value: Value) -> V:
        """The one register of a rank-0 value."""
        (only,) = self.values[value]
        return self.e.value(only, llvm_type(value.type.dtype))

    def index(self, value: Value, type: str = "i32") -> V:
        """A rank-0 integer as i32 or i64, with its sign."""
        return self.scalar(value).resized(type, value.type.dtype.is_signed)

    @property
    def blocks_pass_data(self) -> bool:
        """Whether blocks of the cluster may read data of other blocks.

        The data is from ordinary stores, or from copies, to an array that is also read. Only then do barriers of the
        cluster order memory at cluster scope. Such a release waits until all of a warp's accesses have reached L2
        (MEMBAR.ALL.GPU), which takes as long as a step of a pipeline. The default scope is enough for barriers that
        only release tiles to async copies.
        """
        return self._passed[0]

    @lazy
    def stored(self) -> str | None:
        """The alloca that says whether this lane has stored since its last arrival at a barrier of the cluster; None if no
        barrier needs it.

        Stores to arrays that nothing reads have an order all the same: the last of two stores of one place counts. A fence
        before the next arrival keeps it, which a loop of arrivals without stores passes by.
        """
        if not self.ir.cluster:
            return None
        shared = any(isinstance(op, AllocBarrier) and op.result.type.cluster for op in self.ops)
        return self.e.variable("i32", "0") if shared and self._passed == (False, True) else None

    @lazy
    def _passed(self) -> tuple[bool, bool]:
        """Whether blocks may read what others wrote, and whether there are stores to arrays that nothing reads."""
        arrays, roots = self.ir.arrays(), {op.result: op.ref for op in self.ops if isinstance(op, BitcastRef)}

        def root(ref: Value) -> Value:
            return root(roots[ref]) if ref in roots else ref

        def touched(op: Op) -> set[Value]:
            return {root(v) for v in (*op.values(), *op.results) if isinstance(v.type, RefType)}

        def stores(op: Op) -> bool:
            return isinstance(op, Store) and op.ref.type.space is MemorySpace.GMEM

        written = {root(op.dst) for op in self.ops if isinstance(op, CopySmemToGmem)}
        written |= {root(op.ref) for op in self.ops if isinstance(op, Store) and stores(op)}
        same = [(arrays[a], arrays[b]) for a, b in self.ir.overlaps]
        written |= {other for pair in same for one, other in (pair, pair[::-1]) if one in written}

        def passes(op: Op) -> bool:
            if isinstance(op, (CopySmemToGmem, BitcastRef)) or stores(op):
                return False
            refs = touched(op)
            changes = op.writes and any(v.type.space is MemorySpace.GMEM for v in refs)
            return changes or not refs.isdisjoint(written) or isinstance(op, (PeerRef, InlinePtx))

        return any(passes(op) for op in self.ops), any(stores(op) for op in self.ops)

    @lazy
    def _async_buffers(self) -> frozenset[Value]:
        out: set[Value] = set()
        for op in self.ops:
            if isinstance(op, CopyGmemToSmem) and op.barrier is not None and (s := op.start) and s.way is not Way.LANES:
                out.add(buffer_of(op.dst))
            elif isinstance(op, CopySmemToGmem):
                out.add(buffer_of(op.src))
            elif isinstance(op, Wgmma):
                out.update(buffer_of(v) for v in (op.a, op.b) if isinstance(v.type, RefType))
        return frozenset(out)

    def seen_by_async(self, ref: Value) -> bool:
        """Whether anything in the kernel accesses a buffer through the async proxy: tensor copies, wgmma."""
        return buffer_of(ref) in self._async_buffers

    # --- parameters and memory --------------------------------------------------------------------

    def array_number(self, ref: Value) -> int:
        """The number of a GMEM argument, or scratch, among the kernel's arrays.

        A peer's array has the number of this device's.
        """
        if ref in self.scratch:
            return len(self.arrays) + self.scratch[ref].place
        return self.arrays.index(self._launched(ref))

    def is_launched(self, ref: Value) -> bool:
        """Whether a Ref is a GMEM argument, this device's or another's, or scratch in GMEM."""
        return ref in self.scratch or self._launched(ref) in self.arrays

    def _launched(self, ref: Value) -> Value:
        made = self.descriptors.get(ref)
        return made.array if made is not None else self.remotes[ref].ref if ref in self.remotes else ref

    def tensor_map(self, param: TensorMapParam, ref: Value | None = None) -> V:
        """The generic address of a tensor map among the parameters, i64; equal recipes share one.

        `ref`: the Ref that it describes.
        """
        if ref is not None and ref in self.descriptors:
            return self.descriptors[ref].places[param]
        remote = None if ref is None else self.remotes.get(ref)
        if remote is not None:
            param = replace(param, ranks=remote.devices)
        place = self.tensor_maps.setdefault(param, len(self.tensor_maps))
        first = self.e.pre(f"ptrtoint ptr %map{place} to i64", "i64")
        return first if remote is None else first.plus(self.index(remote.device, "i64").times(128))

    def extent(self, extent: Extent) -> V:
        """An extent that the launch passes, i64."""
        name = self.extents.setdefault(extent, f"%extent{len(self.extents)}")
        return self.e.value(name, "i64")

    def row_major(self, type: RefType) -> tuple[int | V, ...]:
        """Row-major strides in elements, of which some are products of what the launch passes."""
        out: list[int | V] = []
        stride: int | V = 1
        for axis in reversed(range(len(type.shape))):
            out.append(stride)
            size: int | Extent = type.shape[axis]
            if not axis or not type.contiguous:
                continue
            factor = self.extent(size) if isinstance(size, Extent) else size
            if isinstance(stride, int):
                stride = stride * factor if isinstance(factor, int) else factor.once * stride
            else:
                stride = stride.once * factor
        return tuple(reversed(out))

    def text(self, data: bytes, alignment: int = 1) -> str:
        """The name of a constant array of bytes."""
        name = f"@{'text' if alignment == 1 else 'constant'}_{len(self.constants)}"
        body = "".join(f"\\{b:02X}" for b in data)
        self.constants.append(
            f'{name} = internal addrspace(1) constant [{len(data)} x i8] c"{body}", align {alignment}'
        )
        return name

    def smem(self, name: str) -> V:
        """An i32 that is known only at the end: a number of the SMEM plan, or the start of SMEM."""
        return self.e.value(f"%{name}", "i32")

    # --- warpgroup barriers and the exchange space ------------------------------------------------

    def sync(self) -> None:
        """A barrier of this warpgroup's lanes. PTX `barrier.cta.sync` (named barrier 1 + warpgroup)."""
        if self.warp_level:
            self.sync_warp()
        elif self.ir.threads == 1:
            self.sync_block()
        else:
            number = self.warpgroup().once + 1
            self.e.do(f"call void @llvm.nvvm.barrier.cta.sync.aligned.count(i32 {number}, i32 {WARPGROUP}) #0")

    def sync_warp(self) -> None:
        """A barrier of the warp's lanes."""
        self.e.do("call void @llvm.nvvm.bar.warp.sync(i32 -1) #0")

    def sync_block(self) -> None:
        """A barrier of the whole block."""
        self.e.do("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0) #0")

    def exchange(self, bytes: int) -> V:
        """Space in SMEM for this warpgroup to exchange data, free to be written; its address as i32.

        Two halves alternate: the barrier between one use's writes and reads also ends the reads of the use before.
        """
        self.plan.scratch = max(self.plan.scratch, -(-bytes // 128) * 128)
        if self.last_half is None and not self.fresh_exchange:
            self.sync()
        half = 0 if self.last_half is None else 1 - self.last_half
        self.last_half = half
        self.fresh_exchange = False
        base = self.smem("smem_base").once + self.smem("exchange_offset")
        if self.ir.threads > 1:
            base = base.once + (self.warpgroup().once * self.smem("exchange_stride"))
        return base if half == 0 else base.once + self.smem("exchange_half")

    def exchange_whole(self, bytes: int) -> V:
        """Both halves of the exchange space as one piece, for data that does not fit into one."""
        self.plan.scratch = max(self.plan.scratch, -(-bytes // 256) * 128)
        if not self.fresh_exchange:
            self.sync()
        self.last_half = 0
        self.fresh_exchange = True
        base = self.exchange(0)  # the second half is the last used, as both are in use
        self.forget_exchange()
        return base - self.smem("exchange_half")

    def exchange_room(self) -> int:
        """Bytes that one half of a warpgroup's exchange space can have, beside the author's own SMEM."""
        used = -(-self.plan.size // 128) * 128
        return max(self.target.limits.smem_per_block - used, 0) // (2 * self.ir.threads) // 128 * 128

    def forget_exchange(self) -> None:
        """Forget which half was used last, at a branch or a loop."""
        self.last_half = None
        self.fresh_exchange = False


def source_line(loc: Loc) -> SourceLine | None:
    """A location in the form that the runtime keeps."""
    return SourceLine(loc.file, loc.line, loc.function) if loc.line else None
