"""The IR's one text form. One grammar for every op: `results = name(operands) {attributes} regions : types @ place`.

`parse(show(ir))` gives the kernel again, and `show` of that gives the same text.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np

from .dtypes import DType
from .extents import Unread
from .ir import ArrayType, KernelIR, Op, Region, Value
from .layout import Layout


@functools.cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind))


def _float(x: float) -> str:
    if math.isfinite(x):
        return repr(x)
    return "nan" if math.isnan(x) else "inf" if x > 0 else "-inf"


_WRITERS: dict[type, Callable[[Any], str]] = {
    int: str,
    bool: {True: "true", False: "false"}.__getitem__,
    type(None): lambda _: "none",
    float: _float,
    str: json.dumps,
    DType: lambda x: x.name,
}


class _Printer:
    def __init__(self, locations: bool, words: bool) -> None:
        self.locations = locations
        self.words = words
        self.names: dict[Value, str] = {}
        self.layouts: dict[Layout, str] = {}
        self.lines: list[str] = []

    def name(self, value: Value) -> str:
        found = self.names.get(value)
        if found is None:
            found = self.names[value] = f"%{len(self.names)}"
        return found

    def layout(self, layout: Layout) -> str:
        found = self.layouts.get(layout)
        if found is None:
            found = self.layouts[layout] = f"#{len(self.layouts)}"
        return found

    def type(self, type: Any) -> str:
        if isinstance(type, ArrayType):
            if not type.shape:
                return f"{type.dtype.name}[]"
            return f"{type} {self.layout(type.layout)}"
        return self.attribute(type)

    def attribute(self, x: Any) -> str:
        kind = type(x)
        if kind is tuple:
            return "(" + ", ".join([self.attribute(i) for i in x]) + ")"
        write = _WRITERS.get(kind)
        if write is not None:
            return write(x)
        if kind is Layout:
            return self.layout(x)
        for base in (int, float, str):
            if isinstance(x, base):
                return _WRITERS[base](x)
        if isinstance(x, Enum):
            return f"{kind.__name__}.{x.name}"
        if isinstance(x, list):
            return self.attribute(tuple(x))
        if isinstance(x, np.ndarray):
            dims = ",".join(map(str, x.shape))
            return f'dense<{x.dtype.name}[{dims}] "{x.tobytes().hex()}">'
        if self.words and isinstance(x, Unread):
            return repr(x)
        if dataclasses.is_dataclass(x):
            fields = ", ".join([self.attribute(getattr(x, name)) for name in _field_names(kind)])
            return f"{kind.__name__}({fields})"
        raise TypeError(f"{x!r} can't be an attribute")

    def op(self, op: Op, indent: str) -> None:
        fields = vars(op)
        parts: list[str] = []
        for key, many in op.value_fields:
            value = fields[key]
            if many:
                parts.append("[" + ", ".join([self.name(v) for v in value]) + "]")
            else:
                parts.append("_" if value is None else self.name(value))
        text = f"{op.op_name}({', '.join(parts)})"
        keys = op.attr_fields
        if op.options:
            keys = tuple([k for k in keys if k not in op.options or fields[k] != op.fields[k].default])
        if keys:
            text += " {" + ", ".join([f"{k} = {self.attribute(fields[k])}" for k in keys]) + "}"
        head = tail = ""
        if op.results:
            head = ", ".join([self.name(r) for r in op.results]) + " = "
            tail = " : " + ", ".join([self.type(r.type) for r in op.results])
        if self.locations and op.loc.line:
            tail += f" @ {json.dumps(op.loc.file)}:{op.loc.line}"
        inner = op.region_list()
        if not inner:
            self.lines.append(f"{indent}{head}{text}{tail}")
            return
        self.lines.append(f"{indent}{head}{text} <{len(inner)}> {{")
        for region in inner:
            self.region(region, indent)
        self.lines.append(f"{indent}}}{tail}")

    def region(self, region: Region, indent: str) -> None:
        args = ", ".join(f"{self.name(a)}: {self.type(a.type)}" for a in region.args)
        self.lines.append(f"{indent}({args}) ->")
        for op in region.ops:
            self.op(op, indent + "  ")


def show(ir: KernelIR, *, locations: bool = True, words: bool = False) -> str:
    """The kernel as text. Without locations it is the key of caches.

    With `words` extents that each launch gives are named as in messages, for readers: this text can't be parsed.
    """
    p = _Printer(locations, words)
    params = [f"  {p.name(v)}: {p.type(v.type)}" for v in ir.params]
    header = {
        "inputs": ir.inputs,
        "grid": ir.grid,
        "cluster": ir.cluster,
        "threads": ir.threads,
        "thread_name": ir.thread_name,
        "approx_math": ir.approx_math,
        "overlaps": ir.overlaps,
    }
    if ir.max_registers is not None:
        header["max_registers"] = ir.max_registers
    facts = ", ".join(f"{k} = {p.attribute(v)}" for k, v in header.items())
    place = f" @ {json.dumps(ir.loc.file)}:{ir.loc.line}" if locations and ir.loc.line else ""
    p.region(ir.body, "")
    layouts = [f"{name} = {layout}" for layout, name in p.layouts.items()]
    head = f"kernel {json.dumps(ir.name)} {{{facts}}}{place}"
    return "\n".join([*layouts, head, "params", *params, "body", *p.lines, "end", ""])
