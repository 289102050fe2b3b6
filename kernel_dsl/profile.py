"""`Profile`: the times of each warpgroup's named scopes and waits, and of copies and products that ran meanwhile."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from .boundary import public
from .diagnostics import shown
from .errors import BadArgument, BadArgumentType
from .perfetto import Bar, Track, chrome, protobuf

_COPIES_WAITS = ("wait_smem_to_gmem", "wait_gmem_to_smem")


@dataclass(frozen=True)
class ProfileEvent:
    """Something that lasted. `begin` and `end` are in the unit of its profile, from its earliest event.

    `kind`: "kernel" (the whole body), "scope", "wait", and in the interpreter "copy" and "wgmma", from issue to effect.
    `name`: the name of the scope, of the barrier with its index, or of the operation. `warp`: the number in the block
    of a warp inside `warp_map`. `warpgroup` is None for copies. `sm`: the multiprocessor.
    """

    kind: str
    name: str
    begin: int
    end: int
    block: int
    warpgroup: int | None
    warp: int | None = None
    file: str = ""
    line: int = 0
    sm: int = 0
    barrier: str = ""  # the barrier on which a copy completes
    device: int = 0  # of a mesh: the rank

    @property
    def duration(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class SummaryRow:
    """All events of one kind, name and line: their number, total and longest duration, in the profile's unit."""

    kind: str
    name: str
    file: str
    line: int
    count: int
    total: int
    longest: int
    share: float  # of the time of all warpgroups in the kernel


@dataclass(frozen=True)
class Summary:
    """Time by barrier and line, the longest first: `waits`, and `scopes`. `str()` and notebooks give a table."""

    kernel: str
    unit: str
    waits: tuple[SummaryRow, ...]
    scopes: tuple[SummaryRow, ...]
    dropped: int

    def _table(self) -> list[tuple[str, ...]]:
        head = ("what", "name", "line", "count", f"total {self.unit}", f"longest {self.unit}", "of all time")
        rows = [
            (
                r.kind,
                r.name,
                f"{Path(r.file).name}:{r.line}",
                str(r.count),
                str(r.total),
                str(r.longest),
                f"{r.share:.1%}",
            )
            for r in (*self.waits, *self.scopes)
        ]
        return [head, *rows]

    def __str__(self) -> str:
        table = self._table()
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]
        if self.dropped:
            lines.append(f"{self.dropped} events had no room: give `profile(space=)` more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head, *rows = self._table()
        cells = "".join(f"<th>{escape(c)}</th>" for c in head)
        body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows)
        return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


@public
class Profile:
    """A measurement of `kernel.profile`: `.events`, `.summary()`, `.save(path)`, and the call's outputs in `.result`.

    `unit`: "ns" on a GPU, whose clock moves in steps of some nanoseconds, and "steps" in the interpreter, where a step
    is an instruction of all warps that execute it together. `dropped`: the number of begins and ends for which the
    rings had no room.
    """

    def __init__(self, kernel: str, unit: str, events: Iterable[ProfileEvent], dropped: int, result: Any) -> None:
        self.kernel = kernel
        self.unit = unit
        self.events: tuple[ProfileEvent, ...] = tuple(
            sorted(events, key=lambda e: (e.begin, -e.end, e.kind != "kernel"))
        )
        self.dropped = dropped
        self.result = result

    def __repr__(self) -> str:
        blocks = len({(e.device, e.block) for e in self.events})
        span = max((e.end for e in self.events), default=0)
        more = f", and {self.dropped} without room" if self.dropped else ""
        return f"<profile of {self.kernel}: {len(self.events)} events{more} of {blocks} blocks in {span} {self.unit}>"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>{self.summary()._repr_html_()}"  # pyright: ignore[reportPrivateUsage]

    def _spans(self) -> int:
        """The sum of the times from the first to the last kept event: rings may lack room for whole kernels."""
        ends: dict[tuple[int, int, int | None, int | None], tuple[int, int]] = {}
        for e in self.events:
            place = e.device, e.block, e.warpgroup, e.warp
            begin, end = ends.get(place, (e.begin, e.end))
            ends[place] = min(begin, e.begin), max(end, e.end)
        return sum(end - begin for begin, end in ends.values())

    def summary(self) -> Summary:
        """The time of waits by barrier and line, and the time of scopes, over all warpgroups."""
        whole = sum(e.duration for e in self.events if e.kind == "kernel") or self._spans() or 1
        found: dict[tuple[str, str, str, int], list[int]] = {}
        for e in self.events:
            if e.kind in ("wait", "scope"):
                found.setdefault((e.kind, e.name.partition("[")[0], e.file, e.line), []).append(e.duration)
        rows = [SummaryRow(*key, len(d), sum(d), max(d), sum(d) / whole) for key, d in found.items()]
        rows.sort(key=lambda r: (-r.total, r.name, r.line))
        waits, scopes = (tuple(r for r in rows if r.kind == kind) for kind in ("wait", "scope"))
        return Summary(self.kernel, self.unit, waits, scopes, self.dropped)

    def save(self, path: Any) -> None:
        """Write a trace that https://ui.perfetto.dev opens: Perfetto's protobuf, or Chrome's JSON where `path` ends in ".json".

        It has a process for each block, with tracks for its warpgroups, copies and wgmma, and arrows from copies and
        wgmma to the waits that they end. A step of the interpreter counts as a nanosecond.

        Raises `BadArgumentType`, `BadArgument`.
        """
        try:
            file = Path(path)
        except TypeError:
            raise BadArgumentType(op="save", what=f"path={shown(path)}", hint="a file's name") from None
        tracks, slices = self._drawn()
        try:
            if file.suffix == ".json":
                file.write_text(chrome(tracks, slices), encoding="utf-8")
            else:
                file.write_bytes(protobuf(tracks, slices))
        except (OSError, ValueError) as error:
            raise BadArgument(
                op="save", what=f"path={shown(path)}: {error}", hint="a file that can be written"
            ) from None

    def _drawn(self) -> tuple[list[Track], list[Bar]]:
        """Tracks and slices. Slices on one track never cross."""
        tracks: dict[tuple[Any, ...], Track] = {}
        leaving, arriving = arrows(self.events)
        busy: dict[tuple[Any, ...], int] = {}
        slices: list[Bar] = []

        def track(key: tuple[Any, ...], name: str, parent: int = 0) -> int:
            return tracks.setdefault(key, Track(len(tracks) + 1, name, parent)).number

        several = any(e.device for e in self.events)
        for n, e in enumerate(self.events):
            at = (e.device, e.block)
            block = f"device {e.device} block {e.block}" if several else f"block {e.block}"
            where = f" (SM {e.sm})" if self.unit == "ns" else " (steps of the interpreter)"
            process = track(at, f"{self.kernel} {block}{where}")
            if e.kind in ("copy", "wgmma"):
                row = 0
                while busy.get((*at, e.kind, row), 0) > e.begin:
                    row += 1
                busy[*at, e.kind, row] = e.end
                number = track((*at, e.kind, row), f"{e.kind} {row}", process)
            elif e.warp is not None:
                number = track((*at, "warp", e.warp), f"warp {e.warp}", process)
            else:
                number = track((*at, e.warpgroup, 0), f"warpgroup {e.warpgroup}", process)
            arrow = tuple(leaving.get(n, ())), tuple(arriving.get(n, ()))
            slices.append(Bar(number, e.name, e.kind, e.begin, e.end, e.file, e.line, *arrow))
        return list(tracks.values()), slices


def arrows(events: Sequence[ProfileEvent]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Numbers of the arrows that leave and reach each event: from an operation to the first wait that ends after it."""
    leaving: dict[int, list[int]] = {}
    arriving: dict[int, list[int]] = {}
    waits: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    for n, e in enumerate(events):
        if e.kind == "wait":
            who = e.warpgroup if e.name == "wgmma_wait" else None
            waits.setdefault((e.device, e.block, who, e.name), []).append((e.end, n))
    for found in waits.values():
        found.sort()
    number = 0
    for n, e in enumerate(events):
        names = ("wgmma_wait",) if e.kind == "wgmma" else (e.barrier,) if e.barrier else _COPIES_WAITS
        if e.kind not in ("copy", "wgmma"):
            continue
        after: list[tuple[int, int]] = []
        for name in names:
            those = waits.get((e.device, e.block, e.warpgroup, name), [])
            after += those[(first := bisect_left(those, (e.end, -1))) : first + 1]
        if after:
            number += 1
            leaving.setdefault(n, []).append(number)
            arriving.setdefault(min(after)[1], []).append(number)
    return leaving, arriving
