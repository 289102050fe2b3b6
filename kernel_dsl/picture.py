"""A picture of a layout as SVG: which warp, lane and register of a warpgroup hold each element of a value."""

from __future__ import annotations

import itertools
from html import escape

from .layout import LANE_BITS, WARP_BITS, Layout

CELL = (64, 26)  # least width, and height, of an element, in SVG units
MARGIN = 28
LETTER = 7  # the width of one
COLOURS = ("#cfe3ff", "#d5f2d0", "#ffe2c4", "#eed6f5")  # one a warp
THREADS = 1 << LANE_BITS + WARP_BITS

Holder = tuple[int, int]  # (thread number within the warpgroup, register)


def holders(layout: Layout, shape: tuple[int, ...]) -> dict[tuple[int, ...], list[Holder]]:
    """The holders of each element, lowest thread first: several if the layout replicates."""
    found: dict[tuple[int, ...], list[Holder]] = {c: [] for c in itertools.product(*map(range, shape))}
    for thread in range(THREADS):
        base = layout.thread_coords(thread)
        for register, share in enumerate(layout.register_coords):
            place = tuple(a + b for a, b in zip(base, share, strict=True))
            if place in found:
                found[place].append((thread, register))
    return found


def label(held: list[Holder]) -> str:
    """`warp.lane:register` of the first holder, and the number of holders if there are several."""
    thread, register = held[0]
    text = f"{thread >> LANE_BITS}.{thread % (1 << LANE_BITS)}:{register}"
    return text if len(held) == 1 else f"{text} x{len(held)}"


def to_svg(layout: Layout, shape: tuple[int, ...]) -> str:
    """The SVG text: a table of elements for each index of the dimensions before the last two.

    A cell shows `warp.lane:register` of the first holder, and `x4` if four lanes hold the element; colours are warps.
    """
    held = holders(layout, shape)
    rows, columns = (1, 1, *shape)[-2:]
    outer = list(itertools.product(*map(range, shape[:-2])))
    title = f"{layout} of {shape}: warp.lane:register"
    cell = max(CELL[0], LETTER * (1 + max((len(label(h)) for h in held.values()), default=0)))
    width = 2 * MARGIN + max(columns * cell, len(title) * LETTER)
    height = MARGIN + len(outer) * (rows * CELL[1] + MARGIN) + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'style="background: white" font-family="monospace" font-size="11">',
        f'<text x="{MARGIN}" y="16">{escape(title)}</text>',
    ]
    for number, lead in enumerate(outer):
        top = MARGIN + number * (rows * CELL[1] + MARGIN)
        if lead:
            lines.append(f'<text x="{MARGIN}" y="{top + 12}">[{", ".join(map(str, lead))}, :, :]</text>')
            top += 16
        for row, column in itertools.product(range(rows), range(columns)):
            place = (*lead, row, column)[2 - len(shape) :] if len(shape) < 2 else (*lead, row, column)
            lines += _cell(held[place if shape else ()], MARGIN + column * cell, top + row * CELL[1], cell)
    return "\n".join([*lines, "</svg>", ""])


def _cell(held: list[Holder], x: int, y: int, width: int) -> list[str]:
    colour = COLOURS[held[0][0] >> LANE_BITS]
    return [
        f'<rect x="{x}" y="{y}" width="{width}" height="{CELL[1]}" fill="{colour}" stroke="#888"/>',
        f'<text x="{x + width // 2}" y="{y + 17}" text-anchor="middle">{label(held)}</text>',
    ]
