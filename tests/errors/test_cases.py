"""Every misuse of `cases/` against its golden file: the user's words, the user's line, nothing of ours on top."""

from __future__ import annotations

import re
import sys
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests import golden
from tests.conftest import ROOT
from tests.errors.harness import BUILTINS, CASES, last_frame, run, words

PATHS = sorted(CASES.glob("*.py"))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was launched on the interpreter."""
    from kernel_dsl.runtime.devices import interpreter_device

    seen: list[Any] = []
    for name in dir(interpreter_device):
        cls = getattr(interpreter_device, name)
        if isinstance(cls, type) and cls.__module__ == interpreter_device.__name__ and hasattr(cls, "launch"):
            monkeypatch.setattr(cls, "launch", lambda self, *a, **k: seen.append(self))
    return seen


def _as_before_313(seen: str, path: Path) -> str:
    """The message with the golden one's marks where these hold its own: Python 3.13 marks less of a `for` and a `with`."""
    if sys.version_info < (3, 13) or not path.exists():
        return seen
    pairs = zip_longest(seen.splitlines(keepends=True), path.read_text().splitlines(keepends=True), fillvalue="")
    return "".join(before if _holds(before, now) else now for now, before in pairs)


def _holds(before: str, now: str) -> bool:
    marked = re.fullmatch(r" *\| [ ^]*\^\n?", now) and "^" in before
    return bool(marked) and {i for i, c in enumerate(now) if c == "^"} <= {i for i, c in enumerate(before) if c == "^"}


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)
def test_case(path: Path, update: bool, launches: list[Any]) -> None:
    source = path.read_text()
    for framework in ("torch", "jax"):
        if f'"{framework}' in source:
            pytest.importorskip(framework)
    error, names = run(path)
    assert error is not None, "nothing was raised"
    golden.check(path.with_suffix(".err"), _as_before_313(words(error, path), path.with_suffix(".err")), update)
    assert isinstance(error, kd.Error), type(error)
    assert isinstance(error, BUILTINS), type(error)
    assert last_frame(error) == str(path), "the traceback does not end at the user's line"
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None
    assert not launches, "the kernel ran"
    out = names.get("out")
    if isinstance(out, np.ndarray):
        assert (out == -1).all(), "an array was touched"


def test_the_words_are_whole() -> None:
    """No unfilled template, no object's address, no name of ours, and a place or a way out."""
    for path in PATHS:
        text = path.with_suffix(".err").read_text()
        assert not re.search(r"\{\w*\}|0x[0-9a-f]{6,}|<function|LayoutVar|\bNone None\b", text), path.stem
        assert "kernel_dsl/" not in text and "lowering/" not in text, path.stem
        if "[argument-" not in text and "[device]" not in text:  # these say both in one sentence
            assert "= help:" in text or "= note:" in text, f"{path.stem}: neither why nor what to do"


def _is_used(name: str) -> bool:
    """Whether any of our code raises it."""
    folders = (ROOT / p for p in ("kernel_dsl", "lowering", "runtime"))
    files = (f for folder in folders for f in folder.rglob("*.py") if not f.name.startswith("errors"))
    return any(f"{name}(" in f.read_text() for f in files)


def test_each_class_has_a_case(request: pytest.FixtureRequest) -> None:
    import importlib
    import pkgutil

    import kernel_dsl

    shown = {p.with_suffix(".err").read_text().partition("(")[0] for p in PATHS}
    missing: list[str] = []
    for module in pkgutil.iter_modules(kernel_dsl.__path__):
        if module.name.startswith("errors"):
            found = importlib.import_module(f"kernel_dsl.{module.name}")
            missing += [
                name
                for name, cls in vars(found).items()
                if isinstance(cls, type)
                and issubclass(cls, kd.Error)
                and cls.__module__ == found.__name__
                and name not in shown
                and _is_used(name)
            ]
    assert missing == []
