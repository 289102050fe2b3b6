"""The data that the steps of the pipeline pass on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from kernel_dsl.compiled import (
    ArrayAssumption,
    CompiledKernel,
    Condition,
    LaunchAttributes,
    OutputSpec,
    Param,
    ReportNames,
    SourceLine,
    Workspace,
)
from kernel_dsl.ir import KernelIR
from kernel_dsl.target import Target

from .context import Context


@dataclass(frozen=True)
class CallSpec:
    """The data of a launch beside the kernel: the outputs to make, and the structure of the result."""

    outputs: tuple[OutputSpec, ...]
    output_tree: Any
    overlaps: tuple[tuple[int, int], ...] = ()
    max_registers: int | None = None
    conditions: tuple[Condition, ...] = ()


@dataclass
class Lowered:
    """LLVM text, with the fields that `CompiledKernel` takes from lowering."""

    text: str
    entry: str
    params: tuple[Param, ...]
    arrays: tuple[ArrayAssumption, ...]
    launch: LaunchAttributes
    names: ReportNames
    workspaces: tuple[Workspace, ...] = ()
    effects: bool = False  # see `CompiledKernel`
    smem_spans: dict[tuple[str, int], frozenset[tuple[int, int]]] = field(
        default_factory=lambda: cast("dict[tuple[str, int], frozenset[tuple[int, int]]]", {})
    )  # the spans of SMEM that each of the user's lines accesses


@dataclass
class Job:
    """A kernel between IR and `CompiledKernel`. The steps of the pipeline fill in the fields."""

    ir: KernelIR
    target: Target
    spec: CallSpec = CallSpec((), None)
    ctx: Context = field(init=False)
    entry: str = ""
    signature: list[str] = field(default_factory=lambda: cast("list[str]", []))  # the entry's LLVM parameters
    params: list[Param] = field(default_factory=lambda: cast("list[Param]", []))
    arrays: list[ArrayAssumption] = field(default_factory=lambda: cast("list[ArrayAssumption]", []))
    exchange: tuple[int, int] = (0, 0)  # the exchange space: its offset, and bytes of a half
    launch: LaunchAttributes = field(init=False)
    text: str = ""
    lowered: Lowered = field(init=False)
    ptx: str = ""
    lines: dict[int, SourceLine] = field(default_factory=lambda: cast("dict[int, SourceLine]", {}))
    kernel: CompiledKernel = field(init=False)
