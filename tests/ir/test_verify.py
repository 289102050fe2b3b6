"""Each rule of `kernel_dsl/verify.py`, broken."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import kernel_dsl as kd
from kernel_dsl import Layout
from kernel_dsl.ir import ArrayType, KernelIR, Op, RefType, Value, Yield
from kernel_dsl.lowering.pipeline import run_passes
from kernel_dsl.text_parser import parse
from kernel_dsl.verify import Invalid, verify
from tests.kernels import CASES, lowered


def fresh(name: str) -> KernelIR:
    """A kernel of the suite that may be broken."""
    return parse(lowered(name, CASES[name].targets[-1]).ir_text)


def first(ir: KernelIR, op_name: str) -> Any:
    return next(op for op in ir.walk() if op.op_name == op_name)


def broken(ir: KernelIR, rule: str) -> None:
    with pytest.raises(Invalid) as caught:
        verify(ir)
    assert caught.value.rule == rule, str(caught.value)


@pytest.mark.parametrize("name", CASES)
def test_the_suite_is_valid_after_each_pass(name: str) -> None:
    stages = lowered(name, CASES[name].targets[-1])
    assert verify(stages.ir) is stages.ir
    run_passes(fresh(name), stages.target, lambda _, ir: verify(ir))


def test_parameters() -> None:
    ir = fresh("vector_add")
    ir.inputs = 9
    broken(ir, "parameters")
    ir = fresh("vector_add")
    ir.params[-1].type = ArrayType((), kd.int32, Layout(0, ()))
    broken(ir, "parameters")


def test_definition_before_use() -> None:
    ir = fresh("softmax")
    ops = ir.body.ops
    ops[0], ops[-1] = ops[-1], ops[0]
    broken(ir, "definition")


def test_nothing_leaves_its_region() -> None:
    ir = fresh("branches")
    inner = first(ir, "switch").branches[0]
    outer = first(ir, "store")
    inside = next(v for op in inner.ops for v in op.results) if any(o.results for o in inner.ops) else None
    if inside is None:
        inside = next(v for r in first(ir, "switch").branches for op in r.ops for v in op.results)
    outer.x = inside
    broken(ir, "definition")


def test_one_definition() -> None:
    ir = fresh("softmax")
    ir.body.ops.append(ir.body.ops[0])
    broken(ir, "definition")


def test_types() -> None:
    ir = fresh("softmax")
    op = first(ir, "cast")
    t = op.result.type
    op.results[0].type = dataclasses.replace(t, dtype=kd.float64)
    broken(ir, "types")


@pytest.mark.parametrize("layout", [object(), Layout(2, ()), Layout(1, ())], ids=["open", "rank", "too small"])
def test_layouts(layout: Any) -> None:
    ir = fresh("softmax")
    op = first(ir, "load")
    op.layout = layout
    op.results[0].type = dataclasses.replace(op.result.type, layout=layout)
    broken(ir, "layouts")


def test_regions_end_with_their_only_yield() -> None:
    ir = fresh("for_loop")
    loop = first(ir, "for")
    loop.body.ops.pop()
    broken(ir, "regions")
    ir = fresh("for_loop")
    ir.body.ops.append(Yield(()))
    broken(ir, "regions")


def test_branches() -> None:
    ir = fresh("branches")
    chosen = first(ir, "if")
    chosen.predicate = first(ir, "switch").result
    broken(ir, "branches")
    ir = fresh("branches")
    chosen = first(ir, "if")
    chosen.otherwise.ops[-1].operands_ = ()
    broken(ir, "branches")


def test_loops() -> None:
    ir = fresh("for_loop")
    first(ir, "for").step = 0
    broken(ir, "loops")
    ir = fresh("for_loop")
    loop = first(ir, "for")
    loop.body.ops[-1].operands_ = (loop.body.args[0],)
    broken(ir, "loops")
    ir = fresh("collatz")
    loop = first(ir, "while")
    loop.before.ops[-1].operands_ = ()
    broken(ir, "loops")


def test_scans() -> None:
    ir = fresh("function_scans")
    scan = first(ir, "associative_scan")
    scan.combine.ops[-1].operands_ = scan.combine.ops[-1].operands_[:1]
    broken(ir, "scans")
    ir = fresh("function_scans")
    first(ir, "associative_scan").axes = (0,)
    broken(ir, "scans")


def test_elementwise() -> None:
    ir = fresh("softmax")
    op = first(ir, "sub")
    op.y = op.y.op.x
    broken(ir, "elementwise")


def test_access() -> None:
    ir = fresh("softmax")
    op = first(ir, "load")
    op.offsets = ()
    broken(ir, "access")
    ir = fresh("softmax")
    op = first(ir, "store")
    op.x = first(ir, "div").result
    broken(ir, "access")
    ir = fresh("masked")
    op = first(ir, "store")
    op.mask = op.x
    broken(ir, "access")


def test_writes() -> None:
    ir = fresh("vector_add")
    value: Value = ir.params[-1]
    assert isinstance(value.type, RefType)
    value.type = dataclasses.replace(value.type, written=False)
    broken(ir, "writes")


def test_every_rule_is_tested() -> None:
    """The docstring's rules are the ones that are broken here."""
    import kernel_dsl.verify as module

    named = {line.split("*")[1].rstrip(".").lower() for line in (module.__doc__ or "").splitlines() if ". *" in line}
    assert named == {
        "definition", "types", "layouts", "regions", "branches", "loops", "scans", "elementwise", "access", "writes",
        "parameters",
    }  # fmt: skip
    assert Op.registry


def test_a_module_of_ops_may_run_again() -> None:
    """After an interrupt in its import it is imported anew. Two classes have no name in common otherwise."""

    def made() -> type[Op]:
        class Again(Op, name="made_again"):
            pass

        return Again

    try:
        first_class, second = made(), made()
        assert Op.registry["made_again"] is second is not first_class
        with pytest.raises(ValueError, match="two ops are named made_again"):

            class Other(Op, name="made_again"):
                pass

        assert Op.registry["made_again"] is second
    finally:
        del Op.registry["made_again"]
