"""A report as a single HTML page without scripts and without other files."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from html import escape

from kernel_dsl.version import __version__

from .hazards import Found, Hazard, Side

_AROUND = 3  # lines of source to show before and after the marked one
_CODE_WIDTH = 72  # characters of an instruction's line in the timeline

_STYLE = """
:root { color-scheme: light dark; --line: #8885; --mark: #d5352b; --soft: #d5352b22; --ok: #2a8c4a; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin: 0; }
.verdict { font-weight: 600; } .found { color: var(--mark); } .none { color: var(--ok); }
article { border: 1px solid var(--line); border-radius: 6px; padding: 1rem; margin: 1.25rem 0; }
code, pre { font: 13px/1.45 ui-monospace, monospace; } pre { margin: .3rem 0 .8rem; overflow-x: auto; }
pre span { display: block; white-space: pre; } pre .at { background: var(--soft); border-left: 3px solid var(--mark); }
pre span { border-left: 3px solid transparent; padding-left: .4rem; } pre b { opacity: .5; font-weight: 400; }
dt { font-weight: 600; } dd { margin: 0 0 .5rem; } .sides { display: grid; gap: 0 1rem; }
@media (min-width: 50rem) { .sides { grid-template-columns: 1fr 1fr; } } .sides > div { min-width: 0; }
svg { width: 100%; height: auto; } svg text { font: 13px system-ui, sans-serif; fill: currentColor; }
svg .code { font: 12px ui-monospace, monospace; } svg .mark { fill: var(--mark); }
"""


def page(report: Found) -> str:
    """The page."""
    of = ", ".join(report.launches) or "no launch"
    state = "found" if report.hazards else "none"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(of)}: {escape(report.verdict)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Check of <code>{escape(of)}</code></h1>",
        f'<p>Verdict: <span class="verdict {state}">{escape(report.verdict)}</span>. '
        f"{_count(report)} under {len(report.schedules)} schedules: {escape(', '.join(report.schedules))}.</p>",
        *(_hazard(number, h, report) for number, h in enumerate(report.hazards, 1)),
        f"<footer>kernel-dsl {escape(__version__)}</footer></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _count(report: Found) -> str:
    number = len(report.hazards)
    return "1 hazard" if number == 1 else f"{number} hazards"


def _hazard(number: int, h: Hazard, report: Found) -> str:
    element = f"{h.buffer}{list(h.index)}" if h.index is not None else h.buffer
    rows = [("Kernel", h.launch), ("Where", element), ("Why", h.why), ("Fix", h.fix)]
    listed = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in rows if text)
    sides = [("This access", h.side)] + ([("The access before", h.other)] if h.other is not None else [])
    shown = "".join(f"<div><h3>{title}</h3>{_side(side, report.lines)}</div>" for title, side in sides)
    details = "" if h.other is not None else "".join(f"<pre>{escape(d)}</pre>" for d in h.details)
    return (
        f'<article id="hazard-{number}"><h2>{number}. <code>{escape(str(h.kind))}</code></h2>{_timeline(h)}<dl>{listed}</dl>'
        f'<div class="sides">{shown}</div>{details}<p>Found by: {escape(", ".join(h.schedules))}</p></article>'
    )


def _side(side: Side, lines: Callable[[str], Sequence[str]]) -> str:
    where = f"{side.file}:{side.line}" if side.line else side.file
    head = f"<p><code>{escape(where)}</code>{' by ' + escape(side.who) if side.who else ''}</p>"
    text = lines(side.file) or linecache.getlines(side.file)
    if not side.line or side.line > len(text):
        return head + (f"<pre>{escape(side.code)}</pre>" if side.code else "")
    first = max(side.line - _AROUND, 1)
    shown = [
        f"<span{' class=at' if n == side.line else ''}><b>{n:>5}</b> {escape(text[n - 1].rstrip())}</span>"
        for n in range(first, min(side.line + _AROUND, len(text)) + 1)
    ]
    return f"{head}<pre>{''.join(shown)}</pre>"


def _timeline(h: Hazard) -> str:
    """The two accesses, one line for each of their makers, the earlier access left."""
    if h.other is None:
        return ""
    parts = ['<svg viewBox="0 0 960 150" role="img" aria-label="timeline of the two accesses">']
    for x, y, words, side in ((150, 34, 24, h.other), (560, 84, 102, h.side)):
        code = side.code if len(side.code) <= _CODE_WIDTH else side.code[: _CODE_WIDTH - 1] + "…"
        parts.append(f'<line x1="10" x2="950" y1="{y}" y2="{y}" stroke="currentColor" opacity=".3"/>')
        parts.append(f'<text x="10" y="{words}">{escape(side.who or "another access")}</text>')
        parts.append(f'<text class="code" x="360" y="{words}">{escape(f"{side.line}: {code}")}</text>')
        parts.append(f'<circle class="mark" cx="{x}" cy="{y}" r="6"/>')
    parts.append('<line x1="156" y1="35" x2="554" y2="83" stroke="#d5352b" stroke-dasharray="5 4"/>')
    parts.append(
        '<text x="10" y="142">time →</text><text x="330" y="142">nothing orders the second after the first</text>'
    )
    return "".join(parts) + "</svg>"
