"""What a new op still lacks: a docstring that names its PTX, one lowering, a place in `tests/ops`."""

from __future__ import annotations

import ast
import inspect
import re
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
from kernel_dsl.text_parser import parse
from kernel_dsl.values import Array
from tests.conftest import ROOT
from tests.kernels import CASES, lowered
from tests.mesh.test_hosts import N, everybody, fetching

OPS = [op for name, op in sorted(Op.registry.items()) if op.__module__.startswith("kernel_dsl.ops")]
RULES = all_rules()


def test_docstring() -> None:
    """The first line is a sentence."""
    first = {op.op_name: inspect.cleandoc(op.__doc__ or "").split("\n")[0].rstrip() for op in OPS}
    assert {name: line for name, line in first.items() if not line.endswith((".", ":"))} == {}


def test_exactly_one_lowering() -> None:
    for op in OPS:
        own = [family.__name__ for family in FAMILIES if op in family.RULES]
        leaf = leaf_rule(op) is not None
        assert len(own) <= 1, f"{op.op_name} has rules in {own}"
        assert bool(own) != leaf, f"{op.op_name} has {'both' if leaf else 'neither'} a rule and leaf text"
        assert op in RULES, op.op_name


def test_named_after_what_it_does() -> None:
    for op in OPS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", op.op_name), op
        assert op.__module__.startswith("kernel_dsl.ops."), op


def _reached() -> set[str]:
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
    return names


def test_each_has_a_case() -> None:
    """Some kernel of `tests/kernels.py` (elementwise ops: a line of `tests/table.py`) holds the op."""
    missing = {op.op_name for op in OPS} - _reached()
    assert missing == set(), "add kernels with these to tests/kernels.py, and tests to tests/ops"


def test_docstring_says_what_it_becomes() -> None:
    """The PTX that an op becomes, or that it becomes none, or the function of `lowering/math` that it calls."""
    texts = {op.op_name: op.__doc__ or "" for op in OPS if not getattr(op, "math", "")}
    said = r"PTX|[Nn]o instruction|Free|lowering/math"
    assert {name: text for name, text in texts.items() if not re.search(said, text)} == {}


def _known() -> set[str]:
    from kernel_dsl.runtime.interpreter.isa import semantics

    del semantics  # importing it fills the table
    from kernel_dsl.runtime.interpreter.isa.instructions import ROWS
    from kernel_dsl.runtime.interpreter.isa.semantics.table import entries

    scheduled = {"bra", "ret", "exit", "trap"}  # run by the scheduler itself
    return {e.opcode[0] for e in entries()} | {name[0] for name in ROWS} | scheduled


# "PTX `a`, `b.c` and `d`": the mnemonics that a docstring names
_PTX = re.compile(r"PTX ((?:(?:,| and| or| with)? ?`[^`]+`)+)")


def test_the_interpreter_knows_their_instructions() -> None:
    texts = (text for op in OPS for text in _PTX.findall(op.__doc__ or ""))
    named = {word for text in texts for word in re.findall(r"`([a-z][a-z0-9_]*)[.a-zA-Z0-9_:]*`", text)}
    assert len(named) > 40 and {x for x in named if not x.startswith(("test_wait", "kd"))} <= _known()


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
