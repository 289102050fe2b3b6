"""What a new op still lacks: a docstring that names its PTX, one lowering, a place in `tests/ops`."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from typing import Any

import numpy as np
import pytest

from kernel_dsl import ops
from kernel_dsl.accumulator import AccRef
from kernel_dsl.ir import Op
from kernel_dsl.lowering.pipeline import run_passes
from kernel_dsl.lowering.rules import FAMILIES, all_rules
from kernel_dsl.lowering.rules.elementwise import leaf_rule
from kernel_dsl.refs import Ref
from kernel_dsl.text import parse
from kernel_dsl.values import Array
from tests.conftest import ROOT
from tests.kernels import CASES, lowered
from tests.mesh.test_hosts import N, everybody, fetching

OPS = [op for name, op in sorted(Op.registry.items()) if op.__module__.startswith("kernel_dsl.ops")]
RULES = all_rules()


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.op_name)
def test_docstring(op: type[Op]) -> None:
    text = inspect.cleandoc(op.__doc__ or "")
    assert text, f"{op.__name__} has no docstring"
    assert text.split("\n")[0].rstrip().endswith((".", ":")), "the first line is a sentence"


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.op_name)
def test_exactly_one_lowering(op: type[Op]) -> None:
    own = [family.__name__ for family in FAMILIES if op in family.RULES]
    leaf = leaf_rule(op) is not None
    assert len(own) <= 1, f"{op.op_name} has rules in {own}"
    assert bool(own) != leaf, f"{op.op_name} has {'both' if leaf else 'neither'} a rule and leaf text"
    assert op in RULES


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.op_name)
def test_named_after_what_it_does(op: type[Op]) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", op.op_name)
    assert op.__module__.startswith("kernel_dsl.ops.")


@cache
def _reached() -> frozenset[str]:
    """The ops that the suite's kernels hold, traced and after the passes."""
    names: set[str] = set()
    for name, case in CASES.items():
        stages = lowered(name, case.targets[0] if "sm_90a" not in case.targets else "sm_90a")
        names |= {op.op_name for op in stages.ir.walk()}
        after = run_passes(parse(stages.ir_text), stages.target)
        names |= {op.op_name for op in after.walk()}
    # calls of what a device links don't assemble alone, as the suite's kernels do
    for kernel in (everybody(), fetching()):
        names |= {op.op_name for op in kernel.lower([np.zeros(N, np.float32)] * 4, target="sm_90a").ir.walk()}
    return frozenset(names)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.op_name)
def test_has_a_case(op: type[Op]) -> None:
    """Some kernel of `tests/kernels.py` (elementwise ops: a line of `tests/table.py`) holds the op."""
    assert op.op_name in _reached(), f"add a kernel with {op.op_name} to tests/kernels.py, and a test to tests/ops"


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.op_name)
def test_docstring_says_what_it_becomes(op: type[Op]) -> None:
    """The PTX that an op becomes, or that it becomes none, or the function of `lowering/math` that it calls."""
    text = op.__doc__ or ""
    assert re.search(r"PTX|[Nn]o instruction|Free|lowering/math", text) or getattr(op, "math", ""), text


@cache
def _known() -> frozenset[str]:
    from kernel_dsl.runtime.interpreter.isa import semantics

    del semantics  # importing it fills the table
    from kernel_dsl.runtime.interpreter.isa.instructions import ROWS
    from kernel_dsl.runtime.interpreter.isa.semantics.table import entries

    scheduled = {"bra", "ret", "exit", "trap"}  # run by the scheduler itself
    return frozenset(e.opcode[0] for e in entries()) | {name[0] for name in ROWS} | scheduled


# "PTX `a`, `b.c` and `d`": the mnemonics that a docstring names
_PTX = re.compile(r"PTX ((?:(?:,| and| or| with)? ?`[^`]+`)+)")


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.op_name)
def test_the_interpreter_knows_its_instructions(op: type[Op]) -> None:
    named = re.findall(r"`([a-z][a-z0-9_]*)[.a-zA-Z0-9_:]*`", " ".join(_PTX.findall(op.__doc__ or "")))
    unknown = {word for word in named if word not in _known() and not word.startswith(("test_wait", "kd"))}
    assert unknown == set()


def test_every_file_is_a_family() -> None:
    """Every file that defines ops or rules is one, and rules are in files named as their ops'."""

    def holding(folder: str, pattern: str) -> set[str]:
        return {p.stem for p in (ROOT / folder).glob("*.py") if re.search(pattern, p.read_text(), re.M)}

    families, rules = ({f.__name__.rpartition(".")[2] for f in listed} for listed in (ops.FAMILIES, FAMILIES))
    assert holding("kernel_dsl/ops", "") - {"__init__"} == families
    assert holding("lowering/rules", r"^RULES\b") == rules <= families


def test_fields_are_declared_once() -> None:
    for op in OPS:
        assert set(op.fields) == {k for k, _ in op.value_fields} | set(op.attr_fields) | {
            k for k, _ in op.region_fields
        }


@pytest.mark.parametrize(
    ("handle", "file", "declared"),
    [(Array, "values", "ArrayMethods"), (Ref, "refs", "RefMethods"), (AccRef, "accumulator", "AccMethods")],
)
def test_handles_have_the_methods_that_type_checkers_read(handle: type[Any], file: str, declared: str) -> None:
    """Each declared method is attached, with parameters that the declaration has in this order; and none is but those."""
    tree = ast.parse((ROOT / "kernel_dsl" / f"{file}.py").read_text())
    (methods,) = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == declared)
    functions = {node.name: node for node in methods.body if isinstance(node, ast.FunctionDef)}
    attached = {
        name for name, value in vars(handle).items() if getattr(value, "__module__", "").startswith("kernel_dsl.ops.")
    }
    assert functions.keys() == attached
    for name, node in functions.items():
        parameters = inspect.signature(getattr(handle, name)).parameters
        named = [p.arg for p in node.args.args[1:]]
        taken = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
        if not name.startswith("_"):
            assert taken[: len(named)] == named, name
            assert {p.arg for p in node.args.kwonlyargs} <= parameters.keys(), name
