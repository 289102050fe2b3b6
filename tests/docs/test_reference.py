"""The reference is what the docstrings say now, every public name has one, and every example in them runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest

import kernel_dsl as kd
from tests.docs import reference

MODULES = sorted(m.name for m in pkgutil.walk_packages(kd.__path__, "kernel_dsl."))
FRAMEWORKS = ("cupy", "jax", "torch")


def test_the_page_is_up_to_date(update: bool) -> None:
    if update:
        reference.main()
    assert reference.PAGE.read_text() == reference.page(), "run `python -m tests.docs.reference`"


@pytest.mark.parametrize("name", sorted(set(kd.__all__)))
def test_every_name_is_documented(name: str) -> None:
    thing = getattr(kd, name)
    assert isinstance(thing, kd.dtypes.DType) or inspect.getdoc(thing), name


@pytest.mark.parametrize("module", MODULES)
def test_examples(module: str) -> None:
    if module.startswith("kernel_dsl.runtime.arrays.interop.") and module.endswith(FRAMEWORKS):
        pytest.importorskip(module.rpartition(".")[2])
    found = importlib.import_module(module)
    names = {"kd": kd, "run": reference.run}
    for case in doctest.DocTestFinder(exclude_empty=True).find(found, module, extraglobs=names):
        if case.examples:
            result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(case)
            assert result.failed == 0, case.name


def test_no_line_of_a_sentence_reads_as_an_item() -> None:
    """A line that begins with "- ", "+ " or "8. " would be an item of a list on the site or on GitHub."""
    mark = re.compile(r"([-+*]|\d+[.)]) ")
    wrong: list[str] = []
    before, listed = "", False
    for line in reference.page().split("\n"):
        item = mark.match(line) is not None
        if item and before and not listed:
            wrong.append(line)
        listed = item or (listed and line.startswith("  "))
        before = line
    assert wrong == []


def test_there_are_examples() -> None:
    assert reference.page().count("```pycon") >= 50
