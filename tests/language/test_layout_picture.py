"""Pictures of layouts, and the named layouts for whole warpgroups."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.picture import holders
from tests.ops.harness import INTERPRET, random

SVG = "{http://www.w3.org/2000/svg}"


def cells(text: str) -> list[str]:
    """The labels of a picture's cells, in order."""
    root = ElementTree.fromstring(text)
    return [t.text or "" for t in root.findall(f"{SVG}text") if t.get("text-anchor") == "middle"]


def test_strided() -> None:
    layout = kd.Layout.WG_STRIDED((4, 64), 2)
    shown = cells(layout.to_svg((4, 64)))
    assert shown == [f"{row}.{column // 2}:{column % 2}" for row in range(4) for column in range(64)]


def test_wgmma_fragments() -> None:
    """PTX ISA, wgmma fragments: row 8 is register 2 of lane 0, column 8 is register 4."""
    layout = kd.Layout.WGMMA.of((64, 16))
    shown = np.array(cells(kd.Layout.WGMMA.to_svg((64, 16)))).reshape(64, 16)
    first = [layout.register_of[c] for c in ((0, 0), (0, 1), (8, 0), (0, 8))]
    assert [shown[0, 0], shown[0, 1], shown[8, 0], shown[0, 8]] == [f"0.0:{r}" for r in first]
    assert shown[1, 2] == f"0.5:{first[0]}" and shown[16, 0] == f"1.0:{first[0]}" and shown[63, 15].startswith("3.31:")


def test_replicas_are_counted_and_ranks_shown() -> None:
    assert cells(kd.Layout.WG_SPLAT((3,)).to_svg((3,))) == ["0.0:0 x128", "0.0:1 x128", "0.0:2 x128"]
    text = kd.Layout.WG_STRIDED((2, 3, 4)).to_svg((2, 3, 4))
    assert len(cells(text)) == 24 and "[1, :, :]" in text
    assert text == kd.Layout.WG_STRIDED((2, 3, 4)).to_svg((2, 3, 4))
    with pytest.raises(ValueError, match="rank 1"):
        kd.Layout.WG_SPLAT((3,)).to_svg((3, 3))


@pytest.mark.parametrize("shape", [(1,), (7,), (100,), (3, 5), (64, 96), (2, 3, 40)])
def test_every_element_has_a_holder(shape: tuple[int, ...]) -> None:
    x = random(shape, "float32")
    for layout in (kd.Layout.WG_STRIDED(shape), kd.Layout.WG_STRIDED(shape, 4), kd.Layout.WG_SPLAT(shape)):
        layout.check()
        if layout.registers * 128 < 20_000:
            assert all(holders(layout, shape).values())

        def body(x, out, layout=layout) -> None:
            out[...] = kd.load(x, layout=layout) * 2

        if layout.registers <= 128:
            spec = kd.ShapeDtypeStruct(shape, kd.float32)
            np.testing.assert_array_equal(kd.kernel(body, out_type=spec, interpret=INTERPRET)(x), x * 2)


@pytest.mark.parametrize("shape", [(16, 8), (64, 8), (128, 16)])
def test_pages_of_any_width_show_all_of_it(shape: tuple[int, int]) -> None:
    """The picture scales, on any ground, and holds its title and its labels, of 7 units a letter at most."""
    root = ElementTree.fromstring(kd.Layout.MMA_ACC.to_svg(shape))
    width, height = int(root.attrib["width"]), int(root.attrib["height"])
    assert root.attrib["viewBox"] == f"0 0 {width} {height}" and "background" in root.attrib["style"]
    title, *labels = root.findall(f"{SVG}text")
    cell = int(root.findall(f"{SVG}rect")[0].attrib["width"])
    assert int(title.attrib["x"]) + 7 * len(title.text or "") <= width
    assert max(7 * len(label.text or "") for label in labels) <= cell
