"""Runs an entry of a module, which is compiled once for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kernel_dsl.compiled import ReportNames, SourceLine
from kernel_dsl.interpret_params import InterpretParams

from ..checks.doubts import Doubts
from ..checks.explore import EXPLORED
from ..checks.hazards import RunReport
from ..checks.launches import Launches
from ..ptx.module import Module
from .attempts import in_attempts, prepared
from .compiler import Compiler
from .launch import Run
from .launch_checks import check_target
from .memory import GlobalMemory
from .program import Program
from .waiting_blocks import Dims


def program_of(module: Module, entry: str, target: str, several: bool = False, fine: bool = False) -> Program:
    """Return the program of an entry, compiled once for a module. Raises PtxError.

    `several`: for several GPUs. `fine`: warps may lose their turn at each instruction that synchronises.
    """
    check_target(module, target)
    fine = fine or EXPLORED.get() is not None
    key = f"{entry}{' in fine steps' if fine else ''}{' on several GPUs' if several else ''}"
    program: Program | None = module.programs.get(key)
    if program is None:
        program = Program(module, entry, Compiler, fine, several)
        program.code(entry)
        module.programs[key] = program
    return program


def run_module(
    module: Module, entry: str, params: list[bytes], *, grid: Dims, block: Dims, cluster: Dims,
    dynamic_smem: int, memory: GlobalMemory, target: str, config: InterpretParams,
    names: ReportNames | None, lines: Mapping[int, SourceLine] | None, kernel_name: str,
    launches: Launches | None = None, overlaps: bool = False, report: RunReport | None = None,
    patience: int = 0, initial: Mapping[str, bytes] | None = None, others: Sequence[list[bytes]] = (),
) -> RunReport:  # fmt: skip
    """Compile `entry` (once for a module) and run it."""
    program = program_of(module, entry, target, bool(others))
    if (
        not others
        and config.schedule == "random"
        and config.seed % 2
        and program.waits_for_blocks
        and math.prod(grid) > 1
    ):
        program = program_of(module, entry, target, False, True)  # see `BatchTurns`
    required = program.entry.directives.get("reqnctapercluster")
    if required is not None:  # the directive is enough to make clusters (PTX ISA 11.7.3)
        x, y, z = (*required, 1, 1)[:3]
        if cluster not in ((1, 1, 1), (x, y, z)):
            raise ValueError(f"the entry requires clusters of {(x, y, z)}, not {cluster}")
        cluster = x, y, z
    stream = launches or Launches()

    def attempt(report: RunReport, doubts: Doubts) -> Run:
        run = Run(
            program, params, grid, block, cluster, dynamic_smem, memory, target, config, names, lines,
            kernel_name, stream, overlaps, report, others, patience, doubts,
        )  # fmt: skip
        run.initial = initial or {}
        return run

    doubts, before = prepared(memory, stream, config.detect_hazards and program.may_doubt)
    return in_attempts(attempt, doubts, before, report or RunReport())
