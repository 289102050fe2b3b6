"""The table of steps: each has a reason, stands in order, and runs from the table alone."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kernel_dsl as kd
from kernel_dsl import body_trace
from kernel_dsl.lowering import pipeline
from kernel_dsl.lowering.pipeline import STEPS
from kernel_dsl.steps import TRACED, Step, Where

ROOT = Path(kd.__file__).parent.parent
RUN = {step.run.__name__: step for step in STEPS if step.run.__name__ not in ("step", "<lambda>")}


def test_names_and_reasons() -> None:
    assert len({step.name for step in STEPS}) == len(STEPS)
    assert all(len(step.why.split()) > 3 and len(step.why) <= 90 for step in STEPS)
    order = [list(Where).index(step.where) for step in STEPS]
    assert order == sorted(order)


def test_an_order_has_a_reason_and_names_steps() -> None:
    names = [step.name for step in STEPS]
    assert all(names.index(first) < names.index(second) and why for (first, second), why in pipeline.BEFORE.items())


def test_steps_are_run_by_the_table_alone() -> None:
    """No code calls a step's function: what happens to a kernel stands in one place."""
    assert {"check_waits", "check_accumulators", "check_registers", "plan_buffers", "check_smem", "meet"} <= set(RUN)
    for room in ("kernel_dsl", "lowering"):
        for path in (ROOT / room).rglob("*.py"):
            calls = [n.func for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
            names = {f.id if isinstance(f, ast.Name) else f.attr if isinstance(f, ast.Attribute) else "" for f in calls}
            own = {name for name in names & set(RUN) if _defined(path, name)}
            assert not own, f"{path} calls {own}"


def _defined(path: Path, name: str) -> bool:
    """Whether a file has a step's function: it defines or imports it."""
    tree = ast.parse(path.read_text())
    imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
    return name in imported or any(isinstance(n, ast.FunctionDef) and n.name == name for n in tree.body)


def test_a_compile_walks_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def told(step: Step[Any]) -> Step[Any]:
        return replace(step, run=lambda state: (ran.append(step.name), step.run(state)))

    monkeypatch.setattr(body_trace, "TRACED", tuple(map(told, TRACED)))
    monkeypatch.setattr(pipeline, "STEPS", tuple(map(told, STEPS)))

    @kd.kernel(out_type=kd.ShapeDtypeStruct((128,), kd.float32))
    def double(x: kd.Ref, out: kd.Ref) -> None:
        out[...] = x[...] * 2

    assert ".entry" in double.lower(kd.ShapeDtypeStruct((128,), kd.float32)).ptx
    assert ran == [step.name for step in STEPS]
