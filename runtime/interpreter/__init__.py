"""The PTX interpreter: it runs PTX on NumPy arrays, and reports hazards.

`parse` a PTX text, give arrays addresses in a `GlobalMemory`, and `run` an entry. Runs are single-threaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernel_dsl.compiled import ReportNames, SourceLine
from kernel_dsl.interpret_params import InterpretParams

from .checks.explore import Exploration, OrderSearch, explore, explored, over_schedules, schedules_of
from .checks.hazards import Finding, HazardError, HazardWarning, Place, RunReport
from .checks.kinds import HazardKind
from .checks.launches import Launches
from .checks.ordered import is_ordered
from .isa.targets import runs_on as runs_on
from .machine.builders import families as families  # fills the table of builders
from .machine.float_mode import SubnormalNumbers
from .machine.links import check_links
from .machine.memory import Buffer, GlobalMemory
from .machine.recorder import FlightRecorder, recorded
from .machine.run_module import program_of, run_module
from .machine.tensor_map import encode_tensor_map
from .ptx.module import Module, PtxError
from .ptx.parse import parse

Dims = tuple[int, int, int]

__all__ = [
    "Buffer",
    "Exploration",
    "Finding",
    "FlightRecorder",
    "GlobalMemory",
    "HazardError",
    "HazardKind",
    "HazardWarning",
    "InterpretParams",
    "Launches",
    "Module",
    "OrderSearch",
    "Place",
    "PtxError",
    "RunReport",
    "check_program",
    "encode_tensor_map",
    "explore",
    "explored",
    "is_ordered",
    "over_schedules",
    "parse",
    "recorded",
    "run",
    "schedules_of",
]


def check_program(module: Module, entry: str, target: str) -> bool:
    """Compile every function of a module, for an entry, as an assembler does; nothing runs.

    Returns whether only barriers order warps and blocks (`ordered.py`): then one run finds the same hazards as any
    other. Raises `PtxError` with line and column for what an assembler or linker would refuse.
    """
    program = program_of(module, entry, target)
    for name, function in module.functions.items():
        if function.entry:
            program_of(module, name, target)
        elif function.defined:
            program.code(name)
    check_links(module)
    return is_ordered(module, entry)


def run(
    module: Module,
    entry: str,
    params: list[bytes],
    *,
    grid: Dims,
    block: Dims,
    memory: GlobalMemory,
    target: str = "sm_90a",
    cluster: Dims = (1, 1, 1),
    dynamic_smem: int = 0,
    params_cfg: InterpretParams | None = None,
    names: ReportNames | None = None,
    lines: Mapping[int, SourceLine] | None = None,
    kernel_name: str = "",
    launches: Launches | None = None,
    overlaps: bool = False,
    report: RunReport | None = None,
    patience: int = 0,
    initial: Mapping[str, bytes] | None = None,
    others: Sequence[list[bytes]] = (),
) -> RunReport:
    """Run an entry to its end.

    `params`: the raw bytes of each parameter in order; a pointer is 8 little-endian bytes of an address that
    `memory.allocate` gave, a tensor map the 128 bytes of `encode_tensor_map`. `grid` counts blocks. `lines` maps PTX
    line numbers to the author's lines. `launches` is the record that launches of a stream hand on (`Launches`). With
    `overlaps`, this launch need not wait for the end of the one before (programmatic dependent launch) until it executes
    `griddepcontrol.wait`. `report` is filled during the run, so that it has the hazards before an error; by default it is
    a new one. `patience`: a run that shows no sign of an end for this many steps, or that has hazards and goes on, is
    ended (`checks/patience.py`). `initial`: the first bytes of module variables, by name. `others`: the parameters on
    further GPUs, on which the entry runs at the same time; all arrays lie in the one `memory`. Raises `PtxError` for PTX
    that an assembler would refuse, `HazardError` for a defect of the kernel, ValueError for a launch that the
    device would refuse.
    """
    with SubnormalNumbers():
        return run_module(
            module, entry, params, grid=grid, block=block, cluster=cluster, dynamic_smem=dynamic_smem,
            memory=memory, target=target, config=params_cfg or InterpretParams(), names=names,
            lines=lines, kernel_name=kernel_name, launches=launches, overlaps=overlaps, report=report, patience=patience,
            initial=initial, others=others,
        )  # fmt: skip
