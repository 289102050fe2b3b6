"""Layouts and transforms by their names, of any rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadArgument, BadArgumentType
from kernel_dsl.errors_hopper import WgmmaShape
from kernel_dsl.layouts import NAMED, name_of
from tests.language.test_convert import random_layout
from tests.ops.harness import INTERPRET, random

Layout = kd.Layout
Spec = kd.ShapeDtypeStruct


@pytest.mark.parametrize(
    "text",
    [
        "Layout.WGMMA",
        "Layout.WGMMA_ROW",
        "Layout.WGMMA_8BIT.reduce(1)",
        "Layout.MMA_ACC.reduce((0, 1))",
        "Layout.WGMMA.of((64, 128))",
        "Layout.WGMMA.of((3, 2, 64, 8))",
        "Layout.WGMMA_COL.of((2, 64))",
        "Layout.WGMMA_ROW.of((64,)).expand((1,))",
        "Layout.WGMMA_8BIT.of((64, 32))",
        "Layout.WGMMA_TRANSPOSED.of((8, 64))",
        "Layout.WGMMA_TF32.of((128, 8))",
        "Layout.MMA_ACC.of((32, 8))",
        "Layout.MMA_ACC.reduce(1).of((32,))",
        "Layout.WG_STRIDED((4, 64), 2)",
        "Layout.WG_STRIDED((256,))",
        "Layout.WG_SPLAT((3, 5))",
        "Layout(1, ((0, 12, 2),), (None, None, None, None, None), ((0, 1), None))",
    ],
)
def test_a_layout_is_printed_as_it_is_written(text: str) -> None:
    assert repr(eval(text)) == text


@pytest.mark.parametrize("seed", range(12))
def test_what_is_printed_makes_the_layout(seed: int) -> None:
    """Of random layouts, and of all rules' ones."""
    made = [random_layout((6, 16), np.random.default_rng(seed))]
    made += [
        rule.of((64, 8 * (seed + 1)) if len(rule.reduced) == 0 else (64,))
        for rule in NAMED.values()
        if _fits(rule, seed)
    ]
    for layout in made:
        assert eval(repr(layout)) == layout


def _fits(rule: Any, seed: int) -> bool:
    try:
        rule.of((64, 8 * (seed + 1)) if len(rule.reduced) == 0 else (64,))
    except WgmmaShape:
        return False
    return True


def test_the_name_is_that_of_the_shape() -> None:
    layout = Layout.WG_STRIDED((3, 100), 4)
    assert name_of(layout, (3, 100)) == "Layout.WG_STRIDED((3, 100), 4)"
    assert name_of(Layout.WGMMA.of((64, 64)), (63, 64)) == ""


def test_print_layout_names_layouts_and_transforms(capsys: pytest.CaptureFixture[str]) -> None:
    tiles = [kd.TilingTransform((2, 8, 64)), kd.SwizzleTransform(128)]

    def body(x: Any, out: Any, s: Any) -> None:
        v = kd.load(x, layout=Layout.WGMMA)
        kd.print_layout("v: {}", v)
        kd.print_layout("top: {}", v.max(axis=2, keepdims=True))
        kd.print_layout("s: {}", s)
        kd.print_layout("x: {}", x)
        s[...] = v.astype(kd.float16)
        out[...] = s[...].astype(kd.float32) - v.max(axis=2, keepdims=True)

    kernel = kd.kernel(
        body,
        out_type=Spec((2, 64, 64), kd.float32),
        scratch_types=[kd.SMEM((2, 64, 64), kd.float16, transforms=tiles)],
        interpret=INTERPRET,
    )
    x = random((2, 64, 64), "float32")
    wanted = x.astype(np.float16).astype(np.float32) - x.max(axis=2, keepdims=True)
    np.testing.assert_array_equal(kernel(x), wanted)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"v: Layout.WGMMA.of((2, 64, 64)) {Layout.WGMMA.of((2, 64, 64))}"
    assert lines[1].startswith("top: Layout.WGMMA_ROW.of((2, 64)).expand((2,)) layout<3 |")
    assert lines[2] == "s: <Ref s smem float16[2,64,64]>, TilingTransform((2, 8, 64)), SwizzleTransform(128)"
    assert lines[3] == "x: <Ref x gmem float32[2,64,64]>"


@pytest.mark.parametrize("layout", [Layout.WGMMA, Layout.MMA_ACC, Layout.WGMMA_TRANSPOSED], ids=repr)
def test_outer_dimensions_lie_in_registers(layout: Any) -> None:
    inner, outer = layout.of((64, 64)), layout.of((2, 3, 64, 64))
    outer.check()
    assert outer.registers == 6 * inner.registers and outer.padded == (2, 3, 64, 64)
    assert outer.reduce((0, 1), keepdims=False) == inner


def test_reduce_takes_an_axis_or_axes() -> None:
    layout = Layout.WGMMA.of((64, 128))
    assert layout.reduce(1) == layout.reduce((1,)) == layout.reduce(-1) == layout.reduce([1])
    assert layout.reduce(1, keepdims=False) == Layout.WGMMA_ROW.of((64,))
    assert Layout.WGMMA.reduce(-2) == Layout.WGMMA_COL


@pytest.mark.parametrize("of", [Layout.WGMMA, Layout.WGMMA.of((64, 64))], ids=repr)
def test_reduce_refuses_what_is_no_axis(of: Any) -> None:
    for axes in (2, -3, (0, 2)):
        with pytest.raises(BadArgument, match="give axes from -2 to 1"):
            of.reduce(axes)
    for axes in (1.5, "rows", ("rows",), None):
        with pytest.raises(BadArgumentType):
            of.reduce(axes)


def test_an_empty_tiling_is_refused() -> None:
    with pytest.raises(BadArgument, match="give positive ints"):
        kd.TilingTransform(())
