"""What a new op still lacks: a docstring that names its PTX, one lowering, a place in `tests/ops`."""

from __future__ import annotations

import inspect
import re

import kernel_dsl  # noqa: F401 - fills the registry
import pytest
from kernel_dsl.ir import Op
from lowering.rules import FAMILIES, all_rules
from lowering.rules.elementwise import leaf_rule

from tests.conftest import ROOT
from tests.ops.coverage import COVERED

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
    assert own or leaf, f"{op.op_name} has neither a rule nor leaf text"
    assert op in RULES


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.op_name)
def test_named_after_what_it_does(op: type[Op]) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", op.op_name)
    assert op.__module__.startswith("kernel_dsl.ops.")


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.op_name)
def test_has_a_case(op: type[Op]) -> None:
    """`tests/ops/coverage.py` says which test file runs the op; that file names it or the function that makes it."""
    files = COVERED.get(op.op_name)
    assert files, f"add {op.op_name} to tests/ops/coverage.py, with the test that runs it"
    for name in files.split():
        assert (ROOT / "tests" / name).exists(), name


def test_coverage_names_no_op_that_is_gone() -> None:
    assert {name for name in COVERED if name not in Op.registry} == set()


def test_fields_are_declared_once() -> None:
    for op in OPS:
        assert set(op.fields) == {k for k, _ in op.value_fields} | set(op.attr_fields) | {
            k for k, _ in op.region_fields
        }
