"""Structures with arrays inside, as arguments of `kd.check`."""

from __future__ import annotations

import ctypes
import dataclasses
import random
from typing import Any, NamedTuple

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.check.structures import as_structure, placed

from .images import image

# struct Inner { const float *w; short s; }; struct Outer { float *y; int n; Inner in[2]; double d; };
BODY = """ .reg .f32 %q<4>; .reg .f64 %e<2>; .reg .b16 %k<2>; ld.param.u64 %d1, [p]; ld.param.u32 %r1, [p+8];
 ld.param.u64 %d2, [p+32]; ld.param.s16 %k1, [p+40]; ld.param.f64 %e1, [p+48];
 ld.global.f32 %q1, [%d2+4]; cvt.rn.f32.s16 %q2, %k1; cvt.rn.f32.f64 %q3, %e1; fma.rn.f32 %q1, %q1, %q2, %q3;
 cvt.rn.f32.s32 %q2, %r1; add.f32 %q1, %q1, %q2; st.global.f32 [%d1], %q1;"""
OUTER = image(".param .align 8 .b8 p[56]", BODY)


class Inner(ctypes.Structure):
    _fields_ = (("w", ctypes.py_object), ("s", ctypes.c_short))


class Outer(ctypes.Structure):
    _fields_ = (("y", ctypes.py_object), ("n", ctypes.c_int), ("i", Inner * 2), ("d", ctypes.c_double))


@dataclasses.dataclass
class Named:
    y: Any
    n: int
    inner: Any
    d: Any


class Pair(NamedTuple):
    y: Any
    n: int
    inner: Any
    d: Any


INNER_RECORD = np.dtype([("w", "O"), ("s", "i2")], align=True)
RECORD = np.dtype([("y", "O"), ("n", "i4"), ("i", INNER_RECORD, 2), ("d", "f8")], align=True)


def record(y: Any, w: Any) -> Any:
    found = np.zeros((), RECORD)
    inner = np.empty(2, INNER_RECORD)
    inner["w"][0], inner["w"][1], inner["s"] = None, w, 7
    boxed = np.empty((), object)
    boxed[()] = y
    found["y"], found["n"], found["i"], found["d"] = boxed, -3, inner, 0.5
    return found


def forms(y: Any, w: Any) -> list[Any]:
    inner = [(None, np.int16(7)), (w, np.int16(7))]
    d = np.float64(0.5)
    return [
        (y, -3, inner, d),
        {"y": y, "n": -3, "inner": inner, "d": d},
        Named(y, -3, inner, d),
        Pair(y, -3, inner, d),
        Outer(y, -3, (Inner * 2)(Inner(None, 7), Inner(w, 7)), 0.5),
        record(y, w),
        record(y, w)[()],
    ]


@pytest.mark.parametrize("form", range(7))
def test_forms(form: int) -> None:
    y, w = np.zeros(1, np.float32), np.array([1, 2], np.float32)
    report = kd.check(OUTER, forms(y, w)[form], grid=1, block=1)
    assert report.verdict == "none" and y[0] == 2 * 7 + 0.5 - 3
    assert [o is y for o in report.outputs] == [True, False] and report.outputs[1] is w


def test_hazards_name_the_field() -> None:
    y, w = np.zeros(1, np.float32), np.zeros(1, np.float32)
    for form, name in ((forms(y, w)[0], "p[2][1][0]"), (forms(y, w)[4], "p.i[1].w"), (forms(y, w)[1], "p.inner[1][0]")):
        (hazard,) = kd.check(OUTER, form, grid=1, block=1).hazards
        assert hazard.kind == "out_of_bounds" and f"'{name}'" in hazard.why


def test_a_sequence_shares_their_arrays() -> None:
    y, w = np.zeros(1, np.float32), np.ones(2, np.float32)
    first = kd.check.launch(OUTER, forms(y, w)[0], grid=1, block=1)
    second = kd.check.launch(OUTER, forms(w[1:], y.repeat(2))[1], grid=1, block=1)
    third = kd.check.launch(OUTER, forms(y, w)[2], grid=1, block=1)
    assert kd.check.sequence([first, second, third]).verdict == "none"
    assert w[1] == -2.5 and y[0] == -2.5 * 7 - 2.5


class Addresses(ctypes.Structure):
    _fields_ = (("y", ctypes.c_void_p),)


def test_errors() -> None:
    y = np.zeros(1, np.float32)
    same: list[Any] = []
    same.append(same)
    for wrong, says in (
        ((y, 3), r"structure of 16 bytes \(\[0\] at 0, \[1\] at 8\), and 56 are wanted"),
        ((), "structure of 0 bytes"),
        ((y, "x"), r"'x' at 'p\[1\]'"),
        ((y, 1j), "1j"),
        ((y, 1 << 40), r"np\.int64"),
        ((y, 3, [(y, 7), (y, 7)], 0.5), r"np\.float32\(0\.5\) or np\.float64\(0\.5\)"),
        (Addresses(y.ctypes.data), "py_object"),
        (same, "nested"),
        (y, "tuple"),
        (5, "tuple"),
    ):
        with pytest.raises(kd.Error, match=says):
            kd.check(OUTER, wrong, grid=1, block=1)
    with pytest.raises(kd.Error, match="give an array or a number"):
        kd.check(image(".param .u32 n", ""), (y,), grid=1, block=1)
    with pytest.raises(kd.Error, match=r"kd\.check alone"):
        kd.precompiled_cuda_kernel(OUTER, (y, 3, [(y, 7), (y, 7)], np.float64(1)), grid=1, block=1, interpret=True)


NUMBERS = {"b": "c_int8", "h": "c_int16", "i": "c_int32", "q": "c_int64", "f": "c_float", "d": "c_double"}


def _random(rng: random.Random, depth: int, arrays: list[Any]) -> tuple[Any, Any]:
    """The same random structure as a ctypes structure and as a tuple."""
    fields: list[Any] = []
    values: list[Any] = []
    given: list[Any] = []
    for n in range(rng.randint(1, 5)):
        if depth and rng.random() < 0.3:
            inner, nest = _random(rng, depth - 1, arrays)
            fields.append((f"f{n}", type(inner)))
            values.append(inner)
            given.append(nest)
        elif rng.random() < 0.3:
            fields.append((f"f{n}", ctypes.py_object))
            values.append(rng.choice(arrays))
            given.append(values[-1])
        else:
            kind = rng.choice("bhiqfd")
            fields.append((f"f{n}", getattr(ctypes, NUMBERS[kind])))
            values.append(rng.randint(-100, 100) if kind in "bhiq" else rng.randint(-9, 9) / 4)
            given.append(np.dtype(kind).type(values[-1]))
    return type("S", (ctypes.Structure,), {"_fields_": fields})(*values), tuple(given)


def test_layouts_are_those_of_c() -> None:
    rng = random.Random(5)
    arrays = [np.zeros(3, np.float32), np.zeros((2, 2), np.int8)]
    for _ in range(300):
        own, given = _random(rng, 3, arrays)
        want, found = (placed(x, ctypes.sizeof(own), "p") for x in map(as_structure, (own, given)) if x is not None)
        assert want.data == found.data
        assert [(at, what.address) for at, _, what in want.parts] == [(at, what.address) for at, _, what in found.parts]  # pyright: ignore
