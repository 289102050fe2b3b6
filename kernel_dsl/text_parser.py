"""The IR's text form, read: the kernel that `text.show` printed."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np

from .accumulator import AccType
from .attributes import ATTRIBUTE_TYPES
from .dtypes import BY_NAME
from .ir import ArrayType, Axis, BarrierType, KernelIR, Op, RefType, Region, Value, known_of
from .layout import Layout, parse_layout
from .source import UNKNOWN, Loc

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
