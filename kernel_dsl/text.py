"""The IR's one text form. One grammar for every op: `results = name(operands) {attributes} regions : types @ place`.

`parse(show(ir))` gives the kernel again, and `show` of that gives the same text.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np

from .accumulator import AccType
from .attributes import ATTRIBUTE_TYPES
from .dtypes import BY_NAME, DType
from .extents import Unread
from .ir import ArrayType, Axis, BarrierType, KernelIR, Op, RefType, Region, Value, known_of
from .layout import Layout, parse_layout
from .source import UNKNOWN, Loc

# --- printing ------------------------------------------------------------------------------------


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


# --- parsing -------------------------------------------------------------------------------------

# compiled at first use: `re` takes as long for it as the import of three modules
_TOKEN = r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<value>%\d+)|(?P<layoutname>\#\d+)|(?P<layout>layout<[^>]*>)
    |(?P<number>-?(?:inf|\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?![A-Za-z_]))|(?P<word>[A-Za-z_][A-Za-z0-9_.]*)
    |(?P<punct>->|[()\[\]{}<>,:=@]))"""


class TextError(ValueError):
    """Text that is no kernel, with the offset of the first wrong token."""


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str, int]] = []
        position = 0
        text = text.rstrip()
        token = re.compile(_TOKEN, re.VERBOSE)
        while position < len(text):
            found = token.match(text, position)
            if found is None or found.lastgroup is None:
                raise TextError(f"offset {position}: {text[position : position + 30]!r} is no token")
            self.tokens.append((found.lastgroup, found[found.lastgroup], found.start()))
            position = found.end()
        self.at = 0
        self.values: dict[str, Value] = {}
        self.layouts: dict[str, Layout] = {}

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def kind(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def next(self) -> str:
        if self.at >= len(self.tokens):
            raise TextError("the text ends too early")
        self.at += 1
        return self.tokens[self.at - 1][1]

    def expect(self, word: str) -> None:
        offset = self.tokens[self.at][2] if self.at < len(self.tokens) else -1
        got = self.next()
        if got != word:
            raise TextError(f"offset {offset}: {word!r} was due, and {got!r} came")

    def accept(self, word: str) -> bool:
        if self.peek() == word:
            self.at += 1
            return True
        return False

    def list(self, item: Any, end: str) -> list[Any]:
        out: list[Any] = []
        while not self.accept(end):
            if out:
                self.expect(",")
            out.append(item())
        return out

    def attribute(self) -> Any:
        kind, word = self.kind(), self.next()
        if kind == "string":
            return json.loads(word)
        if kind == "number":
            return int(word) if word.lstrip("-").isdigit() else float(word)
        if kind == "layoutname":
            return self.layouts[word]
        if word == "(":
            return tuple(self.list(self.attribute, ")"))
        constants = {"true": True, "false": False, "none": None, "nan": math.nan, "inf": math.inf}
        if word in constants:
            return constants[word]
        if word == "dense":
            return self._dense()
        if word in BY_NAME:
            return BY_NAME[word]
        return self._named(word)

    def _dense(self) -> np.ndarray[Any, Any]:
        self.expect("<")
        dtype = BY_NAME[self.next()]
        self.expect("[")
        shape = self.list(lambda: int(self.next()), "]")
        data = bytes.fromhex(json.loads(self.next()))
        self.expect(">")
        return np.frombuffer(data, dtype.numpy).reshape(shape)

    def _named(self, word: str) -> Any:
        name, dot, member = word.partition(".")
        cls = _types().get(name)
        if cls is None:
            raise TextError(f"{word!r} is no attribute")
        if dot:
            return getattr(cls, member)
        self.expect("(")
        return cls(*self.list(self.attribute, ")"))

    def type(self) -> Any:
        if self.peek() not in BY_NAME:
            return self.attribute()
        dtype = BY_NAME[self.next()]
        self.expect("[")
        shape = tuple(self.list(lambda: int(self.next()), "]"))
        layout = self.layouts[self.next()] if shape else Layout(0, ())
        return ArrayType(shape, dtype, layout)

    def define(self, op: Op | None = None) -> Value:
        from .trace import new_value

        name = self.next()
        self.expect(":")
        value = self.values[name] = new_value(self.type(), op)
        return value

    def place(self) -> Loc:
        if not self.accept("@"):
            return UNKNOWN
        file = json.loads(self.next())
        self.expect(":")
        return Loc(file, int(self.next()))

    def region(self) -> Region:
        self.expect("(")
        args = tuple(self.list(self.define, ")"))
        self.expect("->")
        region = Region(args)
        while self.peek() not in ("(", "}", "end"):
            region.ops.append(self.op())
        return region

    def op(self) -> Op:
        names: list[str] = []
        if self.kind() == "value":
            names = [self.next()]
            while self.accept(","):
                names.append(self.next())
            self.expect("=")
        word = self.next()
        cls = Op.registry.get(word)
        if cls is None:
            raise TextError(f"{word!r} is no op")
        fields: dict[str, Any] = {}
        self.expect("(")
        for index, (key, many) in enumerate(cls.value_fields):
            if index:
                self.expect(",")
            if many:
                self.expect("[")
                fields[key] = tuple(self.list(lambda: self.values[self.next()], "]"))
            else:
                name = self.next()
                fields[key] = None if name == "_" else self.values[name]
        self.expect(")")
        self._attributes(cls, fields)
        self._regions(cls, fields)
        op = cls(**fields)
        if names:
            self.expect(":")
            op.results = tuple(self._results(op, names))
        op.loc = self.place()
        return op

    def _attributes(self, cls: type[Op], fields: dict[str, Any]) -> None:
        if len(cls.options) == len(cls.attr_fields) and self.peek() != "{":
            return
        self.expect("{")
        some = False
        for key in cls.attr_fields:
            ahead = self.at + some
            if key in cls.options and (ahead >= len(self.tokens) or self.tokens[ahead][1] != key):
                continue
            if some:
                self.expect(",")
            some = True
            self.expect(key)
            self.expect("=")
            fields[key] = self.attribute()
        self.expect("}")

    def _regions(self, cls: type[Op], fields: dict[str, Any]) -> None:
        if not cls.region_fields:
            return
        self.expect("<")
        count = int(self.next())
        self.expect(">")
        self.expect("{")
        made = [self.region() for _ in range(count)]
        self.expect("}")
        for key, many in cls.region_fields:
            fields[key] = tuple(made) if many else made.pop(0)

    def _results(self, op: Op, names: list[str]) -> list[Value]:
        from .trace import new_value

        out: list[Value] = []
        for index, name in enumerate(names):
            if index:
                self.expect(",")
            value = new_value(self.type(), op)
            self.values[name] = value
            out.append(value)
        if len(out) == 1 and isinstance(out[0].type, ArrayType) and out[0].type.dtype.is_integer:
            out[0].facts = known_of(op, out[0].type.dtype, op.values())
        return out


def _types() -> dict[str, type[Any]]:
    return {**ATTRIBUTE_TYPES, "RefType": RefType, "BarrierType": BarrierType, "AccType": AccType}


def parse(text: str) -> KernelIR:
    """The kernel that `show` printed. Raises `TextError`."""
    p = _Parser(text)
    while p.kind() == "layoutname":
        name = p.next()
        p.expect("=")
        p.layouts[name] = parse_layout(p.next())
    p.expect("kernel")
    name = json.loads(p.next())
    p.expect("{")
    header: dict[str, Any] = {}
    while not p.accept("}"):
        if header:
            p.expect(",")
        key = p.next()
        p.expect("=")
        header[key] = p.attribute()
    loc = p.place()
    p.expect("params")
    params: list[Value] = []
    while p.peek() != "body":
        params.append(p.define())
    p.expect("body")
    body = p.region()
    p.expect("end")
    grid: tuple[Axis, ...] = header.pop("grid")
    return KernelIR(name, tuple(params), header.pop("inputs"), body, grid, loc=loc, **header)
