"""A kernel of a CUDA C++ file beside this one: how it is launched, and what it must give."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import kernel_dsl as kd
from kernel_dsl.runtime.custom.nvrtc import compile_source

HERE = Path(__file__).parent
SCHEDULES = ("eager", "late", "random:2")
IGNORED = ("equal_value_race",)


@dataclass
class Case:
    """`want(*copies of args)` gives the contents of `args[i]` for each i of `outs`, in float64 or exactly."""

    entry: str
    args: Sequence[Any]
    want: Callable[..., Any] | None
    outs: Sequence[int] = (-1,)
    grid: Any = 1
    block: Any = 128
    cluster: Any = None
    smem: int = 0
    symbols: dict[str, Any] = field(default_factory=dict[str, Any])
    rtol: float = 0.0
    atol: float = 0.0
    before: Sequence[
        tuple[str, Sequence[int], Any, Any]
    ] = ()  # launches: entry, arguments by number or -1 for the grid, grid, block
    behind: Sequence[tuple[Any, Callable[[], Any]]] = ()  # arrays behind tensor maps, and what they must hold


def headers() -> list[str]:
    """The folder of CuTe's headers, where the package that has them is installed."""
    found = importlib.util.find_spec("cutlass_library")
    return [] if found is None or found.origin is None else [str(Path(found.origin).parent / "source" / "include")]


def ptx_of(file: str, target: str) -> str:
    """The PTX of a file for a target."""
    options = ["--generate-line-info", *(f"--include-path={d}" for d in headers())]
    found = compile_source((HERE / file).read_text(), file=file, target=target, kind="ptx", options=options)
    return found.rstrip(b"\0").decode()


def run(case: Case, ptx: str, schedules: Sequence[str] = SCHEDULES) -> Any:
    """The report of a case on copies of its arguments, whose outputs are compared. AssertionError where they differ."""
    args = [a.copy() if isinstance(a, np.ndarray) else a for a in case.args]
    given = [a.copy() if isinstance(a, np.ndarray) else a for a in case.args]
    steps = [
        kd.check.launch(ptx, *(case.grid if i < 0 else args[i] for i in which), entry=entry, grid=grid, block=block)
        for entry, which, grid, block in case.before
    ]
    last = kd.check.launch(
        ptx, *args, grid=case.grid, block=case.block, cluster=case.cluster, smem=case.smem or None, entry=case.entry,
        symbols=case.symbols or None,
    )  # fmt: skip
    report = kd.check.sequence([*steps, last], schedules=schedules, ignore=IGNORED)
    for array, want in case.behind:
        np.testing.assert_allclose(array, want(), rtol=1e-5, atol=1e-5)
    if case.want is not None:
        results = case.want(*given)
        for at, want in zip(case.outs, results if isinstance(results, tuple) else (results,), strict=True):
            got = args[at]
            same = np.asarray(want).reshape(got.shape)
            if case.rtol or case.atol:
                np.testing.assert_allclose(got.astype(np.float64), same, rtol=case.rtol, atol=case.atol)
            else:
                np.testing.assert_array_equal(got, same)
    return report
