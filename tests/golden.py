"""Golden files: text that must stay what it is until someone says otherwise with `--update`."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest


def check(path: Path, text: str, update: bool) -> None:
    """Compare `text` with the file, or write it."""
    if update:
        path.write_text(text)
        return
    old = path.read_text() if path.exists() else ""
    if old != text:
        diff = "".join(
            difflib.unified_diff(old.splitlines(keepends=True), text.splitlines(keepends=True), str(path.name), "now")
        )
        pytest.fail(f"{path} is not what is seen now; if the change is meant, run pytest with --update\n{diff}")
