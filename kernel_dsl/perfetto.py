"""Traces as files: Perfetto's protobuf, and the JSON that Chrome reads.

The few messages that a trace needs are written here, by the numbers of their fields in Perfetto's `trace_packet.proto`,
`track_descriptor.proto` and `track_event.proto`: the `perfetto` package, with which the tests read them, brings thousands.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

# Trace.packet; of a TracePacket: its time in nanoseconds, event, writer, and the description of a track
_PACKET, _TIMESTAMP, _TRACK_EVENT, _SEQUENCE, _TRACK_DESCRIPTOR = 1, 8, 11, 10, 60
# TrackDescriptor: a number, a name, the track above it
_UUID, _NAME, _PARENT = 1, 2, 5
# TrackEvent
_TYPE, _TRACK, _CATEGORIES, _EVENT_NAME, _LOCATION, _FLOWS, _ENDED_FLOWS = 9, 11, 22, 23, 33, 47, 48
_BEGIN, _END = 1, 2
_FILE, _LINE = 2, 4  # SourceLocation


@dataclass(frozen=True)
class Bar:
    """A bar of a track, in nanoseconds. `starts`, `ends`: numbers of the arrows that leave it and that arrive at it."""

    track: int
    name: str
    category: str
    begin: int
    end: int
    file: str = ""
    line: int = 0
    starts: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()


@dataclass(frozen=True)
class Track:
    """A row of a trace, below the track `parent`; 0: below none. Numbers start at 1."""

    number: int
    name: str
    parent: int = 0


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _fixed(field: int, value: int) -> bytes:
    return _varint(field << 3 | 1) + value.to_bytes(8, "little")


def _text(field: int, value: str | bytes) -> bytes:
    data = value.encode(errors="replace") if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def protobuf(tracks: Sequence[Track], slices: Sequence[Bar]) -> bytes:
    """A trace in Perfetto's format. Slices of one track do not overlap, or one contains the other."""
    packets: list[bytes] = []
    for track in tracks:
        above = _number(_PARENT, track.parent) if track.parent else b""
        packets.append(_text(_TRACK_DESCRIPTOR, _number(_UUID, track.number) + _text(_NAME, track.name) + above))
    for time, _, begins, s in _ends(slices):
        event = _number(_TYPE, _BEGIN if begins else _END) + _number(_TRACK, s.track)
        if begins:
            event += _text(_CATEGORIES, s.category) + _text(_EVENT_NAME, s.name)
            if s.file:
                event += _text(_LOCATION, _text(_FILE, s.file) + _number(_LINE, s.line))
        else:  # a wait may have begun before the operation that ends it
            event += b"".join(_fixed(_FLOWS, flow) for flow in s.starts)
            event += b"".join(_fixed(_ENDED_FLOWS, flow) for flow in s.ends)
        packets.append(_number(_TIMESTAMP, time) + _text(_TRACK_EVENT, event))
    return b"".join(_text(_PACKET, packet + _number(_SEQUENCE, 1)) for packet in packets)


def _ends(slices: Sequence[Bar]) -> list[tuple[int, tuple[int, int, int], bool, Bar]]:
    """Begins and ends in the order of time.

    At equal times ends come before begins, inner slices end first, outer ones begin first, and an arrow leaves before
    it arrives.
    """
    found: list[tuple[int, tuple[int, int, int], bool, Bar]] = []
    for n, s in enumerate(slices):
        turn = 2 if s.ends or not s.starts else 0
        begin = s.begin, (turn + 1, -s.end, n)
        found.append((*begin, True, s))
        found.append((*(begin if s.begin == s.end else (s.end, (turn, -s.begin, -n))), False, s))
    # the sort is stable, so the end of an empty slice follows its begin
    return sorted(found, key=lambda f: f[:2])


def chrome(tracks: Sequence[Track], slices: Sequence[Bar]) -> str:
    """A trace in Chrome's JSON, whose times are microseconds: a process for each track that has none above it."""
    named = {t.number: t for t in tracks}
    events: list[dict[str, object]] = []
    for t in tracks:
        kind = "thread_name" if t.parent else "process_name"
        where = {"pid": t.parent or t.number, "tid": t.number}
        events.append({"ph": "M", "name": kind, **where, "args": {"name": t.name}})
    for s in slices:
        where = {"pid": named[s.track].parent or s.track, "tid": s.track}
        common = {"name": s.name, "cat": s.category, **where}
        place = {"file": s.file, "line": s.line} if s.file else {}
        events.append({"ph": "X", **common, "ts": s.begin / 1e3, "dur": (s.end - s.begin) / 1e3, "args": place})
        arrow: dict[str, object] = {"name": "completes", "cat": "completes", **where}
        events += [{"ph": "s", "id": flow, "ts": s.end / 1e3, **arrow} for flow in s.starts]
        events += [{"ph": "f", "bp": "e", "id": flow, "ts": s.end / 1e3, **arrow} for flow in s.ends]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})
