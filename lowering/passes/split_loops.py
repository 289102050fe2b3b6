"""Give each role of warpgroups a loop of its own if a shared loop changes registers.

The assembler gives a loop that holds several `setmaxnreg` the fewest registers of them, for all roles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kernel_dsl import dtypes as dt
from kernel_dsl.clone import clone_op
from kernel_dsl.ir import ArrayType, KernelIR, Op, Region, Value, Yield
from kernel_dsl.layout import SCALAR
from kernel_dsl.ops.arith import Or
from kernel_dsl.ops.cast import Constant
from kernel_dsl.ops.compare import Equal
from kernel_dsl.ops.control import For, If, While
from kernel_dsl.ops.index import AxisIndex
from kernel_dsl.ops.matrix import SetMaxRegisters
from kernel_dsl.ops.ref import AllocBarrier, AllocSmem
from kernel_dsl.ops.semaphore import AllocSemaphore
from kernel_dsl.registers import follow
from kernel_dsl.target import Target

__all__ = ["run"]

Known = dict[Value, Any]  # values that depend on the warpgroup's number only


def run(ir: KernelIR, target: Target) -> KernelIR:
    """Split the loops of the kernel's own region, in place."""
    if ir.threads < 2:
        return ir
    known: list[Known] = [{} for _ in range(ir.threads)]
    out: list[Op] = []
    for op in ir.body.ops:
        for thread, values in enumerate(known):
            follow(op, thread, values)
        if isinstance(op, (For, While)) and any(isinstance(o, SetMaxRegisters) for o in _inside(op)):
            out += _split(op, known)
        else:
            out.append(op)
    ir.body.ops[:] = out
    return ir


def _inside(op: Op) -> Iterator[Op]:
    for region in op.region_list():
        for inner in region.ops:
            yield inner
            yield from _inside(inner)


def _split(loop: Op, known: list[Known]) -> list[Op]:
    """One loop for each role, if warpgroups take different branches to `set_max_registers`."""
    own = [dict(values) for values in known]
    roles: dict[tuple[bool, ...], list[int]] = {}
    for thread, values in enumerate(own):
        for op in _inside(loop):
            follow(op, thread, values)
        deciding = [
            o for o in _inside(loop) if isinstance(o, If) and any(isinstance(x, SetMaxRegisters) for x in _inside(o))
        ]
        if any(o.predicate not in values for o in deciding):
            return [loop]
        roles.setdefault(tuple(bool(values[o.predicate]) for o in deciding), []).append(thread)
    if len(roles) < 2:
        return [loop]
    hoisted = _hoist(loop)
    groups = list(roles.values())
    made: list[Op] = []
    results: tuple[Value, ...] = ()
    # the last role needs no test; the tests of the others are made from the inside out
    for number, threads in reversed(list(enumerate(groups))):
        copy = _resolved(loop, own[threads[0]])
        if number == len(groups) - 1:
            made, results = [copy], copy.results
            continue
        tests, predicate = _is_one_of(threads, len(known), loop)
        op = If(predicate, _region([copy], copy.results, loop), _region(made, results, loop))
        op.loc = loop.loc
        outer = number == 0
        # the outermost test takes the loop's place
        op.results = loop.results if outer else tuple([_value(r.type, op) for r in loop.results])
        if outer:
            for r in op.results:
                r.op = op
        made, results = [*tests, op], op.results
    return [*hoisted, *made]


def _hoist(loop: Op) -> list[Op]:
    """Move allocations that all warpgroups share out of a loop. They then last as long as the kernel."""
    out: list[Op] = []
    for region in loop.region_list():
        for op in region.ops:
            out += _hoist(op)
        shared = [op for op in region.ops if isinstance(op, (AllocSmem, AllocBarrier, AllocSemaphore))]
        out += shared
        region.ops[:] = [op for op in region.ops if op not in shared]
    return out


def _resolved(loop: Op, known: Known) -> Op:
    """A copy of the loop, with the branches that are known taken."""
    copies: dict[Value, Value] = {}
    copy = clone_op(loop, copies)
    decided = {copies[v]: bool(x) for v, x in known.items() if v in copies and isinstance(x, bool)}
    decided |= {v: x for v, x in known.items() if isinstance(x, bool)}
    _take(copy, decided, {})
    return copy


def _take(op: Op, decided: dict[Value, bool], renamed: dict[Value, Value]) -> None:
    """Replace each decided `if` by the ops of its branch."""
    for region in op.region_list():
        out: list[Op] = []
        for inner in region.ops:
            _rename(inner, renamed)
            _take(inner, decided, renamed)
            if isinstance(inner, If) and inner.predicate in decided:
                taken = inner.then if decided[inner.predicate] else inner.otherwise
                renamed.update(zip(inner.results, taken.yields, strict=True))
                out += [o for o in taken.ops if not isinstance(o, Yield)]
            else:
                out.append(inner)
        region.ops[:] = out


def _rename(op: Op, renamed: dict[Value, Value]) -> None:
    for key, many in op.value_fields:
        value = getattr(op, key)
        if many:
            setattr(op, key, tuple([renamed.get(v, v) for v in value]))
        elif value is not None:
            setattr(op, key, renamed.get(value, value))


def _is_one_of(threads: list[int], count: int, at: Op) -> tuple[list[Op], Value]:
    """Ops that test whether this warpgroup is one of `threads`, and their result."""
    ops: list[Op] = [_made(AxisIndex("thread", 0, count), dt.int32, at)]
    me, found = ops[0].results[0], None
    for thread in threads:
        number = _made(Constant(thread, dt.int32), dt.int32, at)
        test = _made(Equal(me, number.results[0]), dt.bool_, at)
        ops += [number, test]
        if found is not None:
            test = _made(Or(found, test.results[0]), dt.bool_, at)
            ops.append(test)
        found = test.results[0]
    assert found is not None
    return ops, found


def _made(op: Op, dtype: dt.DType, at: Op) -> Op:
    op.loc = at.loc
    op.results = (_value(ArrayType((), dtype, SCALAR), op),)
    return op


def _value(type: Any, op: Op) -> Value:
    from kernel_dsl.trace import new_value

    return new_value(type, op)


def _region(ops: list[Op], results: tuple[Value, ...], at: Op) -> Region:
    end = Yield(results)
    end.loc = at.loc
    return Region((), [*ops, end])
