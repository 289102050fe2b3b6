"""docs/ptx-coverage.md is what the code says."""

from __future__ import annotations

from pathlib import Path

from runtime.interpreter.coverage import page

DOCS = Path(__file__).parents[2] / "docs"


def test_page_is_current() -> None:
    have = (DOCS / "ptx-coverage.md").read_text(encoding="utf-8")
    assert have == page(), "run python -m runtime.interpreter.coverage docs/ptx-coverage.md"
