"""Each error's page shows a case and its fix: the fix runs, and the pages are current."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.errors import pages
from tests.errors.fixes import FIXES
from tests.errors.harness import CASES, run


@pytest.mark.parametrize("name", FIXES)
def test_fix(name: str, tmp_path: Path) -> None:
    case, _, _ = FIXES[name]
    assert (CASES / f"{case}.err").read_text().startswith(f"{name}(")
    source = pages.fixed(name)
    if '"torch"' in source:
        pytest.importorskip("torch")
    path = tmp_path / f"{case}.py"
    path.write_text(source)
    error, _ = run(path)
    assert error is None, error


def test_each_class_that_has_a_case_has_a_page() -> None:
    shown = {p.read_text().partition("(")[0] for p in CASES.glob("*.err")}
    assert shown - set(FIXES) - {"DeviceError"} == set()


def test_pages_are_current(update: bool) -> None:
    if update:
        pages.main()
    for path, text in pages.pages().items():
        assert path.exists() and path.read_text() == text, f"{path}: run `python -m tests.errors.pages`"
    assert set(pages.FOLDER.glob("*.md")) == set(pages.pages())
