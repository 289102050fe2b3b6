"""Kernels of notebook cells: their lines in errors, and their stages beside the source; what is shown holds no live markup."""

from __future__ import annotations

import ast
import linecache
import sys
from html import unescape
from html.parser import HTMLParser
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import side_by_side
from tests.conftest import ROOT
from tests.docs import site

CELL = """
@kd.kernel(out_type=kd.ShapeDtypeStruct((64,), kd.float32), interpret=True)
def doubled(x, out):
    out[...] = x[...] * 2  # <script>alert("&")</script>

@kd.kernel(out_type=kd.ShapeDtypeStruct((64,), kd.float32), interpret=True)
def misfit(x, out):
    out[...] = x[kd.ds(0, 32)]
"""


@pytest.fixture(params=["<ipython-input-7-0123456789ab>", "/tmp/ipykernel_71/2390.py"])
def cell(request: pytest.FixtureRequest) -> Any:
    """The names that a cell makes, as IPython runs it: compiled under a name that is no file, its text in linecache."""
    file = request.param
    linecache.cache[file] = (len(CELL), None, CELL.splitlines(keepends=True), file)
    names: dict[str, Any] = {"kd": kd}
    exec(compile(CELL, file, "exec"), names)
    yield names, file
    del linecache.cache[file]


X = np.arange(64, dtype=np.float32)


def test_errors_show_the_line_of_the_cell(cell: Any) -> None:
    names, file = cell
    with pytest.raises(kd.Error) as caught:
        names["misfit"](X)
    text = str(caught.value)
    assert f"{file}:8" in text and "out[...] = x[kd.ds(0, 32)]" in text


def test_scopes_and_stages_know_the_line_of_the_cell(cell: Any) -> None:
    names, file = cell
    profile = names["doubled"].profile(X)
    assert (profile.result == X * 2).all() and {(e.file, e.line) for e in profile.events} == {(file, 3)}
    stages = names["doubled"].lower(X)
    assert (file, 4) in side_by_side.of_ir(stages.ir_text) and (file, 4) in side_by_side.of_ptx(stages.ptx)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_stages_are_shown_side_by_side(cell: Any) -> None:
    """Every line of the IR and the PTX is there once, none of it as markup."""
    names, _ = cell
    stages = names["doubled"].lower(X)
    ((tag, attributes),) = Tags(stages._repr_html_()).tags
    assert tag == "iframe" and attributes["sandbox"] == ""
    page = attributes["srcdoc"] or ""
    inner = Tags(page)
    assert {t for t, _ in inner.tags} <= {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "p",
        "table",
        "thead",
        "tr",
        "th",
        "tbody",
        "td",
        "pre",
    }
    assert not [key for _, given in inner.tags for key in given if key.startswith("on") or key in ("src", "href")]
    assert "# &lt;script&gt;" in page and "<th>IR</th><th>PTX</th>" in page
    plain = unescape(page)
    for line in stages.ptx.splitlines():
        if line.strip() and not line.lstrip().startswith(("//", ".loc", ".file")):
            assert " ".join(line.split()) in plain  # columns are narrow
    parts = side_by_side.of_ir(stages.ir_text).values()
    assert all(" ".join(line.split()) in plain for lines in parts for line in lines)
    assert sum(map(len, parts)) == len(stages.ir_text.splitlines())


def test_machine_code_is_shown_without_addresses(cell: Any) -> None:
    names, file = cell
    stages = names["doubled"].lower(X)
    page = side_by_side.page(stages, lambda: f"\t// {file}:4\n        /*0010*/           @P0 MOV R1, R2 ;\n")
    assert "<pre>@P0 MOV R1, R2 ;</pre>" in page and "max-width" not in page and "table-layout:fixed" in page


def test_machine_code_by_its_line() -> None:
    text = "\t.text\n\t// /a b/x.py:3 inlined  y = 1\n  MOV R1 ;\n  EXIT ;\n\t// x.py:4\n  BRA ;\n"
    assert side_by_side.of_sass(text) == {
        ("", 0): ["\t.text"],
        ("/a b/x.py", 3): ["  MOV R1 ;", "  EXIT ;"],
        ("x.py", 4): ["  BRA ;"],
    }


def test_the_tutorial_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell in turn, as IPython compiles it; what the last line of a cell shows is a picture, a page or text."""
    shown: list[Any] = []
    names = vars(module_of_cells := ModuleType("notebook"))
    monkeypatch.setitem(sys.modules, "notebook", module_of_cells)  # where dataclasses look for their names
    for number, cell in enumerate(site.read(ROOT / "docs" / "tutorial.ipynb")["cells"]):
        assert not cell.get("outputs"), "the notebook is committed without outputs"
        if cell["cell_type"] != "code":
            continue
        source, file = "".join(cell["source"]), f"<ipython-input-{number}-tutorial>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        module = ast.parse(source)
        last = module.body.pop() if isinstance(module.body[-1], ast.Expr) else None
        exec(compile(module, file, "exec"), names)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), file, "eval"), names))
    shows = [x for x in shown if hasattr(x, "_repr_html_") or hasattr(x, "_repr_svg_")]
    assert len(shows) == 7 and all(x._repr_html_() if hasattr(x, "_repr_html_") else x._repr_svg_() for x in shows)


@pytest.mark.slow
def test_jupyter_runs_the_tutorial() -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    made = site.executed(ROOT / "docs" / "tutorial.ipynb")
    data = [o.get("data", {}) for cell in made["cells"] for o in cell.get("outputs", ())]
    assert sum("text/html" in d for d in data) == 5 and sum("image/svg+xml" in d for d in data) == 2
    assert "```text" in site.notebook_page(made)
