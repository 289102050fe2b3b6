"""Values that no function asks for, each made anew for each try: some can be used once."""

from __future__ import annotations

import decimal
import enum
import fractions
import math
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import kernel_dsl as kd


class Hostile(Exception):
    """What hostile objects raise."""


def _raising(*names: str, base: type[Any] = object, **more: Any) -> type[Any]:
    """A class whose special methods of these names raise; names without underscores become such properties."""

    def fail(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise Hostile("on purpose")

    body: dict[str, Any] = {n: fail if n.startswith("__") else property(fail) for n in names}
    return type("Odd", (base,), {**body, **more})


class Color(enum.IntEnum):
    RED = 1


class CallRaises:
    """A function of the user's that fails, whose error is the user's own."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise Hostile("on purpose")


class Plain:
    pass


class Sized:
    shape = (8, 16)
    dtype = np.dtype(np.float32)


def _cycle_list() -> Any:
    made: list[Any] = [1]
    made.append(made)
    return made


def _cycle_dict() -> Any:
    made: dict[str, Any] = {}
    made["a"] = made
    return made


def _deep() -> Any:
    made: Any = 1
    for _ in range(3000):
        made = [made]
    return made


def _generator() -> Any:
    yield 1


def _spent() -> Any:
    made = _generator()
    list(made)
    return made


async def _coroutine_function(*args: Any) -> None:
    return None


def _generator_function(*args: Any) -> Any:
    yield args


def _masked() -> Any:
    return np.ma.masked_array(np.ones((8, 16), np.float32), mask=np.eye(8, 16, dtype=bool))


_ARRAYS: dict[str, Callable[[], Any]] = {
    "np.array(None, object)": lambda: np.array([None, 1], object),
    "np.array(3)": lambda: np.array(3),
    "np.array(2.5)": lambda: np.array(2.5),
    "structured array": lambda: np.zeros(3, [("a", "i4"), ("b", "f4")]),
    "masked array": _masked,
    "np.ones((8, 16))": lambda: np.ones((8, 16)),
    "np.zeros((0, 4))": lambda: np.zeros((0, 4), np.float32),
    "np.array('a')": lambda: np.array(["a", "b"]),
    "np.array(datetime64)": lambda: np.array(["2026-01-01"], "M8[D]"),
    "np.arange(4)": lambda: np.arange(4),
    "np.ones((2, 3, 4), float32)": lambda: np.ones((2, 3, 4), np.float32),
    "read-only array": lambda: np.broadcast_to(np.float32(1), (8, 16)),
    "np.matrix": lambda: np.ones((8, 16), np.float32).view(np.matrix),
    "np.int64(3)": lambda: np.int64(3),
    "np.float64(nan)": lambda: np.float64("nan"),
    "np.bool_(True)": lambda: np.bool_(True),
    "np.str_('a')": lambda: np.str_("a"),
    "np.void": lambda: np.zeros(1, [("a", "i4")])[0],
    "np.float32": lambda: np.float32,
    "np.dtype('f4')": lambda: np.dtype("f4"),
    "np.dtype(struct)": lambda: np.dtype([("a", "i4")]),
    "np.add": lambda: np.add,
}

_NUMBERS: tuple[Any, ...] = (
    True, False, 0, 1, -1, 2, 7, 2**31, 2**63, 2**64, 10**400, -(10**400), 10**9, 0.0, -0.0, 1.7, -2.5, 1e308, 1e-320,
    math.nan, math.inf, -math.inf, 1j, complex(math.nan, 0), decimal.Decimal("1.5"), decimal.Decimal("NaN"),
    fractions.Fraction(1, 3), Color.RED,
)  # fmt: skip
_TEXTS: tuple[Any, ...] = (
    "", "x", "0", "no", "auto", "i", "float32", "floaty", "sm_90a", "a\0b", "é☃𝔘", "{}", "{0!r:>{width}}", "%s", "$0 {", "../x", "x\ny",
    "x" * 20000, b"", b"ab", b"\x01\x02", bytearray(b"ab"),
)  # fmt: skip
_NESTS: tuple[Any, ...] = (
    (), [], {}, set(), frozenset({1}), (1,), (8, 16), (1, 2, 3, 4, 5), [None], (None, None), ((1, 2), (3, 4)), {"a": 1}, {1: 2},
    {None: 1}, (2**40, 2**40), (-1, -1), (0,), (1.5, 2), ("a", "b"), (True, False), (1, "a"), [[]], ("i", "i"),
)  # fmt: skip
_THINGS: dict[str, Callable[[], Any]] = {
    "object()": object,
    "Plain()": Plain,
    "Sized()": Sized,
    "a class": lambda: Plain,
    "int": lambda: int,
    "type": lambda: type,
    "a module": lambda: math,
    "a namespace": lambda: types.SimpleNamespace(shape=(2,), dtype="f4"),
    "Ellipsis": lambda: ...,
    "NotImplemented": lambda: NotImplemented,
    "slice(None)": lambda: slice(None),
    "slice('a')": lambda: slice("a", 1.5, None),
    "slice(0, 10**400)": lambda: slice(0, 10**400, 10**400),
    "memoryview": lambda: memoryview(b"abcd"),
    "range(3)": lambda: range(3),
    "range(10**9)": lambda: range(10**9),
    "iter([1])": lambda: iter([1]),
    "map": lambda: map(int, "12"),
    "a generator": _generator,
    "a spent generator": _spent,
    "a generator function": lambda: _generator_function,
    "an async function": lambda: _coroutine_function,
    "a list in itself": _cycle_list,
    "a dict in itself": _cycle_dict,
    "3000 lists": _deep,
    "an exception": lambda: ValueError("x"),
    "print": lambda: print,
    "len": lambda: len,
    "math.sin": lambda: math.sin,
    "lambda: None": lambda: lambda: None,
    "lambda *a: None": lambda: lambda *a: None,
    "lambda a: a": lambda: lambda a: a,
    "lambda *a: a": lambda: lambda *a: a,
    "lambda *a: 1": lambda: lambda *a: 1,
    "lambda *a: 'x'": lambda: lambda *a: "x",
    "lambda *a: a[-1]": lambda: lambda *a: a[-1] if a else None,
    "lambda of 9": lambda: lambda a, b, c, d, e, f, g, h, i: a,
    "lambda *, k": lambda: lambda *, k: k,
    "a method": lambda: [].append,
    "property": property,
    "staticmethod": lambda: staticmethod(len),
    "kd.float32": lambda: kd.float32,
    "kd.int32": lambda: kd.int32,
    "kd.complex64": lambda: kd.complex64,
    "kd.float8_e5m2": lambda: kd.float8_e5m2,
    "kd.SMEM": lambda: kd.SMEM,
    "kd.SMEM(...)": lambda: kd.SMEM((8, 16), kd.float32),
    "kd.GMEM": lambda: kd.GMEM,
    "kd.ACC": lambda: kd.ACC,
    "kd.OOBFillMode.NANS": lambda: kd.OOBFillMode.NANS,
    "kd.SemaphoreType": lambda: kd.SemaphoreType.REGULAR,
    "kd.Layout.WGMMA": lambda: kd.Layout.WGMMA,
    "kd.Layout.WG_SPLAT": lambda: kd.Layout.WG_SPLAT,
    "kd.Layout": lambda: kd.Layout(1, ((0, 4, 1),)),
    "kd.Barrier()": kd.Barrier,
    "kd.BlockSpec()": kd.BlockSpec,
    "kd.CompilerParams()": kd.CompilerParams,
    "kd.InterpretParams()": kd.InterpretParams,
    "kd.ShapeDtypeStruct": lambda: kd.ShapeDtypeStruct((8, 16), kd.float32),
    "kd.Variable": lambda: kd.Variable("n", 1, 8),
    "kd.ds(0, 4)": lambda: kd.ds(0, 4),
    "kd.exp": lambda: kd.exp,
    "kd": lambda: kd,
    "kd.kernel(print)": lambda: kd.kernel(print),
    "kd.library.matmul": lambda: kd.library.matmul,
    "repr raises": _raising("__repr__", "__str__"),
    "eq raises": _raising("__eq__", "__ne__", "__hash__"),
    "bool raises": _raising("__bool__", "__len__"),
    "index raises": _raising("__index__", "__int__", "__float__"),
    "index lies": type("Odd", (), {"__index__": lambda self: "x"}),
    "len lies": type("Odd", (), {"__len__": lambda self: -1, "__getitem__": lambda self, i: i}),
    "iter raises": _raising("__iter__", "__next__"),
    "getitem raises": _raising("__getitem__", __len__=lambda self: 2),
    "shape raises": _raising("shape", "dtype", "ndim", "size", "strides", "stride"),
    "dtype raises": _raising("dtype", shape=(8, 16)),
    "dtype is None": type("Odd", (), {"shape": (8, 16), "dtype": None}),
    "shape is None": type("Odd", (), {"shape": None, "dtype": np.dtype("f4")}),
    "class raises": _raising("__class__".strip("_"), __class__=property(lambda self: 1 / 0)),
    "getattr raises": _raising("__getattr__"),
    "getattribute raises": _raising("__getattribute__"),
    "call raises": CallRaises,
    "array raises": _raising("__array__", "__array_interface__"),
    "interface lies": type(
        "Odd", (), {"__cuda_array_interface__": {"shape": "x"}, "__array_interface__": {"data": None}}
    ),
    "dlpack raises": _raising("__dlpack__", "__dlpack_device__"),
    "fspath raises": _raising("__fspath__"),
    "format raises": _raising("__format__"),
    "lt raises": _raising("__lt__", "__le__", "__gt__", "__ge__", "__add__", "__radd__", "__mul__", "__rmul__"),
    "int with a bad repr": lambda: _raising("__repr__", "__str__", base=int)(3),
    "int with a bad index": lambda: _raising(
        "__index__", "__int__", "__eq__", "__lt__", __hash__=int.__hash__, base=int
    )(3),
    "str with a bad eq": lambda: _raising("__eq__", "__hash__", "__str__", base=str)("float32"),
    "float with a bad float": lambda: _raising("__float__", "__repr__", base=float)(1.5),
    "tuple with a bad iter": lambda: _raising("__iter__", "__len__", base=tuple)((8, 16)),
    "dict with a bad iter": lambda: _raising("__iter__", "keys", "items", "__getitem__", base=dict)(a=1),
}


@dataclass(frozen=True)
class Value:
    """A value's name in reports, and how it is made."""

    label: str
    make: Callable[[], Any]


def _constant(value: Any) -> Value:
    label = repr(value)
    return Value(label if len(label) < 60 else f"{label[:20]}...({len(label)} characters)", lambda: value)


def hostile() -> list[Value]:
    """All of them, in a fixed order."""
    listed = [Value("None", lambda: None)]
    listed += [_constant(v) for v in _NUMBERS if not isinstance(v, int) or abs(v) < 10**100]
    listed += [
        Value("10**400", lambda: 10**400),
        Value("-10**400", lambda: -(10**400)),
        Value("10**5000", lambda: 10**5000),
    ]
    listed += [_constant(v) for v in (*_TEXTS, *_NESTS)]
    listed += [Value(k, v) for k, v in (*_ARRAYS.items(), *_THINGS.items())]
    return listed
