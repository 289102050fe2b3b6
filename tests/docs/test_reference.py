"""The reference is what the docstrings say now, every public name has one, and every example in them runs."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import pkgutil

import pytest

import kernel_dsl as kd
from tests.conftest import ROOT
from tests.docs import reference

MODULES = sorted(m.name for m in pkgutil.walk_packages(kd.__path__, "kernel_dsl."))
FRAMEWORKS = ("cupy", "jax", "torch")


def _source(module: str) -> str:
    place = ROOT.joinpath(*module.split("."))
    return (place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).read_text()


def test_the_page_is_up_to_date(update: bool) -> None:
    if update:
        reference.main()
    assert reference.PAGE.read_text() == reference.page(), "run `python -m tests.docs.reference`"


def test_every_name_is_documented() -> None:
    things = {name: getattr(kd, name) for name in kd.__all__}
    bare = {name for name, thing in things.items() if not inspect.getdoc(thing)}
    assert {name for name in bare if not isinstance(things[name], kd.dtypes.DType)} == set()


def test_every_module_is_imported() -> None:
    for module in MODULES:
        name = module.rpartition(".")[2]
        if module.startswith("kernel_dsl.runtime.arrays.interop.") and name in FRAMEWORKS:
            if importlib.util.find_spec(name) is None:
                continue
            importlib.import_module(name)  # arrays of a framework come from a program that has imported it
        importlib.import_module(module)


@pytest.mark.parametrize("module", [name for name in MODULES if ">>> " in _source(name)])
def test_examples(module: str) -> None:
    names = {"kd": kd, "run": reference.run}
    for case in doctest.DocTestFinder(exclude_empty=True).find(
        importlib.import_module(module), module, extraglobs=names
    ):
        if case.examples:
            result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(case)
            assert result.failed == 0, case.name


def test_there_are_examples() -> None:
    assert reference.page().count("```pycon") >= 50
