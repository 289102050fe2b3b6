"""The rules of a valid kernel. `verify(ir)` raises `Invalid` with the rule and the op; tests run it after tracing and passes.

Rules:

1. *Definition.* An operand is a parameter, an argument of an enclosing region, or the result of an earlier op in the
   same or an enclosing region; every value is defined once.
2. *Types.* The results of an op have the types that its `infer` gives.
3. *Layouts.* A value's layout is closed, has the value's rank, and covers its shape.
4. *Regions.* A region of an op ends with its only `yield`; the kernel's own region has none.
5. *Branches.* An `if` takes a rank-0 bool and a `switch` a rank-0 integer; every branch takes nothing and yields the
   types of the results.
6. *Loops.* A `for` counts from and to rank-0 integers of one dtype by a step other than 0, its body takes the index and
   the carries, and yields the carries' types; the test of a `while` takes the carries and yields one rank-0 bool.
7. *Scans.* The region of an `associative_scan` takes a block of each value twice, and yields one of each.
8. *Elementwise.* Operands and result have one shape and one layout.
9. *Access.* A load, store or atomic goes through a view of its Ref: axes exist, one rank-0 integer offset for each
   dynamic axis, values of the view's shape, of the Ref's dtype (what is stored), in one layout; masks are bool.
10. *Writes.* What stores to GMEM stores to a parameter that is marked as written.
11. *Parameters.* Inputs come first; each parameter is a GMEM Ref or a rank-0 value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .ir import ArrayType, KernelIR, MemorySpace, Op, RefType, Region, Value, Yield
from .layout import Layout
from .ops.associative import AssociativeScan
from .ops.atomic import AtomicRmw
from .ops.control import For, If, Switch, While
from .ops.elementwise import Elementwise
from .ops.ref import Store


class Invalid(ValueError):
    """A kernel that breaks a rule: a bug of this project, not of the user."""

    def __init__(self, rule: str, op: Op | None, what: str) -> None:
        place = f" in {op.op_name} at {op.loc}" if op is not None else ""
        super().__init__(f"{rule}{place}: {what}")
        self.rule = rule


def verify(ir: KernelIR) -> KernelIR:
    """The kernel itself, if it is valid. Raises `Invalid`."""
    if not 0 <= ir.inputs <= len(ir.params):
        raise Invalid("parameters", None, f"{ir.inputs} inputs among {len(ir.params)} parameters")
    for number, value in enumerate(ir.params):
        t = value.type
        if isinstance(t, RefType):
            good = t.space is MemorySpace.GMEM
        else:
            good = isinstance(t, ArrayType) and not t.shape and number < ir.inputs
        if not good:
            raise Invalid("parameters", None, f"parameter {number} is {t}")
    defined: set[Value] = set()
    _define(ir.params, defined, None)
    _region(ir.body, None, defined)
    return ir


def _define(values: Iterable[Value], defined: set[Value], op: Op | None) -> None:
    for value in values:
        if value in defined:
            raise Invalid("definition", op, f"a {value.type} is defined twice")
        defined.add(value)
        if isinstance(value.type, ArrayType):
            _layout(value.type, op)


def _layout(t: ArrayType, op: Op | None) -> None:
    if not isinstance(t.layout, Layout):
        raise Invalid("layouts", op, f"the layout of a {t} is open")
    if t.layout.rank != len(t.shape):
        raise Invalid("layouts", op, f"a layout of rank {t.layout.rank} for a {t}")
    if any(have < need for have, need in zip(t.layout.padded, t.shape, strict=True)):
        raise Invalid("layouts", op, f"the layout covers {t.layout.padded} of a {t}")


def _region(region: Region, owner: Op | None, defined: set[Value]) -> None:
    """Check a region. Its values are then removed from `defined`, because nothing outside may use them."""
    inside = set(defined)
    _define(region.args, inside, owner)
    ends = [i for i, op in enumerate(region.ops) if isinstance(op, Yield)]
    if ends != ([] if owner is None else [len(region.ops) - 1]):
        raise Invalid("regions", owner, f"yields at {ends} of {len(region.ops)} ops")
    for op in region.ops:
        _op(op, inside)


def _op(op: Op, defined: set[Value]) -> None:
    for value in op.values():
        if value not in defined:
            raise Invalid("definition", op, f"an operand of type {value.type} is not defined here")
    for region in op.region_list():
        _region(region, op, defined)
    types = tuple(v.type for v in op.results)
    if types != tuple(op.infer()):
        raise Invalid("types", op, f"{_shown(types)} where {_shown(op.infer())} is inferred")
    _define(op.results, defined, op)
    if isinstance(op, (If, Switch)):
        _branches(op)
    elif isinstance(op, For):
        _for(op)
    elif isinstance(op, While):
        _while(op)
    elif isinstance(op, AssociativeScan):
        _scan(op)
    elif isinstance(op, Elementwise):
        _elementwise(op)
    if "view" in op.attr_fields and "ref" in op.fields:
        _access(op)


def _shown(types: Iterable[Any]) -> str:
    return "(" + ", ".join(map(str, types)) + ")"


def _types(values: Iterable[Value]) -> tuple[Any, ...]:
    return tuple(v.type for v in values)


def _scalar(value: Value, want: str, op: Op, rule: str) -> None:
    t = value.type
    good = isinstance(t, ArrayType) and not t.shape
    good = good and (t.dtype.is_bool if want == "bool" else t.dtype.is_integer)
    if not good:
        raise Invalid(rule, op, f"a {t} where a rank-0 {want} is due")


def _branches(op: If | Switch) -> None:
    if isinstance(op, If):
        _scalar(op.predicate, "bool", op, "branches")
    else:
        _scalar(op.index, "integer", op, "branches")
    for region in op.region_list():
        if region.args:
            raise Invalid("branches", op, "a branch takes arguments")
        if _types(region.yields) != _types(op.results):
            raise Invalid("branches", op, f"yields {_shown(_types(region.yields))} of {_shown(_types(op.results))}")


def _for(op: For) -> None:
    for bound in (op.lo, op.hi):
        _scalar(bound, "integer", op, "loops")
    if op.step == 0 or op.lo.type.dtype != op.hi.type.dtype:
        raise Invalid("loops", op, f"from {op.lo.type} to {op.hi.type} by {op.step}")
    carries = _types(op.inits)
    if _types(op.body.args) != (op.lo.type, *carries) or _types(op.body.yields) != carries:
        raise Invalid("loops", op, f"the body of {_shown(carries)} yields {_shown(_types(op.body.yields))}")


def _scan(op: AssociativeScan) -> None:
    blocks = _types(op.combine.yields)
    dtypes = [t.dtype for t in _types(op.xs)]
    if _types(op.combine.args) != blocks * 2 or [t.dtype for t in blocks] != dtypes or len(op.axes) != len(blocks):
        raise Invalid("scans", op, f"the region of {_shown(_types(op.combine.args))} yields {_shown(blocks)}")


def _while(op: While) -> None:
    carries = _types(op.inits)
    if _types(op.body.args) != carries or _types(op.before.args) != carries or _types(op.body.yields) != carries:
        raise Invalid("loops", op, f"the body of {_shown(carries)} yields {_shown(_types(op.body.yields))}")
    if len(op.before.yields) != 1:
        raise Invalid("loops", op, "the test of a while yields one value")
    _scalar(op.before.yields[0], "bool", op, "loops")


def _elementwise(op: Elementwise) -> None:
    own = op.result.type
    for value in op.values():
        if value.type.shape != own.shape or value.type.layout != own.layout:
            raise Invalid("elementwise", op, f"a {value.type} in {value.type.layout} for a {own} in {own.layout}")


def _access(op: Any) -> None:
    """Rules 8 and 9, for every op with `ref`, `offsets` and `view`."""
    t = op.ref.type
    if not isinstance(t, RefType):
        raise Invalid("access", op, f"through a {t}")
    axes = [d.axis for d in op.view.dims] + list(op.view.dynamic) + [limit.axis for limit in op.view.masked]
    if any(not -1 <= axis < len(t.shape) for axis in axes) or len(op.view.start) != len(t.shape):
        raise Invalid("access", op, f"a view that {t} does not have")
    if "offsets" in op.fields:
        due = len(op.view.dynamic) + sum(limit.dynamic for limit in op.view.masked)
        if len(op.offsets) != due:
            raise Invalid("access", op, f"{len(op.offsets)} offsets for {due} dynamic starts")
        walks = len(getattr(op, "walks", ()))
        if any(limit.axis < 0 and len(limit.steps) != len(op.view.dims) + walks for limit in op.view.masked):
            raise Invalid("access", op, "a limit with other dimensions than the view")
        for offset in op.offsets:
            _scalar(offset, "integer", op, "access")
    if isinstance(op, (Store, AtomicRmw)) and (op.x.type.dtype != t.dtype or op.x.type.shape != op.view.shape):
        raise Invalid("access", op, f"a {op.x.type} for a view of shape {op.view.shape} of {t}")
    mask = getattr(op, "mask", None)
    if mask is not None and not mask.type.dtype.is_bool:
        raise Invalid("access", op, f"a mask of {mask.type}")
    if op.writes and t.space is MemorySpace.GMEM and not t.written:
        raise Invalid("writes", op, f"{t.name or t} is marked as never written")
