"""The table of a tuning: each configuration with its prediction, its time, or why it was dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from .boundary import public
from .tuning_file import brief

C = TypeVar("C")
HOW = {
    "measured": "measured now",
    "kept": "measured before",
    "predicted": "predicted, not measured",
    "first": "the first of the space: nothing predicts, and nothing was measured",
}
_HEAD = ("", "configuration", "predicted", "measured", "of the best", "note")


@dataclass(frozen=True)
class TuningRow(Generic[C]):
    """A configuration.

    `predicted`: the value of `predict`, `seconds`: its median time, `dropped`: the reason why it can't be chosen.
    `text`: its text in files. `samples`: the number of times that it was timed.
    """

    config: C
    text: str
    predicted: float | None = None
    seconds: float | None = None
    dropped: str = ""
    samples: int = 0


@public
class Tuning(Generic[C]):
    """The results for a space, one key and one GPU: `best`, the configuration that calls use, and `rows`, the table.
    `how` says where `best` is from: "measured", "kept" (by an earlier run), "predicted", or "first" (of the space).
    `gpu` is the GPU's name, or "interpreter"; `key` is the key as files have it; `unit` is that of predictions, if it
    is known. `str()` is the table, and notebooks show it as one.
    """

    def __init__(
        self, kernel: str, gpu: str, key: str, how: str, best: C, rows: Sequence[TuningRow[C]], unit: str = ""
    ) -> None:
        self.kernel = kernel
        self.gpu = gpu
        self.key = key
        self.how = how
        self.best = best
        self.rows: tuple[TuningRow[C], ...] = tuple(rows)
        self.unit = unit

    def __repr__(self) -> str:
        return f"<tuning of {self.kernel} for {self.key} on {self.gpu}: {self.best!r}, {HOW[self.how]}>"

    def _title(self) -> str:
        return f"{self.kernel} for {self.key} on {self.gpu}: {HOW[self.how]}"

    def _cells(self) -> list[tuple[str, ...]]:
        times = [row.seconds for row in self.rows if row.seconds is not None]
        return [self._row(row, min(times, default=0.0)) for row in self.rows]

    def _row(self, row: TuningRow[C], least: float) -> tuple[str, ...]:
        measured = "" if row.seconds is None else f"{row.seconds * 1e6:.2f} us"
        ratio = "" if row.seconds is None else f"{least / row.seconds:.3f}"
        predicted = "" if row.predicted is None else f"{row.predicted:.4g} {self.unit}".rstrip()
        note = f"dropped: {row.dropped}" if row.dropped else f"{row.samples} samples" if row.samples else ""
        return ("*" if row.config is self.best else "", brief(row.config), predicted, measured, ratio, note)

    def __str__(self) -> str:
        rows = [_HEAD, *self._cells()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([self._title(), *lines])

    def _repr_html_(self) -> str:
        from html import escape

        head = "".join(f"<th>{escape(word)}</th>" for word in _HEAD)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self._cells())
        return f"<table><caption>{escape(self._title())}</caption><tr>{head}</tr>{body}</table>"


def changed(rows: Sequence[TuningRow[C]], number: int, **fields: object) -> list[TuningRow[C]]:
    """The rows with one of them changed."""
    out = list(rows)
    out[number] = replace(out[number], **fields)  # type: ignore[arg-type]
    return out
