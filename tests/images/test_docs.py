"""The page on kernels from elsewhere: its examples run as they stand, one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "other-kernels.md"


@pytest.mark.usefixtures("compiler")
def test_examples_run():
    text = PAGE.read_text()
    scope: dict[str, Any] = {}
    blocks = list(re.finditer(r"```python\n(.*?)```", text, re.DOTALL))
    assert len(blocks) >= 6
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        exec(compile("\n" * line + block.group(1), str(PAGE), "exec"), scope)
