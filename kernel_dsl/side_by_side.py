"""What notebooks show of a kernel's stages: each line of the source with its IR, its PTX and its machine code."""

from __future__ import annotations

import json
import linecache
import re
from collections.abc import Callable
from html import escape
from pathlib import PurePath
from typing import Any

Place = tuple[str, int]  # file and line; ("", 0): no line
Parts = dict[Place, list[str]]

_STYLE = (
    ":root{color-scheme:light dark}body{font:14px/1.4 system-ui,sans-serif;margin:.5rem}"
    "table{border-collapse:collapse;table-layout:fixed;width:100%;min-width:36rem}"  # equal columns, all of them in view
    "td,th{border:1px solid #8885;padding:.2rem .4rem;vertical-align:top;text-align:left}"
    "pre{font:12px/1.4 ui-monospace,monospace;margin:0;max-height:9rem;overflow:auto;white-space:pre-wrap;overflow-wrap:anywhere}"
)
_IR_PLACE = re.compile(r' @ ("(?:[^"\\]|\\.)*"):(\d+)')
_FILE = re.compile(r'\s*\.file\s+(\d+)\s+"([^"]*)"')
_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")
_SASS_PLACE = re.compile(r"\t// (.+?):(\d+)(?:\s|$)")
_SASS_ADDRESS = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s*")


def of_ir(text: str) -> Parts:
    """The lines of the IR's text by the place that each ends with."""
    out: Parts = {}
    for line in text.splitlines():
        found = list(_IR_PLACE.finditer(line))
        place = (json.loads(found[-1][1]), int(found[-1][2])) if found else ("", 0)
        out.setdefault(place, []).append(line[: found[-1].start()] if found else line)
    return out


def of_ptx(text: str) -> Parts:
    """PTX by the `.loc` before it."""
    lines = text.splitlines()
    files = {m[1]: m[2] for m in map(_FILE.match, lines) if m}
    out: Parts = {}
    place: Place = "", 0
    for line in lines:
        if (found := _LOC.match(line)) is not None:
            place = (files.get(found[1], ""), int(found[2])) if found[2] != "0" else ("", 0)
        elif line.strip() and not line.lstrip().startswith("//") and not _FILE.match(line):
            out.setdefault(place, []).append(line)
    return out


def of_sass(text: str) -> Parts:
    """Machine code by the place that `Compiled.sass` writes before it."""
    out: Parts = {}
    place: Place = "", 0
    for line in text.splitlines():
        if (found := _SASS_PLACE.match(line)) is not None:
            place = found[1], int(found[2])
        elif line.strip():
            out.setdefault(place, []).append(line)
    return out


def _tried(make: Callable[[], Parts]) -> Parts | str:
    """The result of `make`, or the first line of its error, so that the page still shows the other columns."""
    try:
        return make()
    except Exception as error:
        return (str(error).splitlines() or [type(error).__name__])[0]


def _tidy(lines: list[str]) -> str:
    """Lines for a narrow column: one space in the place of several, and no addresses."""
    return "\n".join(" ".join(_SASS_ADDRESS.sub("", line).split()) for line in lines)


def page(stages: Any, sass: Callable[[], str]) -> str:
    """The complete page of a `Stages`. `sass()`: its machine code as text."""
    columns = {
        "IR": _tried(lambda: of_ir(stages.ir_text)),
        "PTX": _tried(lambda: of_ptx(stages.ptx)),
        "SASS": _tried(lambda: of_sass(sass())),
    }
    parts = [parts for parts in columns.values() if not isinstance(parts, str)]
    places = sorted({place for found in parts for place in found if place != ("", 0)})
    shown = {name: found for name, found in columns.items() if not isinstance(found, str)}
    head = "".join(f"<th>{name}</th>" for name in ("line", *shown))
    rows: list[str] = []
    for file, line in [*places, ("", 0)]:
        source = linecache.getline(file, line).strip() if line else "of no line"
        where = f"{PurePath(file).name}:{line}" if line else ""
        cells = "".join(f"<td><pre>{escape(_tidy(found.get((file, line), [])))}</pre></td>" for found in shown.values())
        rows.append(f"<tr><td>{escape(where)}<pre>{escape(source)}</pre></td>{cells}</tr>")
    missing = "".join(f"<p>{name}: {escape(found)}</p>" for name, found in columns.items() if isinstance(found, str))
    title = escape(repr(stages))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head>'
        f"<body><p>{title}</p>{missing}<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></body></html>"
    )


def frame(stages: Any, sass: Callable[[], str]) -> str:
    """The page in a frame, so that its style does not change the notebook and nothing in it runs."""
    return f'<iframe sandbox="" srcdoc="{escape(page(stages, sass))}" width="100%" height="480"></iframe>'
