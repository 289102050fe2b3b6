"""Helpers of the interpreter's tests: launch PTX on NumPy arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kernel_dsl.runtime.interpreter import GlobalMemory, InterpretParams, Module, RunReport, parse, run

PTX = Path(__file__).parent / "ptx"
HEADER = ".version 8.6\n.target sm_90a\n.address_size 64\n"
SCHEDULES = ("eager", "late", "random")
_CACHE: dict[str, Module] = {}


def load(name: str) -> Module:
    """A PTX file of this area, parsed once."""
    if name not in _CACHE:
        _CACHE[name] = parse((PTX / name).read_text())
    return _CACHE[name]


def launch(
    module: Module | str,
    entry: str,
    args: list,
    grid=(1, 1, 1),
    block=(32, 1, 1),
    outputs: tuple[int, ...] = (),
    **options,
) -> RunReport:
    """Run `entry`. Arrays become pointers named a0, a1, ...; `outputs` (by number) start uninitialised."""
    if isinstance(module, str):
        if module not in _CACHE:
            _CACHE[module] = parse(module)
        module = _CACHE[module]
    config = {
        key: options.pop(key)
        for key in (
            "detect_hazards",
            "on_hazard",
            "schedule",
            "seed",
            "step_budget",
            "report_unwritten",
            "ignore",
            "strict_wgmma",
        )
        if key in options
    }
    memory = GlobalMemory()
    params = []
    for i, arg in enumerate(args):
        if callable(arg):
            arg = arg(memory)
        if isinstance(arg, np.ndarray):
            address = memory.allocate(arg, f"a{i}", initialised=i not in outputs)
            params.append(address.to_bytes(8, "little"))
        elif isinstance(arg, bytes):
            params.append(arg)
        else:
            params.append(int(arg).to_bytes(4, "little", signed=arg < 0))
    grid = (*grid, 1, 1)[:3] if isinstance(grid, tuple) else (grid, 1, 1)
    block = (*block, 1, 1)[:3] if isinstance(block, tuple) else (block, 1, 1)
    return run(
        module, entry, params, grid=grid, block=block, memory=memory,
        params_cfg=InterpretParams(**config), **options,
    )  # fmt: skip


def kernel(params: str, body: str, name: str = "k", shared: str = "", before: str = "") -> str:
    """A module of one entry from its body."""
    return f"{HEADER}{before}\n{shared}\n.visible .entry {name}({params})\n{{\n{body}\n}}\n"
