"""Rows of a matrix that one tensor copy gathers or scatters (PTX ISA 5.5.3.4, .tile::scatter4 and .tile::gather4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...checks.kinds import HazardKind
from ..tensor_map import TensorMap
from .tensor_tiles import BoxTile, TensorTile
from .transfers import Issuer

Array = npt.NDArray[Any]


class RowsTile(TensorTile):
    """Rows of a matrix, each a box of its own; in shared memory they follow one another."""

    def __init__(self, i: Issuer, m: TensorMap, column: int, rows: list[int], store: bool) -> None:
        super().__init__(i, replace(m, box=(m.box[0], len(rows)), element_strides=(m.element_strides[0], 1)))
        self.rows: list[BoxTile] = [BoxTile(i, m, [column, row], store) for row in rows]
        inside = [row for row, box in zip(rows, self.rows, strict=True) if not box.empty]
        twice = next((row for row in inside if inside.count(row) > 1), None)
        if store and twice is not None:
            what = f"one copy scatters several rows to row {twice}, and nothing orders them"
            i.hazard(HazardKind.RACE_GLOBAL, what, "give each row a place of its own")

    @property
    def empty(self) -> bool:
        return all(row.empty for row in self.rows)

    def load(self) -> Array:
        return np.concatenate([row.load() for row in self.rows])

    def store(self, tile: Array, operation: str) -> None:
        for n, row in enumerate(self.rows):
            row.store(tile[n : n + 1], operation)

    def unchanged(self, tile: Array, unit: int) -> Array:
        found = [row.unchanged(tile[n : n + 1], unit) for n, row in enumerate(self.rows) if not row.empty]
        return np.concatenate(found, axis=1)

    def granules(self, shadow: Any) -> Array:
        there = [row for row in self.rows if not row.empty]
        for row in there:  # a row may need finer granules than those before it
            row.granules(shadow)
        return np.concatenate([row.granules(shadow) for row in there], axis=1)
