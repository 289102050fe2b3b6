"""A copy of a traced kernel that passes may change: new values, ops and regions; types and attributes are shared."""

from __future__ import annotations

from typing import Any

from .ir import KernelIR, Op, Region, Value
from .trace import new_value


def clone(ir: KernelIR) -> KernelIR:
    """A copy of a kernel. Passes that change the copy leave `ir` unchanged."""
    values: dict[Value, Value] = {}
    params = tuple([_value(v, values) for v in ir.params])
    return KernelIR(
        ir.name,
        params,
        ir.inputs,
        _region(ir.body, values),
        ir.grid,
        ir.cluster,
        ir.threads,
        ir.thread_name,
        ir.approx_math,
        ir.overlaps,
        ir.loc,
        ir.max_registers,
    )


def clone_op(op: Op, values: dict[Value, Value]) -> Op:
    """A copy of an op and its regions, with the same values from outside.

    `values` receives the copy of each value inside.
    """
    copies = _Copies()
    made = _op(op, copies)
    values.update(copies)
    return made


class _Copies(dict[Value, Value]):
    """Copies of values. A value without a copy stands for itself."""

    def __missing__(self, key: Value) -> Value:
        return key


def _value(old: Value, values: dict[Value, Value], op: Op | None = None) -> Value:
    made = new_value(old.type, op, old.name)
    made.facts = old.facts
    values[old] = made
    return made


def _region(old: Region, values: dict[Value, Value]) -> Region:
    args = tuple([_value(v, values) for v in old.args])
    return Region(args, [_op(op, values) for op in old.ops])


def _op(old: Op, values: dict[Value, Value]) -> Op:
    cls = type(old)
    made = cls.__new__(cls)
    fields: dict[str, Any] = made.__dict__
    fields.update(old.__dict__)
    for key, many in cls.value_fields:
        value = fields[key]
        if many:
            fields[key] = tuple([values[v] for v in value])
        elif value is not None:
            fields[key] = values[value]
    for key, many in cls.region_fields:
        inner = fields[key]
        fields[key] = tuple([_region(r, values) for r in inner]) if many else _region(inner, values)
    fields["results"] = tuple([_value(v, values, made) for v in old.results])
    return made
