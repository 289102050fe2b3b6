"""`parse(show(ir)) == ir`: the text form holds all that a kernel is."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import kernel_dsl as kd
from kernel_dsl.extents import DimExtent
from kernel_dsl.ir import KernelIR, Op, Region, Value
from kernel_dsl.kernel import Kernel
from kernel_dsl.text import show
from kernel_dsl.text_parser import TextError, parse
from tests.conftest import ROOT
from tests.fuzz.generate import programs
from tests.kernels import CASES, lowered


def same(a: KernelIR, b: KernelIR) -> None:
    """Equal in every declared field, with values numbered in order of definition."""
    numbers: dict[Value, int] = {}

    def meet(x: Value, y: Value) -> None:
        assert x.type == y.type or str(x.type) == str(y.type)
        numbers[x] = numbers[y] = len(numbers)

    def ops(x: Op, y: Op) -> None:
        assert type(x) is type(y)
        assert [numbers[v] for v in x.values()] == [numbers[v] for v in y.values()], x.op_name
        for key in x.attr_fields:
            left, right = getattr(x, key), getattr(y, key)
            equal = np.array_equal(left, right) if isinstance(left, np.ndarray) else repr(left) == repr(right)
            equal = equal or (
                isinstance(left, DimExtent) and left == right
            )  # its name is for messages, no part of the text
            assert equal, f"{x.op_name}.{key}: {left!r} became {right!r}"
        assert (x.loc.file, x.loc.line) == (y.loc.file, y.loc.line)
        for r, s in zip(x.region_list(), y.region_list(), strict=True):
            regions(r, s)
        for r, s in zip(x.results, y.results, strict=True):
            meet(r, s)

    def regions(x: Region, y: Region) -> None:
        for r, s in zip(x.args, y.args, strict=True):
            meet(r, s)
        for o, p in zip(x.ops, y.ops, strict=True):
            ops(o, p)

    header = ("name", "inputs", "grid", "cluster", "threads", "thread_name", "approx_math")
    assert all(getattr(a, key) == getattr(b, key) for key in header)
    for x, y in zip(a.params, b.params, strict=True):
        meet(x, y)
    regions(a.body, b.body)


def check(ir: KernelIR) -> None:
    text = show(ir)
    again = parse(text)
    assert show(again) == text
    same(ir, again)
    bare = show(ir, locations=False)
    assert show(parse(bare), locations=False) == bare


@pytest.mark.parametrize("name", CASES)
def test_suite(name: str) -> None:
    target = CASES[name].targets[-1]
    check(lowered(name, target).ir)


@given(program=programs())
def test_generated(program: Any) -> None:
    check(program.lower().ir)


def _examples() -> list[Path]:
    return sorted((ROOT / "examples").glob("[0-9]*.py"))


@pytest.mark.parametrize("path", _examples(), ids=lambda p: p.stem)
@pytest.mark.sampled(32)
def test_examples(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel that an example's `main` traces."""
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    seen: list[KernelIR] = []
    trace = Kernel._trace

    def watch(self: Kernel, *args: Any, **keywords: Any) -> Any:
        stages = trace(self, *args, **keywords)
        seen.append(stages.ir)
        return stages

    monkeypatch.setattr(Kernel, "_trace", watch)
    monkeypatch.setattr("sys.argv", [str(path)])
    from kernel_dsl.runtime.devices import interpreter_device

    for name, cls in vars(interpreter_device).items():
        if isinstance(cls, type) and "launch" in vars(cls) and cls.__module__ == interpreter_device.__name__:
            monkeypatch.setattr(cls, "launch", lambda *_, **__: None)  # the kernels are traced, and need not run
            assert name
    monkeypatch.setitem(sys.modules, spec.name, module)  # where dataclasses look
    spec.loader.exec_module(module)
    from kernel_dsl.runtime.custom.nvrtc import NvrtcUnavailableError

    # nor are their results right then: they hold what their memory held
    with contextlib.suppress(AssertionError, NvrtcUnavailableError), np.errstate(all="ignore"):
        module.main()
    if not seen:
        pytest.skip("it traces no kernel")
    for ir in seen:
        check(ir)


@pytest.mark.parametrize(
    "text", ["", "kernel", 'kernel "k" {}', "garbage \x00", 'kernel "k" {inputs = 0} params body () -> %0 = nothing()']
)
def test_text_that_is_no_kernel(text: str) -> None:
    with pytest.raises((TextError, ValueError)):
        parse(text)


def test_special_numbers() -> None:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((4,), kd.float64))
    def kernel(out: Any) -> None:
        for number in (float("inf"), -float("inf"), float("nan"), -0.0, 5e-324, 1.7976931348623157e308):
            out[...] = kd.full((4,), number, kd.float64)

    check(kernel.lower().ir)


def test_awkward_names() -> None:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((4,), kd.int32), name='a "name" with\n\\ and ✓')
    def kernel(out: Any) -> None:
        out[...] = 1

    check(kernel.lower().ir)
    kernel.lower().compile()
