"""The pages about the interpreter are what the code makes of them."""

from __future__ import annotations

import re

from kernel_dsl.runtime.interpreter.isa import coverage

from . import docs_page


def test_coverage_table():
    assert docs_page.COVERAGE.read_text() == coverage.markdown()


def test_distances_of_tensor_instructions():
    text = docs_page.DIFFERENTIAL.read_text()
    assert docs_page.distances_table() in text


def test_the_bugs_on_the_page_are_found_as_it_says():
    text = docs_page.PAGE.read_text()
    assert text.count("```text") == 3
    assert _without_ptx(docs_page.render(text)) == _without_ptx(text)


def _without_ptx(text: str) -> str:
    """The page less what changes when the lowering does: PTX lines, and which warp comes first."""
    text = re.sub(r"\(PTX line [^)]*\)", "(PTX)", text)
    return re.sub(r"warp \d+|warpgroup \d+( \(wg=\d\))?|\[\d+(, \d+)*\]", "#", text)
