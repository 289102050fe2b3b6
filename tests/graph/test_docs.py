"""The pages on graphs and on compiled kernels: their examples run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kernel_dsl.runtime.assemble import find_ptxas

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "least"), [("graphs.md", 4), ("compiled-kernels.md", 2)])
def test_examples_run(page: str, least: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if page == "compiled-kernels.md" and find_ptxas() is None:
        pytest.skip("no ptxas on this machine")
    monkeypatch.setenv("KERNEL_DSL_CACHE", str(tmp_path / "cache"))
    text = (DOCS / page).read_text()
    scope: dict[str, Any] = {}
    blocks = list(re.finditer(r"```python\n(.*?)```", text, re.DOTALL))
    assert len(blocks) >= least
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        exec(compile("\n" * line + block.group(1), str(DOCS / page), "exec"), scope)
