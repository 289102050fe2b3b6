"""Heat that spreads over a picture step by step, drawn as a PNG file.

A stencil gives each pixel a mean of its neighbours. A block of pixels needs a frame around it that is one pixel wide.
So five loads, each shifted by one pixel, read nearly the same memory, and the cache serves all but the first. At the
picture's edge a shifted slice is partly outside the array, and `fill` gives the heat there: 0.

The example writes the picture with the standard library alone. Run it: `python -m examples.08_stencil [heat.png]`.
"""

from __future__ import annotations

import struct
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

import kernel_dsl as kd

ROWS, COLUMNS = 8, 128


@kd.kernel(
    out_type=lambda heat: heat,
    grid=lambda heat: (kd.cdiv(heat.shape[0], ROWS), kd.cdiv(heat.shape[1], COLUMNS)),
    grid_names=("row", "column"),
)
def spread(heat: Any, out: Any) -> None:
    """One step: every pixel gives a fifth of its heat to each of its four neighbours, and keeps a fifth."""
    row, column = kd.axis_index("row") * ROWS, kd.axis_index("column") * COLUMNS

    def shifted(down: int, across: int) -> Any:
        return kd.load(heat, (kd.ds(row + down, ROWS), kd.ds(column + across, COLUMNS)), fill=0.0)

    total = shifted(0, 0) + shifted(-1, 0) + shifted(1, 0) + shifted(0, -1) + shifted(0, 1)
    out[kd.ds(row, ROWS), kd.ds(column, COLUMNS)] = total * 0.2


def reference(heat: Any) -> Any:
    """The same step in NumPy, in float64."""
    framed = np.pad(heat.astype(np.float64), 1)
    around = framed[:-2, 1:-1] + framed[2:, 1:-1] + framed[1:-1, :-2] + framed[1:-1, 2:]
    return (framed[1:-1, 1:-1] + around) * 0.2


def colours(heat: Any) -> Any:
    """(height, width) of 0 to 1 as black, red, yellow, white: (height, width, 3) uint8."""
    return (np.clip(heat[..., None] * 3 - np.arange(3), 0, 1) * 255).astype(np.uint8)


def png(pixels: Any) -> bytes:
    """A PNG file of (height, width, 3) uint8: a header, the compressed rows with a filter byte each, an end."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits a channel, RGB
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    body = zlib.compress(rows.tobytes())
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def main(path: str | None = None) -> None:
    """Spread heat from a few spots, check every step, and write the picture."""
    rng = np.random.default_rng(0)
    heat = np.zeros((61, 150), np.float32)
    for _ in range(6):
        row, column = rng.integers(0, 50), rng.integers(0, 140)
        heat[row : row + 10, column : column + 10] = 1
    for _ in range(8):
        expected = reference(heat)
        heat = spread(heat)
        assert np.max(np.abs(heat - expected)) < 1e-6
    with tempfile.TemporaryDirectory() as folder:
        target = Path(path or Path(folder) / "heat.png")
        target.write_bytes(png(colours(heat)))
        print(f"8 steps of {heat.shape}: right to 1e-6; {target.name} has {target.stat().st_size} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:2])
