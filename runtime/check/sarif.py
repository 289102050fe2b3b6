"""A report in SARIF 2.1.0, the format of code scanners: a rule for each kind of hazard, a result for each hazard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kernel_dsl.version import __version__

from .hazards import Found, Hazard, Side

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(report: Found) -> str:
    """The report as SARIF text."""
    kinds = list(dict.fromkeys(str(h.kind) for h in report.hazards))
    driver = {
        "name": "kernel-dsl",
        "version": __version__,
        "rules": [{"id": kind, "shortDescription": {"text": kind.replace("_", " ")}} for kind in kinds],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(h, kinds) for h in report.hazards],
        "properties": {"verdict": report.verdict, "schedules": list(report.schedules)},
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _result(h: Hazard, kinds: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "ruleId": str(h.kind),
        "ruleIndex": kinds.index(str(h.kind)),
        "level": "error",
        "message": {"text": f"{h.why}. Fix: {h.fix}." if h.fix else f"{h.why}."},
        "locations": [_location(h.side)],
        "properties": {"launch": h.launch, "details": list(h.details), "schedules": list(h.schedules)},
    }
    if h.other is not None:
        text = f"the access before: {h.other.instruction} by {h.other.who}" if h.other.who else "the access before"
        found["relatedLocations"] = [{"id": 1, **_location(h.other), "message": {"text": text}}]
    return found


def _location(side: Side) -> dict[str, Any]:
    where: dict[str, Any] = {"artifactLocation": {"uri": _uri(side.file)}}
    if side.line:
        where["region"] = {"startLine": side.line, "snippet": {"text": side.code}}
    found: dict[str, Any] = {"physicalLocation": where}
    if side.function:
        found["logicalLocations"] = [{"name": side.function, "kind": "function"}]
    return found


def _uri(file: str) -> str:
    path = Path(file)
    return path.as_uri() if path.is_absolute() else quote(file.replace("\\", "/"))
