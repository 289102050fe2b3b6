"""PTX functions compiled to Python closures over register slots.

Each instruction becomes one closure that is called with a `Group`. A builder, registered by the name of a row of
`instructions` with `@builds`, makes it. An instruction without a row is one of the elementwise instructions of `semantics`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..checks.ordinary import may_doubt
from ..checks.strong import size_of as strong_size
from ..isa.cfg import Segment
from ..isa.instructions import ROWS, known_form
from ..ptx.module import Function, Instruction, Module, PtxError, Special, Var
from .group import Group
from .memory import SHARED_RESERVED

Array = npt.NDArray[Any]
Op = Callable[[Group], Any]
Builder = Callable[[Any, Instruction], Op]  # (compiler, instruction) -> operation

BUILDERS: dict[tuple[str, ...], Builder] = {}


def builds(names: str) -> Callable[[Builder], Builder]:
    """Register the builder of the rows of these names, which blanks separate. It finds the words in the compiler's `form`."""

    def register(builder: Builder) -> Builder:
        for name in names.split():
            words = tuple(name.split("."))
            assert words in ROWS, name
            BUILDERS[words] = builder
        return builder

    return register


class Seg:
    """A compiled segment: `sync` runs first and may stop it, then `ops`; `kind` is how it ends."""

    __slots__ = (
        "code", "cost", "end", "guard", "index", "kind", "loads", "moves", "next", "ops", "reads", "sources",
        "sync", "sync_ins", "targets", "touches", "wary", "writes",
    )  # fmt: skip

    def __init__(self, index: int, source: Segment) -> None:
        self.index: int = index
        self.kind: str = source.kind
        self.end: Instruction | None = source.end
        self.targets: list[int] = source.targets
        self.next: int = source.targets[0] if source.targets else -1
        self.sync_ins: Instruction | None = source.sync
        self.sync: Op | None = None
        self.ops: list[Op] = []
        # The same operations in the form that follows poison (`checks/poison.py`), `sync` first, and their sources.
        self.wary: list[Op] = []
        self.sources: list[tuple[Op, Instruction, bool]] = []
        self.loads: bool = False
        self.guard: tuple[int, bool] | None = (source.guard[0].index, source.guard[1]) if source.guard else None
        self.cost: int = len(source.code) + 1
        # Registers that some wgmma uses and this segment reads or writes, as bit sets.
        self.code: list[Instruction] = [*([source.sync] if source.sync else []), *source.code]
        self.reads: int = 0
        self.writes: int = 0
        self.moves: int = 0
        self.touches: bool = False


class Code:
    """A compiled function."""

    def __init__(self, program: Program, fn: Function) -> None:
        self.name: str = fn.name
        self.fn = fn
        self.program = program
        self.slots: list[tuple[str, Any, Any]] = []
        self.block_of: dict[int, tuple[int, int]] = {}
        self.local_offsets: dict[str, int] = {}
        self.local_bytes: int = 0
        self.local_align: int = 16
        for var in fn.variables.values():
            if var.space == "local":
                self._add_local(var)
        self.segments: list[Seg] = []
        self.unset: int = 0  # the entry's registers that a path may read before it writes them, as a bit set
        self.call: dict[int, Any] = {}
        self.returns: dict[int, Callable[[Group, Any], None]] = {}

    def _add_local(self, var: Var) -> None:
        align = max(var.align, 1)
        self.local_bytes = -(-self.local_bytes // align) * align
        self.local_align = max(self.local_align, align)
        self.local_offsets[var.name] = self.local_bytes
        self.local_bytes += var.size


class Program:
    """A module's functions, compiled as they are reached, and its static shared-memory layout for one entry.

    `compiler(program, code).run()` fills the code of a function.
    """

    def __init__(
        self, module: Module, entry: str, compiler: Callable[[Program, Code], Any], fine: bool = False, several: bool = False
    ) -> None:  # fmt: skip
        self.compiler = compiler
        self.fine = fine  # for runs that explore the order of synchronisation, see `isa/cfg.py`
        self.keeps_phases: bool = False  # whether waits name phases of mbarriers by their states
        self.several = several  # for runs on several GPUs, where gpu scope is smaller than system scope
        fn = module.functions.get(entry)
        if fn is None or not fn.entry:
            have = ", ".join(module.entries) or "none"
            raise PtxError(f"there is no entry '{entry}'; the module's entries: {have}")
        self.module = module
        self.entry = fn
        self.function_ids: dict[str, int] = module.function_ids
        self.shared_offsets: dict[str, int] = {}
        self.static_shared: int = 0
        self.dynamic_align: int = 16
        self._layout_shared()
        self.param_offsets: dict[str, tuple[int, int]] = {}
        at = 0
        for var in fn.params:
            at = -(-at // max(var.align, 1)) * max(var.align, 1)
            self.param_offsets[var.name] = (at, var.size)
            at += var.size
        self.param_bytes = at
        self.codes: dict[str, Code] = {}
        self.left: dict[
            int, int
        ] = {}  # by the id of an instruction: the later instructions in its segment, whose steps count at once
        code = [ins for f in (fn, *module.called) for ins in f.body if isinstance(ins, Instruction)]
        self.site_type: Any = np.uint16 if len(code) < 1 << 16 else np.int32  # the dtype of numbers of instructions
        # whether a fence, or an access to memory outside the block, reaches only its block or cluster
        self.narrow: bool = several or any(_is_narrow(ins.opcode) for ins in code)
        # whether strong accesses of several sizes may meet
        self.mixed: bool = len({strong_size(ins) for ins in code} - {0}) > 1
        # whether blocks may wait for others: strong loads or atomics with results, outside of shared memory
        self.waits_for_blocks: bool = any(
            strong_size(ins) and ins.opcode[0] in ("ld", "atom") and not any(w.startswith("shared") for w in ins.opcode)
            for ins in code
        )
        self.may_doubt: bool = may_doubt(code)  # whether ordinary loads may race with ordinary stores
        # whether copies access global memory, or tensor maps there, through proxies of their own
        self.other_proxies: bool = any("bulk" in ins.opcode or ins.opcode[0] == "tensormap" for ins in code)
        # whether copies write to global memory; for loads that these may overtake, what `overtaken.outlasts` has found
        self.copies_out: bool = any(_copies_out(ins.opcode) for ins in code)
        self.outlasting: dict[int, bool] = {}
        # whether the kernel reads the system's clock, for waits with a time-out
        self.reads_time: bool = any(
            isinstance(o, Special) and o.name.startswith("%globaltimer") for ins in code for o in ins.operands
        )
        # whether cooperative groups keep barriers of warps in each block's system memory
        self.uses_reserved: bool = any(
            isinstance(o, Special) and o.name.startswith("%reserved_smem") for ins in code for o in ins.operands
        )
        self.triggers: bool = any(ins.opcode == ("griddepcontrol", "launch_dependents") for ins in code)
        # whether blocks take the place of others, which then do not start
        self.cancels: bool = any(ins.opcode[:2] == ("clusterlaunchcontrol", "try_cancel") for ins in code)
        self.shared_granule: int = min(map(_width, code), default=16)

    @property
    def planes(self) -> int:
        """Return the number of planes of vector clocks that its runs need (`checks/clocks.py`)."""
        if self.several or self.narrow:
            return 10 if self.several else 9
        return 7 if self.copies_out else 6 if self.other_proxies else 3

    def reach(self, scope: str) -> int:
        """Return the reach of an access or fence of a scope: 0 everything, 1 its cluster, 2 its block.

        With several GPUs, 1 is its GPU, 2 its cluster and 3 its block.
        """
        narrower = ("gpu", "gl", "cluster", "cta") if self.several else ("cluster", "cta")
        if scope not in narrower:
            return 0
        return _NUMBER[scope] + self.several

    def _layout_shared(self) -> None:
        at = SHARED_RESERVED
        dynamic: list[str] = []
        functions = [self.entry, *self.module.called]
        found = list(self.module.variables.values())
        for fn in functions:
            found += fn.variables.values()
        for var in found:
            if var.space != "shared":
                continue
            if var.extern or (var.size == 0):
                dynamic.append(var.name)
                self.dynamic_align = max(self.dynamic_align, var.align)
                continue
            align = max(var.align, 1)
            at = -(-at // align) * align
            self.shared_offsets[var.name] = at
            at += var.size
        self.static_shared = at - SHARED_RESERVED
        start = -(-at // self.dynamic_align) * self.dynamic_align
        self.dynamic_offset = start
        for name in dynamic:
            self.shared_offsets[name] = start

    def code(self, name: str) -> Code:
        found = self.codes.get(name)
        if found is None:
            fn = self.module.functions[name]
            found = self.codes[name] = Code(self, fn)
            self.compiler(self, found).run()
        return found


_NUMBER = {"gpu": 0, "gl": 0, "cluster": 1, "cta": 2}


def _is_narrow(opcode: tuple[str, ...]) -> bool:
    """Return whether an instruction's scope is a block or a cluster, and its memory more than that of a block."""
    if opcode[0] not in ("ld", "st", "atom", "red", "fence", "membar", "tensormap") or "mbarrier_init" in opcode:
        return False
    return not {"cta", "cluster"}.isdisjoint(opcode) and not {"shared", "shared::cta"} & set(opcode[:3])


def _copies_out(opcode: tuple[str, ...]) -> bool:
    """Return whether an instruction is a bulk or tensor copy, or a reduction, from shared to global memory."""
    spaces = [word for word in opcode if word == "global" or word.startswith("shared")]
    return "bulk" in opcode and spaces[:1] == ["global"] and len(spaces) > 1


def _width(ins: Instruction) -> int:
    """Return the bytes of shared memory that an instruction may access at once, at most 16."""
    if ins.opcode[0] == "mbarrier":
        return 8
    form = known_form(ins) if ins.opcode[0] in ("ld", "st", "atom", "red") else None
    if form is None or not (form["space"] == "" or form["space"].startswith("shared")):
        return 16
    return min(form.size * form.vector, 16)
