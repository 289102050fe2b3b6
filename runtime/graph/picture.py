"""Pictures of a program's nodes and edges."""

from __future__ import annotations

from html import escape

from .build import GraphProgram
from .nodes import Node

_COLOURS = {"kernel": "#dbeafe", "copy": "#dcfce7", "fill": "#fef9c3"}
_WIDTH, _HEIGHT, _GAP_X, _GAP_Y = 190, 46, 24, 44


def _lines(node: Node) -> list[str]:
    lines = [f"{node.index}: {node.name}"]
    if node.grid is not None and node.block is not None:
        lines.append(f"grid {_dims(node.grid)} block {_dims(node.block)}")
    return lines


def _dims(dims: tuple[int, int, int]) -> str:
    return "x".join(map(str, dims))


def dot(program: GraphProgram) -> str:
    """The graph in Graphviz' language."""
    lines = ["digraph {", '  node [shape=box, style=filled, fontname="sans-serif"];']
    for node in program.nodes:
        label = "\\n".join(text.replace('"', '\\"') for text in _lines(node))
        lines.append(f'  n{node.index} [label="{label}", fillcolor="{_COLOURS[node.kind]}"];')
    for node in program.nodes:
        lines += [f"  n{dep} -> n{node.index};" for dep in node.dependencies]
    return "\n".join([*lines, "}"]) + "\n"


def svg(program: GraphProgram) -> str:
    """A picture in layers: each node is below all nodes that it waits for."""
    depth: list[int] = []
    row: list[int] = []
    filled: dict[int, int] = {}
    for node in program.nodes:
        level = 1 + max((depth[dep] for dep in node.dependencies), default=-1)
        depth.append(level)
        row.append(filled.get(level, 0))
        filled[level] = row[-1] + 1

    def corner(index: int) -> tuple[int, int]:
        return row[index] * (_WIDTH + _GAP_X) + 10, depth[index] * (_HEIGHT + _GAP_Y) + 10

    width = max(filled.values(), default=0) * (_WIDTH + _GAP_X) + 20
    height = len(filled) * (_HEIGHT + _GAP_Y) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" style="background: white" font-family="sans-serif" font-size="12">',
        '<defs><marker id="arrow" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z"/></marker></defs>',
    ]
    for node in program.nodes:
        x, y = corner(node.index)
        for dep in node.dependencies:
            from_x, from_y = corner(dep)
            parts.append(
                f'<line x1="{from_x + _WIDTH // 2}" y1="{from_y + _HEIGHT}" '
                f'x2="{x + _WIDTH // 2}" y2="{y}" stroke="black" marker-end="url(#arrow)"/>'
            )
    for node in program.nodes:
        x, y = corner(node.index)
        parts.append(
            f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="5" '
            f'fill="{_COLOURS[node.kind]}" stroke="#334155"/>'
        )
        for number, text in enumerate(_lines(node)):
            parts.append(f'<text x="{x + 8}" y="{y + 18 + 17 * number}">{escape(text)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
