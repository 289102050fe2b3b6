"""`python -m tests.docs.pictures` draws the pictures of the pages anew: layouts and a graph, in `docs/pictures`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import kernel_dsl as kd

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"


@kd.kernel(out_type=lambda x: x, interpret=True)
def double(x: Any, out: Any) -> None:
    """2 x."""
    out[...] = x[...] * 2


@kd.kernel(out_type=lambda x, y: x, interpret=True)
def add(x: Any, y: Any, out: Any) -> None:
    """x + y."""
    out[...] = x[...] + y[...]


def graph() -> kd.Graph:
    """That of docs/graphs.md: two calls that wait for nothing, and one that waits for both."""
    x, bias = np.zeros(8, np.float32), np.zeros(8, np.float32)
    with kd.Graph() as g:
        add(double(x), double(bias))
    return g


def drawn() -> dict[str, str]:
    """The SVG of every picture by its file's name."""
    return {
        "layout-strided.svg": kd.Layout.WG_STRIDED((32, 8), 2).to_svg((32, 8)),
        "layout-mma.svg": kd.Layout.MMA_ACC.to_svg((32, 8)),
        "graph.svg": graph().to_svg(),
    }


def main() -> None:
    """Write them."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in drawn().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
