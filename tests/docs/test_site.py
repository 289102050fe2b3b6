"""The site's pages are whole, its menu has them all, and what a page loses on the way to HTML is found. Builds it only where it can."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs import html, pictures, site


def words(example: Path) -> str:
    """In place of what an example prints."""
    return f"{example.stem}: exact\n"


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return site.pages(words)


def test_the_menu_has_every_page(texts: dict[str, str]) -> None:
    """But for the pages of single errors, which the list of errors links to."""
    menu = [name for names in site.navigation().values() for name in names]
    assert len(menu) == len(set(menu))
    left = texts.keys() - set(menu)
    assert set(menu) <= texts.keys() and all(name.startswith("docs/errors/") for name in left)
    assert all(f"({Path(name).name})" in texts["docs/errors/README.md"] for name in left)


def test_the_settings_are_toml() -> None:
    found = tomllib.loads(site.SETTINGS.format(nav=site._toml(site.navigation())))
    assert {part: names for entry in found["project"]["nav"] for part, names in entry.items()} == site.navigation()


@pytest.mark.parametrize("example", site.examples(), ids=lambda p: p.stem)
def test_a_tutorial_has_all_of_its_example(example: Path) -> None:
    """Every line in its order: as code, or as prose where it is the docstring of a function of the module."""
    page = site.tutorial(example, words(example))
    assert f"({example.stem}.png)" in site.tutorial(example, "", drawn=True).removeprefix(page) and ".png)" not in page
    assert page.startswith(f"# {int(example.stem[:2])}. ") and f"```text\n{example.stem}: exact\n```" in page
    code = "\n".join(page.split("```python\n")[i].split("\n```")[0] for i in range(1, page.count("```python\n") + 1))
    module = ast.parse(example.read_text())
    for node in [module, *(n for n in module.body if isinstance(n, ast.FunctionDef))]:
        prose = ast.get_docstring(node)
        assert prose is None or prose in page
        node.body = node.body[prose is not None :]
    assert ast.dump(ast.parse(code)) == ast.dump(module)


def test_what_an_example_prints_is_run(tmp_path: Path) -> None:
    example = tmp_path / "03_squares.py"
    example.write_text("import sys\nprint(7 * 6)\nopen(sys.argv[1], 'w').close()\n")
    assert site.run(example, tmp_path / "drawn") == "42\n"
    assert [p.name for p in (tmp_path / "drawn").iterdir()] == ["03_squares.png"]
    example.write_text("raise ValueError('not so')\n")
    with pytest.raises(SystemExit, match="not so"):
        site.run(example, tmp_path)


def test_the_reference_has_a_page_for_each_group() -> None:
    pages = site.reference_pages()
    index = pages.pop("docs/reference.md")
    assert "[sum](reference/reductions-scans-and-sorting.md#kd.sum)" in index
    found = pages["docs/reference/reductions-scans-and-sorting.md"]
    assert "## kd.sum {#kd.sum}\n\n```python\nkd.sum(x, axis=None, *, keepdims=False, dtype=None)\n```\n" in found
    matmul = pages["docs/reference/the-library.md"]
    assert "\nkd.library.matmul(\n    a,\n    b,\n    *,\n" in matmul
    for name, text in pages.items():
        assert all(ast.parse(block) for block in _signatures(text)), name


def _signatures(text: str) -> list[str]:
    """Signatures below headings, each as a function that parses."""
    blocks = [part.split("\n```")[0] for part in text.split("\n\n```python\n")[1:]]
    return [f"def _({block.partition('(')[2]}: ..." for block in blocks]


def test_pages_as_python_markdown_reads_them() -> None:
    assert (
        site.plain("```python no-run\nx\n```\n| `a\\|b` | c\\|d |\n`a\\|b`\n")
        == "```python\nx\n```\n| `a|b` | c\\|d |\n`a\\|b`\n"
    )


MARKDOWN = """# Head

1. One

    ```python
    # not a heading
    ```

2. Two

| a | b |
|---|---|
| c | d |

    indented
"""
HTML = (
    '<a href="../">x</a><article><h1 id="head">Head</h1><ol><li>One<pre></pre></li><li>Two</li></ol>'
    "<table><tr><th>a</th></tr><tr><td>c</td></tr></table><pre></pre></article>"
)


def built(folder: Path, text: str) -> list[str]:
    """The problems of a site of two pages, of which `text` is the second."""
    for name, page in (("", "<article></article>"), ("docs/calls/", text)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "index.html").write_text(page)
    return html.problems({"README.md": "", "docs/calls.md": MARKDOWN}, folder)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("", "", None),
        ("<pre></pre></article>", "</article>", "2 blocks of code are 1 in the HTML"),
        ("</ol>", "</ol><ol></ol>", "1 numbered lists are 2 in the HTML"),
        ("<th>a</th></tr><tr>", "", "2 rows are 1 in the HTML"),
        ('"../"', '"../../"', None),
        ('"../"', '"../missing/"', "links to ../missing/"),
        ('"../"', '"../../#part"', "links to ../../#part"),
        ('"../"', '"#head"', None),
        ('"../"', '"#tail"', "links to #tail"),
        ('"../"', '"https://example.com/x"', None),
        ("<article>", '<article><script src="https://example.com/x.js"></script>', "loads https://example.com/x.js"),
        ("<td>c", "<td>a\\|c", r"shows a\|c"),
    ],
)
def test_what_is_lost_is_found(tmp_path: Path, old: str, new: str, problem: str | None) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.html").write_text("")
    assert old in HTML
    found = built(tmp_path, HTML.replace(old, new, 1))
    assert found == ([] if problem is None else found[:1]) and (problem is None or problem in found[0])


def test_the_pictures_are_up_to_date(update: bool) -> None:
    if update:
        pictures.main()
    made = pictures.drawn()
    assert {p.name for p in pictures.FOLDER.iterdir()} == made.keys()
    for name, text in made.items():
        assert (pictures.FOLDER / name).read_text() == text, "run `python -m tests.docs.pictures`"
        assert any(f"](pictures/{name})" in p.read_text() for p in (ROOT / "docs").glob("*.md"))


def test_the_packages_are_an_extra() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert any(p.startswith("zensical==") for p in settings["optional-dependencies"]["site"])
    assert "zensical" not in str([settings["dependencies"], settings["optional-dependencies"]["test"]])


def test_what_cells_show() -> None:
    """HTML as it is, which is no Markdown to look for; text without where the build ran."""
    table = "<div>\n\n<table><tr><td>1</td></tr></table>\n</div>"
    outputs = [
        {"output_type": "stream", "name": "stderr", "text": "no GPU\n"},
        {"output_type": "stream", "name": "stdout", "text": "at /tmp/ipykernel_7/89.py:3\n"},
        {"data": {"text/html": table, "text/plain": "<Table>"}},
        {"data": {"text/plain": "5"}},
    ]
    cells = [
        {"cell_type": "code", "source": "x", "outputs": outputs},
        {"cell_type": "markdown", "source": "| a |\n|---|"},
    ]
    text = site.notebook_page({"cells": cells})
    assert "no GPU" not in text and "```text\nat cell:3\n```" in text and "<Table>" not in text
    assert '<div class="cell-output">\n<div>\n<table><tr><td>1</td></tr></table>\n</div>\n</div>\n\n```text\n5' in text
    found = html.written(text)
    assert (found["pre"], found["table"], found["tr"]) == (3, 1, 1)
    page = html.Page(f'<article><div class="cell-output">{table}</div><table><tr></tr></table></article>')
    assert (page.blocks["table"], page.blocks["tr"]) == (1, 1)


@pytest.mark.slow
def test_the_site_builds() -> None:
    pytest.importorskip("zensical")
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.site"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
